-- What operating the engine asks of the file: pruning by age, one order by its key, the backlog of each topic.

CREATE INDEX instances_ended ON instances (ended_at_ms, instance_id)
    WHERE ended_at_ms IS NOT NULL;
CREATE INDEX instances_by_business_key ON instances (business_key, started_at_ms, instance_id)
    WHERE business_key IS NOT NULL;
CREATE INDEX timers_of_instance ON timers (instance_id);
CREATE INDEX subscriptions_of_instance ON subscriptions (instance_id);

-- With available_at in it, a long backlog is counted from the index alone.
DROP INDEX external_tasks_ready;
CREATE INDEX external_tasks_ready ON external_tasks (task_type, -priority, created_at, task_id, available_at)
    WHERE state = 'READY' AND draining = 0 AND available_at <= updated_at;
