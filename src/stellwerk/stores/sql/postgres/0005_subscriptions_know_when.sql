-- readable from 4
--
-- What waits for messages knows since when (0: ever), on the database's clock: what it waited for in time it gets, however
-- late.

ALTER TABLE stellwerk.subscriptions ADD COLUMN opened_at_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE stellwerk.start_subscriptions ADD COLUMN opened_at_ms bigint NOT NULL DEFAULT 0;
-- Nodes of the version before do not say it.
ALTER TABLE stellwerk.subscriptions ALTER COLUMN opened_at_ms SET DEFAULT stellwerk.now_ms();
ALTER TABLE stellwerk.start_subscriptions ALTER COLUMN opened_at_ms SET DEFAULT stellwerk.now_ms();

-- Whoever has waited longest comes first.
DROP INDEX stellwerk.subscriptions_by_name;
CREATE INDEX subscriptions_by_name ON stellwerk.subscriptions (name, key, opened_at_ms, subscription_id);
DROP INDEX stellwerk.subscriptions_of_instance;
CREATE INDEX subscriptions_of_instance ON stellwerk.subscriptions (instance_id, opened_at_ms, subscription_id);

-- The commit as before; a subscription is opened at its instant.

CREATE FUNCTION stellwerk.commit_3(
    p_batch uuid, p_now bigint,
    x_step int[], x_instance text[], x_version bigint[], x_status text[], x_ended_at bigint[],
    n_step int[], n_instance text[], n_definition text[], n_key text[], n_newer_than bigint[], n_business_key text[],
    n_status text[], n_started_at bigint[], n_ended_at bigint[], n_version bigint[],
    h_step int[], h_instance text[], h_version bigint[], h_at bigint[], h_facts text[],
    s_step int[], s_instance text[], s_version bigint[], s_snapshot bytea[],
    e_step int[], e_task text[], e_instance text[], e_fence bigint[], e_worker text[], e_digest text[],
    t_step int[], t_task text[], t_instance text[], t_token text[], t_activity text[], t_element text[], t_topic text[],
    t_priority bigint[], t_retries bigint[], t_backoffs text[], t_expiries_max bigint[], t_single_try boolean[],
    t_duration bigint[], t_variables json[], t_headers json[], t_worker text[], t_boot text[], t_session_no bigint[],
    t_session text[], t_lease_duration bigint[],
    l_task text[], l_worker text[], l_boot text[], l_session_no bigint[], l_session text[], l_duration bigint[],
    w_timer_step int[], w_timer text[], w_timer_instance text[], w_timer_element text[], w_timer_due bigint[],
    w_timer_gone_step int[], w_timer_gone text[],
    w_subscription_step int[], w_subscription text[], w_subscription_instance text[], w_subscription_element text[],
    w_subscription_name text[], w_subscription_key text[],
    w_subscription_gone_step int[], w_subscription_gone text[]
) RETURNS TABLE (
    kind int, r_position int, refused int[],
    task_id text, process_instance text, token_id text, activity_id text, element_id text, definition_id text,
    business_key text, task_type text, priority bigint, created_at bigint, retries_total bigint, retry_backoffs_ms text,
    lock_expiries_max bigint, single_try boolean, lock_duration_ms bigint, variables json, headers json,
    updated_at bigint, available_at bigint, state text, retries bigint, attempt bigint, lock_expiries bigint,
    draining boolean, fence bigint, lock_owner text, lock_boot_id text, lock_session_no bigint, lock_session_id text,
    lock_fence bigint, lock_since bigint, lock_expire_at bigint, lock_own_duration_ms bigint, outcome text,
    outcome_digest text, error_message text
)
LANGUAGE plpgsql VOLATILE
-- Every join is by primary key from arrays, whatever the statistics say: with none yet the planner would read the table.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_refused int[] := '{}';
    v_passed int[];
    v_untils bigint[];
    v_count bigint;
