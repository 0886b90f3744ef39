-- name: write_counts
-- What one step changes for a label: so many more waiting, in progress, …
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

-- name: set_counted
UPDATE queue_counters
SET counted_turn = turn,
    last_completed_epoch = nullif(max(
      coalesce(last_completed_epoch, 0),
      (SELECT coalesce(max(processed_at_epoch), 0) FROM pending_messages WHERE status = 'completed')
    ), 0)

-- name: drop_orphans
-- Runs of messages that a process has removed which does not know of them.
DELETE FROM attempts
WHERE NOT EXISTS (SELECT 1 FROM pending_messages AS m WHERE m.user_id = attempts.user_id AND m.id = attempts.id)
