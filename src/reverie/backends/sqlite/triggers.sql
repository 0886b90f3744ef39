-- name: read_types
SELECT name, fields, enabled, version, switched FROM trigger_types ORDER BY name

-- name: write_type
-- A newer configuration resets what a person has switched. The statistics stay.
INSERT INTO trigger_types (name, fields, enabled, version) VALUES (:name, :fields, :enabled, :version)
ON CONFLICT (name) DO UPDATE
SET fields = excluded.fields, enabled = excluded.enabled, version = excluded.version, switched = NULL

-- name: switch_type
UPDATE trigger_types SET switched = :enabled WHERE name = :name RETURNING 1

-- name: due_triggers
-- The due triggers, the longest overdue first; those that are blocked; whether there may be more behind them; the next
-- due time after now; the types that depend on others than before. `types` is [[name, [types it depends on]], …]. At
-- most `page` triggers of each type are looked at. A trigger is blocked while `is_blocked` of `trigger_state.py` is true
-- of it. If too many of those due later are blocked, the next due time is that of the last that was looked at.
WITH looked AS MATERIALIZED (
  SELECT t.task_type, t.user_key, t.user_id, t.device_id, t.agent_id, t.scheduled_at_epoch,
    coalesce(t.anchor_epoch, t.scheduled_at_epoch) AS anchor_epoch, t.item_id,
    EXISTS (
      SELECT 1 FROM json_each(given.value, '$[1]') AS parent
        CROSS JOIN trigger_tasks AS o ON o.task_type = parent.value AND o.user_key = t.user_key
      WHERE (o.scheduled_at_epoch IS NOT NULL OR o.fired_at_epoch IS NOT NULL OR o.ended IS NULL)
        AND coalesce(o.last_exec_epoch, 0) <= coalesce(t.previous_run_epoch, 0)
    ) AS is_blocked
  FROM json_each(:types) AS given
    CROSS JOIN trigger_types AS y ON y.name = given.value ->> 0
    CROSS JOIN trigger_tasks AS t ON t.task_type = y.name AND t.user_key IN (
      SELECT d.user_key FROM trigger_tasks AS d INDEXED BY idx_trigger_tasks_due
      WHERE d.task_type = y.name AND d.scheduled_at_epoch IS NOT NULL AND d.fired_at_epoch IS NULL AND NOT d.blocked
        AND d.scheduled_at_epoch <= :now
      ORDER BY d.scheduled_at_epoch, d.user_key LIMIT :page
    )
  WHERE coalesce(y.switched, y.enabled)
)
SELECT (
    SELECT json_group_array(json_array(
      task_type, user_key, user_id, device_id, agent_id, scheduled_at_epoch, anchor_epoch, item_id
    ))
    FROM (
      SELECT * FROM looked WHERE NOT is_blocked ORDER BY scheduled_at_epoch, task_type, user_key LIMIT :limit
    )
  ),
  (SELECT json_group_array(json_array(task_type, user_key)) FROM looked WHERE is_blocked),
  EXISTS (SELECT 1 FROM looked GROUP BY task_type HAVING count(*) >= :page),
  (
    SELECT min(coalesce(
      (
        SELECT soon.scheduled_at_epoch FROM (
          SELECT l.user_key, l.scheduled_at_epoch, l.previous_run_epoch
          FROM trigger_tasks AS l INDEXED BY idx_trigger_tasks_due
          WHERE l.task_type = y.name AND l.scheduled_at_epoch IS NOT NULL AND l.fired_at_epoch IS NULL AND NOT l.blocked
            AND l.scheduled_at_epoch > :now
          ORDER BY l.scheduled_at_epoch LIMIT :page
        ) AS soon
        WHERE NOT EXISTS (
          SELECT 1 FROM json_each(given.value, '$[1]') AS parent
            CROSS JOIN trigger_tasks AS o ON o.task_type = parent.value AND o.user_key = soon.user_key
          WHERE (o.scheduled_at_epoch IS NOT NULL OR o.fired_at_epoch IS NOT NULL OR o.ended IS NULL)
            AND coalesce(o.last_exec_epoch, 0) <= coalesce(soon.previous_run_epoch, 0)
        )
        LIMIT 1  -- the first of the inner order
      ),
      (
        SELECT l.scheduled_at_epoch FROM trigger_tasks AS l INDEXED BY idx_trigger_tasks_due
        WHERE l.task_type = y.name AND l.scheduled_at_epoch IS NOT NULL AND l.fired_at_epoch IS NULL AND NOT l.blocked
          AND l.scheduled_at_epoch > :now
        ORDER BY l.scheduled_at_epoch LIMIT 1 OFFSET :page - 1
      )
    ))
    FROM json_each(:types) AS given CROSS JOIN trigger_types AS y ON y.name = given.value ->> 0
    WHERE coalesce(y.switched, y.enabled)
  ),
  (
    SELECT json_group_array(json_array(y.name, given.value -> 1))
    FROM json_each(:types) AS given CROSS JOIN trigger_types AS y ON y.name = given.value ->> 0
    WHERE y.depends_on <> given.value -> 1
  )

