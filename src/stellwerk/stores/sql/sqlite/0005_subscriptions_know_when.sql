-- What waits for messages knows since when (0: ever), on the lease clock: what it waited for in time it gets, however late.

ALTER TABLE subscriptions ADD COLUMN opened_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE start_subscriptions ADD COLUMN opened_at_ms INTEGER NOT NULL DEFAULT 0;

-- Whoever has waited longest comes first.
DROP INDEX subscriptions_by_name;
CREATE INDEX subscriptions_by_name ON subscriptions (name, key, opened_at_ms, subscription_id);
DROP INDEX subscriptions_of_instance;
CREATE INDEX subscriptions_of_instance ON subscriptions (instance_id, opened_at_ms, subscription_id);