BEGIN
    -- Should the same batch still be under way on a connection that was lost, this waits for it (consistency.md 3).
    INSERT INTO stellwerk.batches (batch_id, now_ms) VALUES (p_batch, coalesce(p_now, stellwerk.now_ms()));

    IF cardinality(x_step) > 0 THEN
        WITH locked AS MATERIALIZED (
            SELECT x.place, x.version AS expected, i.version
            FROM unnest(x_instance, x_version) WITH ORDINALITY AS x (instance, version, place)
            JOIN stellwerk.instances i ON i.instance_id = x.instance
            ORDER BY i.instance_id FOR UPDATE OF i
        )
        SELECT array_agg(l.place) INTO v_passed FROM locked l WHERE l.version = l.expected;
        IF coalesce(cardinality(v_passed), 0) < cardinality(x_step) THEN
            SELECT array_agg(x.step) INTO v_refused FROM unnest(x_step) WITH ORDINALITY AS x (step, place)
            WHERE x.place <> ALL (coalesce(v_passed, '{}'));
        END IF;
    END IF;

    IF cardinality(n_step) > 0 THEN
        INSERT INTO stellwerk.instances
            (instance_id, definition_id, process_key, business_key, status, version, started_at_ms, ended_at_ms)
        SELECT n.instance, n.definition, n.key, n.business_key, n.status, 1, n.started_at, n.ended_at
        FROM unnest(n_instance, n_definition, n_key, n_newer_than, n_business_key, n_status, n_started_at, n_ended_at,
            n_version) AS n (instance, definition, key, newer_than, business_key, status, started_at, ended_at, version)
        WHERE (n.newer_than IS NULL OR NOT EXISTS (
                SELECT FROM stellwerk.definitions d WHERE d.process_key = n.key AND d.version > n.newer_than))
            AND (n.version IS NULL OR EXISTS (
                SELECT FROM stellwerk.definitions d WHERE d.process_key = n.key AND d.version = n.version)
                AND NOT EXISTS (
                    SELECT FROM stellwerk.processes p WHERE p.process_key = n.key AND NOT p.is_enabled))
        ORDER BY n.instance
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count < cardinality(n_step) THEN
            -- Which of them it was must be looked at one by one: all of this kind are refused, nothing else is touched.
            RAISE EXCEPTION USING MESSAGE = 'a new instance is refused';
        END IF;
    END IF;

    IF cardinality(e_step) > 0 THEN
        -- Materialised: a condition on the state beside the key would make the planner read the wrong index.
        WITH locked AS MATERIALIZED (
            SELECT e.place, e.fence AS wanted, e.worker, e.instance,
                t.state, t.fence, t.lock_owner, t.process_instance, t.lock_expire_at AS until
            FROM unnest(e_task, e_instance, e_fence, e_worker) WITH ORDINALITY AS e (task, instance, fence, worker, place)
            JOIN stellwerk.external_tasks t ON t.task_id = e.task
            ORDER BY t.task_id FOR UPDATE OF t
        )
        SELECT array_agg(l.place), array_agg(l.until) INTO v_passed, v_untils FROM locked l
        WHERE l.state = 'LOCKED' AND l.fence = l.wanted AND l.process_instance = l.instance
            AND (l.worker IS NULL OR l.worker = l.lock_owner);
    END IF;

    v_now := coalesce(p_now, stellwerk.now_ms());

    IF cardinality(e_step) > 0 THEN
        SELECT count(*) INTO v_count FROM unnest(v_untils) AS u (until) WHERE u.until > v_now;
        IF v_count < cardinality(e_step) THEN
            SELECT v_refused || array_agg(e.step) INTO v_refused FROM unnest(e_step) WITH ORDINALITY AS e (step, place)
            WHERE e.place <> ALL (coalesce((
                SELECT array_agg(p.place) FROM unnest(v_passed, v_untils) AS p (place, until) WHERE p.until > v_now
            ), '{}'));
        END IF;
        UPDATE stellwerk.external_tasks t
        SET state = 'COMPLETED', outcome = 'complete', outcome_digest = e.digest, updated_at = v_now
        FROM unnest(e_step, e_task, e_digest) AS e (step, task, digest)
        WHERE t.task_id = e.task AND e.step <> ALL (v_refused);
    END IF;

    IF cardinality(x_step) > 0 THEN
        UPDATE stellwerk.instances i
        SET version = i.version + 1, status = coalesce(x.status, i.status), ended_at_ms = coalesce(x.ended_at, i.ended_at_ms)
        FROM unnest(x_step, x_instance, x_status, x_ended_at) AS x (step, instance, status, ended_at)
        WHERE i.instance_id = x.instance AND x.step <> ALL (v_refused);
    END IF;

    INSERT INTO stellwerk.history (instance_id, version, at_ms, facts)
    SELECT h.instance, h.version, h.at, h.facts
    FROM unnest(h_step, h_instance, h_version, h_at, h_facts) AS h (step, instance, version, at, facts)
    WHERE h.step <> ALL (v_refused);

    IF cardinality(s_step) > 0 THEN
        INSERT INTO stellwerk.snapshots (instance_id, version, snapshot)
        SELECT s.instance, s.version, s.snapshot
        FROM unnest(s_step, s_instance, s_version, s_snapshot) AS s (step, instance, version, snapshot)
        WHERE s.step <> ALL (v_refused)
        ON CONFLICT (instance_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot;
    END IF;

    IF cardinality(t_step) > 0 THEN
        RETURN QUERY WITH born AS (
            INSERT INTO stellwerk.external_tasks (
                task_id, process_instance, token_id, activity_id, element_id, definition_id, business_key, task_type,
                priority, created_at, retries_total, retry_backoffs_ms, lock_expiries_max, single_try, lock_duration_ms,
                variables, headers, updated_at, available_at, state, retries, attempt, lock_expiries, draining, fence,
                lock_owner, lock_boot_id, lock_session_no, lock_session_id, lock_fence, lock_since, lock_expire_at,
                lock_own_duration_ms)
            SELECT n.task, n.instance, n.token, n.activity, n.element, i.definition_id, i.business_key, n.topic,
                n.priority, v_now, n.retries, n.backoffs, n.expiries_max, n.single_try, n.duration,
                n.variables, n.headers, v_now, v_now,
                CASE WHEN n.worker IS NULL THEN 'READY' ELSE 'LOCKED' END, n.retries, (n.worker IS NOT NULL)::int, 0,
                false, CASE WHEN n.worker IS NULL THEN 0 ELSE greatest(1, v_now) END,
                n.worker, n.boot, n.session_no, n.session,
                CASE WHEN n.worker IS NOT NULL THEN greatest(1, v_now) END, CASE WHEN n.worker IS NOT NULL THEN v_now END,
                CASE WHEN n.worker IS NOT NULL THEN v_now + coalesce(n.duration, n.lease_duration) END,
                CASE WHEN n.worker IS NOT NULL THEN coalesce(n.duration, n.lease_duration) END
            FROM unnest(t_step, t_task, t_instance, t_token, t_activity, t_element, t_topic, t_priority, t_retries,
                t_backoffs, t_expiries_max, t_single_try, t_duration, t_variables, t_headers, t_worker, t_boot,
                t_session_no, t_session, t_lease_duration)
                AS n (step, task, instance, token, activity, element, topic, priority, retries, backoffs, expiries_max,
                    single_try, duration, variables, headers, worker, boot, session_no, session, lease_duration)
            JOIN stellwerk.instances i ON i.instance_id = n.instance
            WHERE n.step <> ALL (v_refused)
            RETURNING external_tasks.task_id, external_tasks.definition_id, external_tasks.business_key,
                external_tasks.lock_owner
        )
        SELECT 1, NULL::int, NULL::int[], b.task_id, NULL::text, NULL::text, NULL::text, NULL::text, b.definition_id,
            b.business_key, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint,
            NULL::boolean, NULL::bigint, NULL::json, NULL::json, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::boolean, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text
        FROM born b WHERE b.lock_owner IS NOT NULL;
    END IF;

    IF cardinality(w_timer_gone) > 0 THEN
        DELETE FROM stellwerk.timers t USING unnest(w_timer_gone_step, w_timer_gone) AS w (step, timer)
        WHERE t.timer_id = w.timer AND w.step <> ALL (v_refused);
    END IF;
    IF cardinality(w_timer) > 0 THEN
        INSERT INTO stellwerk.timers (timer_id, instance_id, element_id, due_at_ms)
        SELECT w.timer, w.instance, w.element, w.due
        FROM unnest(w_timer_step, w_timer, w_timer_instance, w_timer_element, w_timer_due)
            AS w (step, timer, instance, element, due)
        WHERE w.step <> ALL (v_refused);
    END IF;
    IF cardinality(w_subscription_gone) > 0 THEN
        DELETE FROM stellwerk.subscriptions s
        USING unnest(w_subscription_gone_step, w_subscription_gone) AS w (step, subscription)
        WHERE s.subscription_id = w.subscription AND w.step <> ALL (v_refused);
    END IF;
    IF cardinality(w_subscription) > 0 THEN
        INSERT INTO stellwerk.subscriptions (subscription_id, instance_id, element_id, name, key, opened_at_ms)
        SELECT w.subscription, w.instance, w.element, w.name, w.key, v_now
        FROM unnest(w_subscription_step, w_subscription, w_subscription_instance, w_subscription_element,
            w_subscription_name, w_subscription_key) AS w (step, subscription, instance, element, name, key)
        WHERE w.step <> ALL (v_refused);
    END IF;

    -- What is sent to an instance that has ended is dropped.
    IF num_nonnulls(VARIADIC x_ended_at) + num_nonnulls(VARIADIC n_ended_at) > 0 THEN
        DELETE FROM stellwerk.inbox b
        USING unnest(x_step || n_step, x_instance || n_instance, x_ended_at || n_ended_at) AS x (step, instance, ended_at)
        WHERE b.instance_id = x.instance AND x.ended_at IS NOT NULL AND x.step <> ALL (v_refused);
    END IF;

    IF cardinality(l_task) > 0 THEN
        RETURN QUERY WITH free AS MATERIALIZED (
            SELECT l.place, l.worker, l.boot, l.session_no, l.session, l.duration,
                t.task_id, t.state, t.draining, t.available_at, t.updated_at
            FROM unnest(l_task, l_worker, l_boot, l_session_no, l_session, l_duration) WITH ORDINALITY
                AS l (task, worker, boot, session_no, session, duration, place)
            JOIN stellwerk.external_tasks t ON t.task_id = l.task
            ORDER BY t.task_id FOR UPDATE OF t SKIP LOCKED
        )
        UPDATE stellwerk.external_tasks t
        SET state = 'LOCKED', fence = greatest(t.fence + 1, v_now), attempt = t.attempt + 1, updated_at = v_now,
            outcome = NULL, outcome_digest = NULL,
            lock_owner = f.worker, lock_boot_id = f.boot, lock_session_no = f.session_no, lock_session_id = f.session,
            lock_fence = greatest(t.fence + 1, v_now), lock_since = v_now,
            lock_expire_at = v_now + coalesce(t.lock_duration_ms, f.duration),
            lock_own_duration_ms = coalesce(t.lock_duration_ms, f.duration)
        FROM free f
        WHERE t.task_id = f.task_id AND f.state = 'READY' AND NOT f.draining AND f.available_at <= greatest(v_now, f.updated_at)
        RETURNING 2, f.place::int, NULL::int[], t.task_id, t.process_instance, t.token_id, t.activity_id, t.element_id,
            t.definition_id, t.business_key, t.task_type, t.priority, t.created_at, t.retries_total, t.retry_backoffs_ms,
            t.lock_expiries_max, t.single_try, t.lock_duration_ms, t.variables, t.headers, t.updated_at, t.available_at,
            t.state, t.retries, t.attempt, t.lock_expiries, t.draining, t.fence, t.lock_owner, t.lock_boot_id,
            t.lock_session_no, t.lock_session_id, t.lock_fence, t.lock_since, t.lock_expire_at, t.lock_own_duration_ms,
            t.outcome, t.outcome_digest, t.error_message;
    END IF;

    UPDATE stellwerk.batches b SET judged_at_ms = v_now, refused = v_refused WHERE b.batch_id = p_batch;
    RETURN QUERY SELECT 0, NULL::int, v_refused, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::boolean,
        NULL::bigint, NULL::json, NULL::json, v_now, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::boolean, NULL::bigint, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text;
END $$;
