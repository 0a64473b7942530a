-- Instants are milliseconds since 1970-01-01T00:00:00Z: those of external_tasks and task_attempts on the lease clock,
-- all others on the wall clock. JSON is kept as text.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO meta (name, value) VALUES ('lease_clock_ms', 0);

CREATE TABLE definitions (
    process_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    name TEXT,
    digest TEXT NOT NULL,
    xml BLOB NOT NULL,
    deployed_at_ms INTEGER NOT NULL,
    start_messages TEXT NOT NULL,
    failure_policy TEXT,
    adopt_java INTEGER NOT NULL,
    PRIMARY KEY (process_key, version)
);

CREATE TABLE instances (
    instance_id TEXT PRIMARY KEY,
    definition_id TEXT NOT NULL,
    process_key TEXT NOT NULL,
    business_key TEXT,
    status TEXT NOT NULL,
    version INTEGER NOT NULL,
    started_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER
) WITHOUT ROWID;

CREATE INDEX instances_newest ON instances (started_at_ms, instance_id);

CREATE TABLE history (
    instance_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    facts TEXT NOT NULL,
    PRIMARY KEY (instance_id, version)
) WITHOUT ROWID;

CREATE TABLE snapshots (
    instance_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    snapshot BLOB NOT NULL
);

CREATE TABLE external_tasks (
    task_id TEXT PRIMARY KEY,
    process_instance TEXT NOT NULL,
    token_id TEXT NOT NULL,
    activity_id TEXT NOT NULL,
    element_id TEXT NOT NULL,
    definition_id TEXT NOT NULL,
    business_key TEXT,
    task_type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    retries_total INTEGER NOT NULL,
    retry_backoffs_ms TEXT NOT NULL,
    lock_expiries_max INTEGER NOT NULL,
    single_try INTEGER NOT NULL,
    lock_duration_ms INTEGER,
    variables TEXT NOT NULL,
    headers TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    retries INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lock_expiries INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    lock_owner TEXT,
    lock_boot_id TEXT,
    lock_session_no INTEGER,
    lock_session_id TEXT,
    lock_fence INTEGER,
    lock_since INTEGER,
    lock_expire_at INTEGER,
    lock_own_duration_ms INTEGER,
    outcome TEXT,
    outcome_digest TEXT,
    error_message TEXT
);

CREATE INDEX external_tasks_ready ON external_tasks (task_type, -priority, created_at, task_id)
    WHERE state = 'READY' AND draining = 0 AND available_at <= updated_at;
CREATE INDEX external_tasks_backing_off ON external_tasks (task_type, available_at)
    WHERE state = 'READY' AND draining = 0 AND available_at > updated_at;
CREATE INDEX external_tasks_drained ON external_tasks (task_id)
    WHERE state = 'READY' AND draining = 1;
CREATE INDEX external_tasks_locked ON external_tasks (lock_expire_at, task_id, lock_boot_id, state)
    WHERE state = 'LOCKED';
CREATE INDEX external_tasks_of_instance ON external_tasks (process_instance);

CREATE TABLE task_attempts (
    task_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    worker_id TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    ended_at_ms INTEGER NOT NULL,
    ended_by TEXT NOT NULL,
    request_digest TEXT,
    message TEXT,
    details TEXT,
    PRIMARY KEY (task_id, fence)
) WITHOUT ROWID;

CREATE TABLE timers (
    timer_id TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL,
    element_id TEXT NOT NULL,
    due_at_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX timers_due ON timers (due_at_ms, timer_id);

CREATE TABLE subscriptions (
    subscription_id TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL,
    element_id TEXT NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX subscriptions_by_name ON subscriptions (name, key, subscription_id);

CREATE TABLE start_subscriptions (
    process_key TEXT NOT NULL,
    name TEXT NOT NULL,
    definition_id TEXT NOT NULL,
    PRIMARY KEY (name, process_key)
) WITHOUT ROWID;

CREATE TABLE messages (
    message_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    variables TEXT NOT NULL,
    published_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    is_consumed INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX messages_by_arrival ON messages (published_at_ms, message_id) WHERE is_consumed = 0;
CREATE INDEX messages_by_end ON messages (expires_at_ms);

CREATE TABLE user_tasks (
    user_task_id TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL,
    element_id TEXT NOT NULL,
    name TEXT,
    assignee TEXT,
    candidate_users TEXT NOT NULL,
    candidate_groups TEXT NOT NULL,
    form TEXT,
    variables TEXT NOT NULL,
    due_at TEXT,
    created_at_ms INTEGER NOT NULL
);

CREATE INDEX user_tasks_of_instance ON user_tasks (instance_id);

CREATE TABLE incidents (
    incident_id TEXT PRIMARY KEY,
    instance_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    element_id TEXT NOT NULL,
    message TEXT NOT NULL,
    task_id TEXT,
    opened_at_ms INTEGER NOT NULL
);

CREATE INDEX incidents_of_instance ON incidents (instance_id);

CREATE TABLE inbox (
    instance_id TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    command TEXT NOT NULL,
    UNIQUE (instance_id, dedupe_key)
);
