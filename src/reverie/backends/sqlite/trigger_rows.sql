-- name: read_triggers
-- Triggers by their keys, [[task_type, user_key], …], and the types that are enabled. All in one row: each row that
-- comes back to Python costs a switch of threads.
SELECT (
    SELECT json_group_array(json_array(
      t.task_type, t.user_key, t.user_id, t.device_id, t.agent_id, t.interval_ms, t.ttl_ms, t.created_at_epoch,
      t.scheduled_at_epoch, t.anchor_epoch, t.last_activity_epoch,
      iif(t.touched, json('true'), json('false')), t.item_user_id, t.item_id, t.fired_at_epoch, t.ended,
      t.expires_at_epoch, t.retry_count, t.last_exec_epoch, t.previous_run_epoch
    ))
    FROM json_each(:keys) AS given CROSS JOIN trigger_tasks AS t
      ON t.task_type = given.value ->> 0 AND t.user_key = given.value ->> 1
  ),
  (SELECT json_group_array(name) FROM trigger_types WHERE coalesce(switched, enabled))

-- name: write_triggers
INSERT INTO trigger_tasks (
  task_type, user_key, user_id, device_id, agent_id, interval_ms, ttl_ms, created_at_epoch, scheduled_at_epoch,
  anchor_epoch, last_activity_epoch, touched, item_user_id, item_id, fired_at_epoch, ended, expires_at_epoch,
  retry_count, last_exec_epoch, previous_run_epoch
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
  value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14, value ->> 15,
  value ->> 16, value ->> 17, value ->> 18, value ->> 19
FROM json_each(:triggers) WHERE true
ON CONFLICT (task_type, user_key) DO UPDATE
SET user_id = excluded.user_id, device_id = excluded.device_id, agent_id = excluded.agent_id,
    interval_ms = excluded.interval_ms, ttl_ms = excluded.ttl_ms, created_at_epoch = excluded.created_at_epoch,
    scheduled_at_epoch = excluded.scheduled_at_epoch, anchor_epoch = excluded.anchor_epoch,
    last_activity_epoch = excluded.last_activity_epoch, touched = excluded.touched,
    item_user_id = excluded.item_user_id, item_id = excluded.item_id, fired_at_epoch = excluded.fired_at_epoch,
    ended = excluded.ended, expires_at_epoch = excluded.expires_at_epoch,
    retry_count = excluded.retry_count, last_exec_epoch = excluded.last_exec_epoch,
    previous_run_epoch = excluded.previous_run_epoch

-- name: write_quietly
-- Like `write_triggers`, for triggers whose times stay as they are, as with most activity. No index is written.
INSERT INTO trigger_tasks (
  task_type, user_key, user_id, device_id, agent_id, interval_ms, ttl_ms, created_at_epoch, last_activity_epoch,
  touched, retry_count
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
  value ->> 10, value ->> 11, value ->> 17
FROM json_each(:triggers) WHERE true
ON CONFLICT (task_type, user_key) DO UPDATE
SET user_id = excluded.user_id, device_id = excluded.device_id, agent_id = excluded.agent_id,
    interval_ms = excluded.interval_ms, ttl_ms = excluded.ttl_ms,
    last_activity_epoch = excluded.last_activity_epoch, touched = excluded.touched, retry_count = excluded.retry_count

-- name: remove_trigger
DELETE FROM trigger_tasks WHERE task_type = ? AND user_key = ?

-- name: forget_triggers
-- Returns the type and the user key of each trigger, and whether it is counted as pending because it never ran.
DELETE FROM trigger_tasks
WHERE (task_type, user_key) IN (
  SELECT task_type, user_key FROM trigger_tasks INDEXED BY idx_trigger_tasks_expiry
  WHERE expires_at_epoch IS NOT NULL AND expires_at_epoch <= :now
    AND scheduled_at_epoch IS NULL AND fired_at_epoch IS NULL
  ORDER BY expires_at_epoch LIMIT :limit
)
RETURNING task_type, user_key, ended IS NULL

-- name: put_back
-- Puts triggers back that may have waited for others of these user keys.
UPDATE trigger_tasks INDEXED BY idx_trigger_tasks_blocked SET blocked = 0
WHERE blocked AND user_key IN (SELECT value FROM json_each(:keys))

-- name: add_statistics
-- Adds the changes of one step to the statistics of a type.
UPDATE trigger_types
SET pending = pending + :pending, running = running + :running, runs = runs + :runs, failures = failures + :failures,
    skipped = skipped + :skipped, duration_ms = duration_ms + :duration_ms, lateness_ms = lateness_ms + :lateness_ms,
    max_lateness_ms = max(max_lateness_ms, :max_lateness_ms), fired = fired + :fired,
    last_run_at_epoch = coalesce(:last_run_at, last_run_at_epoch),
    last_error = CASE WHEN :failures > 0 THEN :last_error ELSE last_error END
WHERE name = :task_type
