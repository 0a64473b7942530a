-- Messages for one instance alone, processes of which nothing starts, and versions that were deleted.

ALTER TABLE messages ADD COLUMN instance_id TEXT;
CREATE INDEX messages_for_instances ON messages (published_at_ms, message_id)
    WHERE is_consumed = 0 AND instance_id IS NOT NULL;

-- There is a row only where something differs from the usual. No version gets the number of one that was deleted.
CREATE TABLE processes (
    process_key TEXT PRIMARY KEY,
    is_enabled INTEGER NOT NULL,
    last_deleted INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX instances_of_definition ON instances (definition_id);
