-- name: item
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE user_id = :user_id AND id = :item_id AND :filter LIMIT :limit

-- name: task
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE user_id = :user_id AND task_id = :task_id AND :filter ORDER BY rowid LIMIT :limit

-- name: user
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE rowid IN (
  -- the index of the key is enough to find the page: only its own rows are read, however many the user has
  SELECT rowid FROM pending_messages WHERE user_id = :user_id AND rowid > :after ORDER BY rowid
  LIMIT CASE WHEN :label IS NULL AND NOT :dead THEN :limit ELSE -1 END
) AND :filter ORDER BY rowid LIMIT :limit

-- name: dead
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE status = 'failed' AND :filter ORDER BY rowid LIMIT :limit

-- name: filter
rowid > :after AND (:label IS NULL OR message_type = :label)
AND (NOT :dead OR (+status = 'failed' AND error_message IS NOT 'cancelled'))

-- name: labels
-- Counts can be negative, because a process of an earlier version moves messages without counting them.
SELECT label, max(0, waiting), max(0, in_progress), max(0, completed), max(0, failed), max(0, cancelled),
  completed_ever, failed_ever
FROM label_counts
WHERE max(waiting, in_progress, completed, failed, cancelled, completed_ever, failed_ever) > 0

-- name: paused
SELECT label, reason FROM paused_labels

-- name: workers
SELECT worker, labels, lives_ms FROM workers WHERE alive_until_epoch > :now ORDER BY worker

-- name: lanes
SELECT user_id, project_id, message_type, depth - running, running FROM lanes
WHERE user_id = :user_id AND depth > 0 ORDER BY project_id, message_type

-- name: due_later
SELECT min(due_at_epoch) FROM pending_messages
WHERE user_id = :user_id AND project_id = :project_id AND message_type = :message_type AND unique_key = :unique_key
  AND status = 'pending' AND place IS NULL AND due_at_epoch > :now

-- name: oldest_waiting
-- Rows come in the order of their submission, so the oldest eligible messages are usually among the first. At most
-- `look_at` rows are read, because very many messages may wait for a later time.
SELECT min(updated_at_epoch), min(created_at_epoch) FROM (
  SELECT m.updated_at_epoch, m.created_at_epoch FROM (
    SELECT lane, place, updated_at_epoch, created_at_epoch FROM pending_messages INDEXED BY idx_pending_messages_status
    WHERE status = 'pending' LIMIT :look_at
  ) AS m
  JOIN lanes AS l ON l.lane = m.lane
  WHERE m.place IS NOT NULL AND (l.rest_until_epoch IS NULL OR l.rest_until_epoch <= :now) LIMIT :compare
)

-- name: first_in_turn
-- Since when the first message of the next lane in turn has waited, and when it was accepted; the earliest of all labels.
SELECT min(m.updated_at_epoch), min(m.created_at_epoch)
FROM label_counts AS c CROSS JOIN pending_messages AS m
WHERE m.rowid = (
  SELECT p.rowid FROM pending_messages AS p
  WHERE p.status = 'pending' AND p.place IS NOT NULL AND p.lane = (
    SELECT l.lane FROM lanes AS l WHERE l.message_type = c.label AND l.turn IS NOT NULL ORDER BY l.turn LIMIT 1
  )
  ORDER BY p.place LIMIT 1
)

-- name: oldest_in_progress
SELECT min(coalesce(claimed_at_epoch, started_at_epoch)) FROM (
  SELECT claimed_at_epoch, started_at_epoch FROM pending_messages INDEXED BY idx_pending_messages_status
  WHERE status = 'processing' LIMIT :look_at
)

-- name: last_completed
SELECT last_completed_epoch FROM queue_counters
