-- name: write_counts
-- Adds the changes of one step to the counts of a label.
INSERT INTO label_counts (
  label, waiting, in_progress, completed, failed, cancelled, completed_ever, failed_ever
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (label) DO UPDATE
SET waiting = waiting + excluded.waiting, in_progress = in_progress + excluded.in_progress,
    completed = completed + excluded.completed, failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled, completed_ever = completed_ever + excluded.completed_ever,
    failed_ever = failed_ever + excluded.failed_ever

-- name: is_counted
SELECT counted_turn = turn FROM queue_counters

-- name: forget_counts
UPDATE label_counts SET waiting = 0, in_progress = 0, completed = 0, failed = 0, cancelled = 0

-- name: count_all
INSERT INTO label_counts
SELECT message_type, sum(status = 'pending'), sum(status = 'processing'), sum(status = 'completed'),
  sum(status = 'failed' AND error_message IS NOT 'cancelled'), sum(status = 'failed' AND error_message IS 'cancelled'),
  sum(status = 'completed'), sum(status = 'failed' AND error_message IS NOT 'cancelled')
FROM pending_messages GROUP BY 1
ON CONFLICT (label) DO UPDATE
SET waiting = excluded.waiting, in_progress = excluded.in_progress, completed = excluded.completed,
    failed = excluded.failed, cancelled = excluded.cancelled,
    completed_ever = max(completed_ever, excluded.completed_ever), failed_ever = max(failed_ever, excluded.failed_ever)

-- name: count_depth
UPDATE lanes SET depth = coalesce(counted.depth, 0)
FROM lanes AS l LEFT JOIN (
  SELECT lane, count(*) AS depth FROM pending_messages WHERE status IN ('pending', 'processing') GROUP BY lane
) AS counted ON counted.lane = l.lane
WHERE lanes.lane = l.lane AND lanes.depth <> coalesce(counted.depth, 0)

-- name: count_total_depth
UPDATE queue_counters SET depth = (SELECT coalesce(sum(depth), 0) FROM lanes)

-- name: set_counted
UPDATE queue_counters
SET counted_turn = turn,
    last_completed_epoch = nullif(max(
      coalesce(last_completed_epoch, 0),
      (SELECT coalesce(max(processed_at_epoch), 0) FROM pending_messages WHERE status = 'completed')
    ), 0)

-- name: end_lost_runs
-- Ends runs whose message is gone, or was ended by a process of an earlier version, which does not know of triggers.
-- The rules are those of `move_run` in `trigger_state.py`.
UPDATE trigger_tasks
SET fired_at_epoch = NULL, touched = 0, ended = iif(lost.good, 'completed', 'failed'),
    last_exec_epoch = iif(lost.good, lost.ended_at, last_exec_epoch),
    scheduled_at_epoch = iif(touched, lost.ended_at + coalesce(interval_ms, 0), scheduled_at_epoch),
    anchor_epoch = iif(touched AND trigger_tasks.user_id IS NOT NULL, lost.ended_at + interval_ms, anchor_epoch),
    expires_at_epoch = CASE WHEN trigger_tasks.user_id IS NOT NULL AND scheduled_at_epoch IS NULL AND NOT touched
      THEN lost.ended_at + max(:least_kept_ms, ttl_ms, interval_ms) END
FROM (
  SELECT t.task_type, t.user_key, m.status IS 'completed' AS good,
    coalesce(m.processed_at_epoch, t.fired_at_epoch) AS ended_at
  FROM trigger_tasks AS t LEFT JOIN pending_messages AS m ON m.user_id = t.item_user_id AND m.id = t.item_id
  WHERE t.fired_at_epoch IS NOT NULL AND (m.status IS NULL OR m.status IN ('completed', 'failed'))
) AS lost
WHERE trigger_tasks.task_type = lost.task_type AND trigger_tasks.user_key = lost.user_key

-- name: put_back_all
-- Puts all triggers back that wait for others, because runs may have ended unseen.
UPDATE trigger_tasks INDEXED BY idx_trigger_tasks_blocked SET blocked = 0 WHERE blocked

-- name: count_tasks
UPDATE trigger_types
SET running = counted.running, pending = counted.pending
FROM (
  SELECT y.name, count(t.fired_at_epoch) AS running,
    count(t.user_key) FILTER (
      WHERE t.fired_at_epoch IS NULL AND (t.scheduled_at_epoch IS NOT NULL OR t.ended IS NULL)
    ) AS pending
  FROM trigger_types AS y LEFT JOIN trigger_tasks AS t ON t.task_type = y.name GROUP BY y.name
) AS counted
WHERE trigger_types.name = counted.name

-- name: drop_orphans
-- Removes the attempts of messages that a process of an earlier version, which does not know of attempts, has removed.
DELETE FROM attempts
WHERE NOT EXISTS (SELECT 1 FROM pending_messages AS m WHERE m.user_id = attempts.user_id AND m.id = attempts.id)
