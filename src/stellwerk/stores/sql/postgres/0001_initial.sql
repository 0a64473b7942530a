-- Instants are milliseconds since 1970-01-01T00:00:00Z: those of external_tasks and task_attempts on the lease clock (the
-- database's), all others on the wall clock of the node that wrote them. Ids are text in byte order, as on every store.
--
-- What a worker gets is json and not jsonb: it must come back as it was accepted. jsonb refuses integers of more than
-- 131,072 digits and writes 1e308 out in full; `variables::jsonb` is one cast away.

CREATE TABLE stellwerk.definitions (
    process_key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    name text,
    digest text NOT NULL,
    xml bytea NOT NULL,
    deployed_at_ms bigint NOT NULL,
    start_messages text NOT NULL,
    failure_policy text,
    adopt_java boolean NOT NULL,
    PRIMARY KEY (process_key, version)
);

-- A step changes version and status alone, which no index knows: such an update stays on its page (HOT).
CREATE TABLE stellwerk.instances (
    instance_id text COLLATE "C" PRIMARY KEY,
    definition_id text COLLATE "C" NOT NULL,
    process_key text COLLATE "C" NOT NULL,
    business_key text COLLATE "C",
    status text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    started_at_ms bigint NOT NULL,
    ended_at_ms bigint
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX instances_newest ON stellwerk.instances (started_at_ms, instance_id);
CREATE INDEX instances_ended ON stellwerk.instances (ended_at_ms, instance_id) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX instances_by_business_key ON stellwerk.instances (business_key, started_at_ms, instance_id)
    WHERE business_key IS NOT NULL;

CREATE TABLE stellwerk.history (
    instance_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    at_ms bigint NOT NULL,
    facts text NOT NULL,
    PRIMARY KEY (instance_id, version)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

CREATE TABLE stellwerk.snapshots (
    instance_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    snapshot bytea NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE stellwerk.external_tasks (
    task_id text COLLATE "C" PRIMARY KEY,
    process_instance text COLLATE "C" NOT NULL,
    token_id text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    element_id text COLLATE "C" NOT NULL,
    definition_id text COLLATE "C" NOT NULL,
    business_key text COLLATE "C",
    task_type text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    created_at bigint NOT NULL,
    retries_total bigint NOT NULL,
    retry_backoffs_ms text NOT NULL,
    lock_expiries_max bigint NOT NULL,
    single_try boolean NOT NULL,
    lock_duration_ms bigint,
    variables json NOT NULL,
    headers json NOT NULL,
    updated_at bigint NOT NULL,
    available_at bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    retries bigint NOT NULL,
    attempt bigint NOT NULL,
    lock_expiries bigint NOT NULL,
    draining boolean NOT NULL,
    fence bigint NOT NULL,
    lock_owner text COLLATE "C",
    lock_boot_id text COLLATE "C",
    lock_session_no bigint,
    lock_session_id text COLLATE "C",
    lock_fence bigint,
    lock_since bigint,
    lock_expire_at bigint,
    lock_own_duration_ms bigint,
    outcome text COLLATE "C",
    outcome_digest text COLLATE "C",
    error_message text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 1);

-- With available_at in it, a long backlog is counted from the index alone.
CREATE INDEX external_tasks_ready
    ON stellwerk.external_tasks (task_type, (-priority), created_at, task_id) INCLUDE (available_at)
    WHERE state = 'READY' AND NOT draining AND available_at <= updated_at;
CREATE INDEX external_tasks_backing_off ON stellwerk.external_tasks (task_type, available_at)
    WHERE state = 'READY' AND NOT draining AND available_at > updated_at;
CREATE INDEX external_tasks_drained ON stellwerk.external_tasks (task_id) WHERE state = 'READY' AND draining;
CREATE INDEX external_tasks_locked ON stellwerk.external_tasks (lock_expire_at, task_id) WHERE state = 'LOCKED';
-- For lists by age: each task comes into it once, when it ends.
CREATE INDEX external_tasks_ended ON stellwerk.external_tasks (state, created_at, task_id)
    WHERE state NOT IN ('READY', 'LOCKED');
CREATE INDEX external_tasks_of_instance ON stellwerk.external_tasks (process_instance);

CREATE TABLE stellwerk.task_attempts (
    task_id text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    since_ms bigint NOT NULL,
    ended_at_ms bigint NOT NULL,
    ended_by text COLLATE "C" NOT NULL,
    request_digest text COLLATE "C",
    message text,
    details text,
    PRIMARY KEY (task_id, fence)
);

-- claimed_until_ms is on the database's clock: a node that fires a due timer keeps the others off it so long.
CREATE TABLE stellwerk.timers (
    timer_id text COLLATE "C" PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    element_id text NOT NULL,
    due_at_ms bigint NOT NULL,
    claimed_until_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX timers_due ON stellwerk.timers (due_at_ms, timer_id);
CREATE INDEX timers_of_instance ON stellwerk.timers (instance_id);

CREATE TABLE stellwerk.subscriptions (
    subscription_id text COLLATE "C" PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    element_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL
);

CREATE INDEX subscriptions_by_name ON stellwerk.subscriptions (name, key, subscription_id);
CREATE INDEX subscriptions_of_instance ON stellwerk.subscriptions (instance_id);

CREATE TABLE stellwerk.start_subscriptions (
    process_key text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    definition_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, process_key)
);

CREATE TABLE stellwerk.messages (
    message_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    variables text NOT NULL,
    published_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    is_consumed boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX messages_by_arrival ON stellwerk.messages (published_at_ms, message_id) WHERE NOT is_consumed;
CREATE INDEX messages_by_end ON stellwerk.messages (expires_at_ms);

CREATE TABLE stellwerk.user_tasks (
    user_task_id text COLLATE "C" PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    element_id text NOT NULL,
    name text,
    assignee text,
    candidate_users text NOT NULL,
    candidate_groups text NOT NULL,
    form text,
    variables text NOT NULL,
    due_at text,
    created_at_ms bigint NOT NULL
);

CREATE INDEX user_tasks_of_instance ON stellwerk.user_tasks (instance_id);

CREATE TABLE stellwerk.incidents (
    incident_id text COLLATE "C" PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    element_id text NOT NULL,
    message text NOT NULL,
    task_id text COLLATE "C",
    opened_at_ms bigint NOT NULL
);

CREATE INDEX incidents_of_instance ON stellwerk.incidents (instance_id);

CREATE TABLE stellwerk.inbox (
    arrival bigint GENERATED ALWAYS AS IDENTITY,
    instance_id text COLLATE "C" NOT NULL,
    dedupe_key text COLLATE "C" NOT NULL,
    command text NOT NULL,
    PRIMARY KEY (instance_id, dedupe_key)
);

CREATE INDEX inbox_by_arrival ON stellwerk.inbox (arrival);

-- One row for each committed transaction of a node, so that one whose answer was lost can ask what became of it.
CREATE TABLE stellwerk.batches (
    batch_id uuid PRIMARY KEY,
    now_ms bigint NOT NULL,
    judged_at_ms bigint,
    refused int[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX batches_by_age ON stellwerk.batches (now_ms);

-- What each node says of itself, for operators: nothing that runs depends on it.
CREATE TABLE stellwerk.nodes (
    node_id text COLLATE "C" PRIMARY KEY,
    started_at_ms bigint NOT NULL,
    seen_at_ms bigint NOT NULL,
    report json NOT NULL
) WITH (fillfactor = 50);

-- The lease clock.
CREATE FUNCTION stellwerk.now_ms() RETURNS bigint
    LANGUAGE sql VOLATILE AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
