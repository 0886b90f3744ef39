-- name: end_claim
-- The fence: only the holder of the claim changes anything. The rowid finds the row quickly. The identity is compared
-- as well, because a VACUUM may have given the number to another row. A message whose cancellation was requested ends
-- as cancelled instead of waiting again or becoming a dead letter; a completed one stays completed.
UPDATE pending_messages
SET status = CASE WHEN cancel_requested AND :status <> 'completed' THEN 'failed' ELSE :status END,
    error_message = CASE WHEN cancel_requested AND :status <> 'completed' THEN 'cancelled' ELSE :error END,
    processed_at_epoch = CASE WHEN cancel_requested OR :status <> 'pending' THEN :now END,
    expires_at_epoch = CASE WHEN :kept OR cancel_requested THEN :expires END,
    retry_count = retry_count + :attempt, cancel_requested = 0,
    conflicts = CASE WHEN :retried THEN 0 ELSE conflicts + :conflict END,
    place = CASE WHEN :status = 'pending' AND NOT cancel_requested THEN place END,
    claim_id = NULL, worker = CASE WHEN :status = 'completed' THEN worker END, lease_until_epoch = NULL,
    updated_at_epoch = :now
WHERE rowid = :row AND user_id = :user_id AND id = :id AND claim_id = :claim_id AND status = 'processing'
RETURNING status, error_message

-- name: end_claims
-- The same for completions without effects and follow-ups, of messages that were claimed together: one statement for
-- all. If fewer rows are changed than given, some claims are stale.
UPDATE pending_messages
SET status = 'completed', error_message = NULL, processed_at_epoch = :now,
    expires_at_epoch = :expires, cancel_requested = 0, place = NULL,
    claim_id = NULL, lease_until_epoch = NULL, updated_at_epoch = :now
WHERE rowid IN (SELECT value FROM json_each(:rows)) AND claim_id = :claimed || rowid AND +status = 'processing'

-- name: forget_memory
-- After a conflict: removes the memos of steps that have read memory.
DELETE FROM memos WHERE user_id = :user_id AND id = :id AND substr(step, 1, length(:of_memory)) = :of_memory

-- name: postpone
-- In an unordered lane, a message that must wait gives up its place and lets the others pass. In an ordered lane it
-- keeps its place, and the lane rests.
UPDATE pending_messages SET place = NULL, due_at_epoch = :due
WHERE rowid = :row AND NOT (SELECT ordered FROM lanes WHERE lanes.lane = pending_messages.lane)
RETURNING 1
