-- name: note_run
-- Records how a run ends. It must run before the claim is removed, and writes nothing if the claim is not valid. If
-- cancellation was requested, the outcome is cancelled.
INSERT OR REPLACE INTO attempts
SELECT m.user_id, m.id, next.number % :kept, next.number, iif(m.cancel_requested, 'cancelled', :outcome),
  coalesce(m.claimed_at_epoch, m.started_at_epoch), :now, m.worker,
  iif(:outcome = 'lost' AND NOT m.cancel_requested AND m.losses + 1 >= :max_losses, 'killed_worker', :error),
  m.created_at_epoch
FROM pending_messages AS m CROSS JOIN (
  SELECT 1 + coalesce(max(number), 0) AS number FROM attempts WHERE user_id = :user_id AND id = :id
) AS next
WHERE m.rowid = :row AND m.user_id = :user_id AND m.id = :id AND m.claim_id = :claim_id AND m.status = 'processing'
  AND (:ran OR m.cancel_requested)

-- name: note_end
-- Records the end of a message that waited.
INSERT OR REPLACE INTO attempts (user_id, id, slot, number, outcome, ended_at_epoch, error, created_at_epoch)
SELECT :user_id, :id, (1 + coalesce(max(number), 0)) % :kept, 1 + coalesce(max(number), 0), :outcome, :now, :error,
  (SELECT created_at_epoch FROM pending_messages WHERE user_id = :user_id AND id = :id)
FROM attempts WHERE user_id = :user_id AND id = :id

-- name: forget_attempts
DELETE FROM attempts WHERE (user_id, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:keys))

-- name: history
SELECT a.outcome, a.ended_at_epoch, a.started_at_epoch, a.worker, a.error FROM attempts AS a
  JOIN pending_messages AS m ON m.user_id = a.user_id AND m.id = a.id
WHERE a.user_id = :user_id AND a.id = :id AND a.created_at_epoch = m.created_at_epoch
ORDER BY a.number

-- name: completion
SELECT status, processed_at_epoch, coalesce(claimed_at_epoch, started_at_epoch), worker, NULL
FROM pending_messages WHERE user_id = :user_id AND id = :id AND +status = 'completed'