-- name: put_aside
-- Puts triggers aside, [[task_type, user_key], …].
UPDATE trigger_tasks SET blocked = 1
FROM json_each(:triggers) AS given
WHERE trigger_tasks.task_type = given.value ->> 0 AND trigger_tasks.user_key = given.value ->> 1

-- name: write_dependence
UPDATE trigger_types SET depends_on = ?2 WHERE name = ?1

-- name: put_back
UPDATE trigger_tasks INDEXED BY idx_trigger_tasks_blocked SET blocked = 0 WHERE blocked AND task_type = ?

-- name: known_runs
-- Messages by their keys, [[user_id, id], …].
SELECT m.user_id, m.id, m.message_type, m.extra ->> '$.user_key', m.status, m.error_message, m.retry_count
FROM json_each(:keys) AS given
  CROSS JOIN pending_messages AS m ON m.user_id = given.value ->> 0 AND m.id = given.value ->> 1

-- name: held_run
-- The claim that holds the message of a trigger's last run. The message columns must not be ambiguous.
SELECT m.rowid, m.lane, m.claim_id, m.lease_until_epoch, m.created_at_epoch, message_columns
FROM (
    SELECT item_user_id AS whose, item_id FROM trigger_tasks WHERE task_type = :task_type AND user_key = :user_key
  ) AS run
  CROSS JOIN pending_messages AS m ON m.user_id = run.whose AND m.id = run.item_id
WHERE m.status = 'processing'

-- name: trigger
-- The columns of a trigger are the fields of `Trigger`, in their order. `is_forgotten` of `trigger_state.py` is false of
-- those that are answered.
SELECT task_type, user_key, user_id, device_id, agent_id, interval_ms, ttl_ms, created_at_epoch, scheduled_at_epoch,
  anchor_epoch, last_activity_epoch, touched, item_user_id, item_id, fired_at_epoch, ended, expires_at_epoch,
  retry_count, last_exec_epoch, previous_run_epoch
FROM trigger_tasks
WHERE task_type = :task_type AND user_key = :user_key AND (
    expires_at_epoch IS NULL
    OR expires_at_epoch - max(:least_kept, coalesce(ttl_ms, 0), coalesce(interval_ms, 0)) + coalesce(ttl_ms, 0) > :now
  )

-- name: page_of_triggers
SELECT task_type, user_key, user_id, device_id, agent_id, interval_ms, ttl_ms, created_at_epoch, scheduled_at_epoch,
  anchor_epoch, last_activity_epoch, touched, item_user_id, item_id, fired_at_epoch, ended, expires_at_epoch,
  retry_count, last_exec_epoch, previous_run_epoch
FROM trigger_tasks
WHERE task_type = :task_type AND user_key >= :after AND (:after = '' OR user_key <> :after) AND (
    expires_at_epoch IS NULL
    OR expires_at_epoch - max(:least_kept, coalesce(ttl_ms, 0), coalesce(interval_ms, 0)) + coalesce(ttl_ms, 0) > :now
  )
ORDER BY user_key LIMIT :limit

-- name: statistics
SELECT name, pending, running, runs, failures, skipped, duration_ms, lateness_ms, max_lateness_ms, fired,
  last_run_at_epoch, last_error
FROM trigger_types ORDER BY name
