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
-- The due triggers, the longest overdue first, and the next due time after now. `types` is
-- [[name, [types it depends on]], …]. A trigger is left out while `is_blocked` of `trigger_state.py` is true of it.
SELECT (
    SELECT json_group_array(json_array(
      task_type, user_key, user_id, device_id, agent_id, scheduled_at_epoch,
      coalesce(anchor_epoch, scheduled_at_epoch), item_id
    ))
    FROM (
      SELECT t.* FROM json_each(:types) AS given
        CROSS JOIN trigger_types AS y ON y.name = given.value ->> 0
        CROSS JOIN trigger_tasks AS t ON t.task_type = y.name AND t.user_key IN (
          SELECT d.user_key FROM trigger_tasks AS d INDEXED BY idx_trigger_tasks_due
          WHERE d.task_type = y.name AND d.scheduled_at_epoch IS NOT NULL AND d.fired_at_epoch IS NULL
            AND d.scheduled_at_epoch <= :now AND NOT EXISTS (
              SELECT 1 FROM json_each(given.value, '$[1]') AS parent
                CROSS JOIN trigger_tasks AS o ON o.task_type = parent.value AND o.user_key = d.user_key
              WHERE (o.scheduled_at_epoch IS NOT NULL OR o.fired_at_epoch IS NOT NULL OR o.ended IS NULL)
                AND coalesce(o.last_exec_epoch, 0) <= coalesce(d.previous_run_epoch, 0)
            )
          ORDER BY d.scheduled_at_epoch, d.user_key LIMIT :limit
        )
      WHERE coalesce(y.switched, y.enabled)
      ORDER BY t.scheduled_at_epoch, t.task_type, t.user_key LIMIT :limit
    )
  ),
  (
    SELECT min((
      SELECT d.scheduled_at_epoch FROM trigger_tasks AS d INDEXED BY idx_trigger_tasks_due
      WHERE d.task_type = y.name AND d.scheduled_at_epoch IS NOT NULL AND d.fired_at_epoch IS NULL
        AND d.scheduled_at_epoch > :now AND NOT EXISTS (
          SELECT 1 FROM json_each(given.value, '$[1]') AS parent
            CROSS JOIN trigger_tasks AS o ON o.task_type = parent.value AND o.user_key = d.user_key
          WHERE (o.scheduled_at_epoch IS NOT NULL OR o.fired_at_epoch IS NOT NULL OR o.ended IS NULL)
            AND coalesce(o.last_exec_epoch, 0) <= coalesce(d.previous_run_epoch, 0)
        )
      ORDER BY d.scheduled_at_epoch LIMIT 1
    ))
    FROM json_each(:types) AS given CROSS JOIN trigger_types AS y ON y.name = given.value ->> 0
    WHERE coalesce(y.switched, y.enabled)
  )

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
SELECT * FROM trigger_tasks
WHERE task_type = :task_type AND user_key = :user_key AND (
    expires_at_epoch IS NULL
    OR expires_at_epoch - max(:least_kept, coalesce(ttl_ms, 0), coalesce(interval_ms, 0)) + coalesce(ttl_ms, 0) > :now
  )

-- name: page_of_triggers
SELECT * FROM trigger_tasks
WHERE task_type = :task_type AND user_key >= :after AND (:after = '' OR user_key <> :after) AND (
    expires_at_epoch IS NULL
    OR expires_at_epoch - max(:least_kept, coalesce(ttl_ms, 0), coalesce(interval_ms, 0)) + coalesce(ttl_ms, 0) > :now
  )
ORDER BY user_key LIMIT :limit

-- name: statistics
SELECT name, pending, running, runs, failures, skipped, duration_ms, lateness_ms, max_lateness_ms, fired,
  last_run_at_epoch, last_error
FROM trigger_types ORDER BY name
