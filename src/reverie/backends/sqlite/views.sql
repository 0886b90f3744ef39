-- name: item
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE user_id = :user_id AND id = :item_id AND :filter LIMIT :limit

-- name: task
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE user_id = :user_id AND task_id = :task_id AND :filter ORDER BY rowid LIMIT :limit

-- name: user
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE user_id = :user_id AND :filter ORDER BY rowid LIMIT :limit

-- name: dead
SELECT rowid, status, created_at_epoch, started_at_epoch, processed_at_epoch, error_message, message_columns
FROM pending_messages WHERE status = 'failed' AND :filter ORDER BY rowid LIMIT :limit

-- name: filter
rowid > :after AND (:label IS NULL OR message_type = :label)
AND (NOT :dead OR (+status = 'failed' AND error_message IS NOT 'cancelled'))

-- name: labels
SELECT message_type, sum(depth) - sum(running), sum(running) FROM lanes GROUP BY 1 HAVING sum(depth) > 0

-- name: paused
SELECT label, reason FROM paused_labels

-- name: workers
SELECT worker, labels, lives_ms FROM workers WHERE alive_until_epoch > :now ORDER BY worker
