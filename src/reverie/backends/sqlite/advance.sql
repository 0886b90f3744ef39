-- name: overdue
-- Messages that were not started before their deadline.
SELECT rowid, lane, created_at_epoch, message_columns FROM pending_messages INDEXED BY idx_pending_messages_deadline
WHERE status = 'pending' AND deadline_epoch IS NOT NULL AND deadline_epoch <= :now
ORDER BY deadline_epoch LIMIT :limit

-- name: due_messages
SELECT rowid FROM pending_messages INDEXED BY idx_pending_messages_due
WHERE status = 'pending' AND place IS NULL AND due_at_epoch <= :now AND waits_for = 0
ORDER BY due_at_epoch, rowid LIMIT :limit

-- name: stage
UPDATE pending_messages SET place = :place, due_at_epoch = NULL, updated_at_epoch = :now
WHERE rowid = :row
RETURNING lane

-- name: end_rests
UPDATE lanes SET rest_until_epoch = NULL
WHERE lane IN (
  SELECT lane FROM lanes WHERE rest_until_epoch IS NOT NULL AND rest_until_epoch <= :now
  ORDER BY rest_until_epoch LIMIT :limit
)
RETURNING lane

-- name: lost_claims
SELECT rowid, user_id, id, claim_id, lane FROM pending_messages INDEXED BY idx_pending_messages_lease
WHERE status = 'processing' AND lease_until_epoch <= :now
ORDER BY lease_until_epoch LIMIT :limit

-- name: lose
-- A claim that ended without an outcome is one loss. After too many losses the message is buried. A message whose
-- cancellation was requested ends as cancelled instead of waiting again.
UPDATE pending_messages
SET losses = losses + 1,
    status = CASE WHEN cancel_requested OR losses + 1 >= :max_losses THEN 'failed' ELSE 'pending' END,
    error_message = CASE WHEN cancel_requested THEN 'cancelled'
      WHEN losses + 1 >= :max_losses THEN 'killed_worker' ELSE error_message END,
    processed_at_epoch = CASE WHEN cancel_requested OR losses + 1 >= :max_losses THEN :now END,
    expires_at_epoch = CASE WHEN cancel_requested THEN :expires END,
    place = CASE WHEN cancel_requested OR losses + 1 >= :max_losses THEN NULL ELSE place END,
    cancel_requested = 0, claim_id = NULL, worker = NULL, lease_until_epoch = NULL, updated_at_epoch = :now
WHERE rowid = :row AND user_id = :user_id AND id = :id AND claim_id = :claim_id AND status = 'processing'
RETURNING status, error_message, created_at_epoch, message_columns

-- name: expire
DELETE FROM pending_messages
WHERE rowid IN (
  SELECT rowid FROM pending_messages WHERE expires_at_epoch IS NOT NULL AND expires_at_epoch <= :now
  ORDER BY expires_at_epoch LIMIT :limit
)
RETURNING user_id, id, message_type, status, error_message

-- name: expire_dead
DELETE FROM pending_messages
WHERE rowid IN (
  SELECT rowid FROM pending_messages INDEXED BY idx_pending_messages_dead
  WHERE status = 'failed' AND error_message IS NOT 'cancelled' AND processed_at_epoch <= :now - :dead_retention
  ORDER BY processed_at_epoch LIMIT :limit
)
RETURNING user_id, id, message_type, status, error_message

-- name: forget_memos
DELETE FROM memos WHERE user_id = ?1 AND id = ?2

-- name: forget_workers
DELETE FROM workers WHERE alive_until_epoch <= :now

-- name: forget_arrivals
DELETE FROM arrivals WHERE arrival <= :now

-- name: next_due
SELECT min(moment) FROM (
  SELECT min(due_at_epoch) AS moment FROM pending_messages INDEXED BY idx_pending_messages_due
  WHERE status = 'pending' AND place IS NULL AND due_at_epoch IS NOT NULL AND waits_for = 0
  UNION ALL
  SELECT min(deadline_epoch) FROM pending_messages INDEXED BY idx_pending_messages_deadline
  WHERE status = 'pending' AND deadline_epoch IS NOT NULL
  UNION ALL
  SELECT min(rest_until_epoch) FROM lanes WHERE rest_until_epoch IS NOT NULL
  UNION ALL
  SELECT min(lease_until_epoch) FROM pending_messages INDEXED BY idx_pending_messages_lease
  WHERE status = 'processing'
  UNION ALL
  SELECT min(expires_at_epoch) FROM pending_messages WHERE expires_at_epoch IS NOT NULL
  UNION ALL
  SELECT min(processed_at_epoch) + :dead_retention FROM pending_messages INDEXED BY idx_pending_messages_dead
  WHERE status = 'failed' AND error_message IS NOT 'cancelled'
)
