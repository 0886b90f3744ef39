-- name: enter_inbox
-- The first row of an acceptance wins. It is replaced by a later acceptance of the id, or if it was closed by a worker
-- that had lost the message, or before a person requeued the message. A row of an earlier version does not know its
-- acceptance, which was before `applied_at_epoch`, give or take what the clocks of queue and store may differ.
INSERT INTO inbox (
  user_id, item_id, submitted_at_epoch, fingerprint, closed, losses, requeues, follow_ups, applied_at_epoch
)
VALUES (:user_id, :item_id, :submitted_at, :fingerprint, :closed, :losses, :requeues, :follow_ups, :now)
ON CONFLICT (user_id, item_id) DO UPDATE
SET submitted_at_epoch = excluded.submitted_at_epoch, fingerprint = excluded.fingerprint, closed = excluded.closed,
    losses = excluded.losses, requeues = excluded.requeues, follow_ups = excluded.follow_ups,
    applied_at_epoch = excluded.applied_at_epoch
WHERE excluded.submitted_at_epoch > coalesce(inbox.submitted_at_epoch, inbox.applied_at_epoch + :clock_difference)
  OR (
    coalesce(excluded.submitted_at_epoch >= inbox.submitted_at_epoch, true)
    AND (
      inbox.fingerprint <> excluded.fingerprint
      OR (inbox.closed AND (excluded.requeues, excluded.losses) > (inbox.requeues, inbox.losses))
    )
  )
RETURNING 1

-- name: use_inbox
-- Reads the row that has won, and keeps it from being pruned for as long again. `is_later`: the row belongs to a later
-- acceptance of the id.
UPDATE inbox SET applied_at_epoch = max(applied_at_epoch, :now)
WHERE user_id = :user_id AND item_id = :item_id
RETURNING closed, follow_ups, coalesce(submitted_at_epoch > :submitted_at, false) AS is_later

-- name: old_entries
SELECT user_id, item_id, coalesce(submitted_at_epoch, applied_at_epoch + :clock_difference), applied_at_epoch
FROM inbox WHERE applied_at_epoch < :before ORDER BY applied_at_epoch LIMIT :limit

-- name: drop_entry
DELETE FROM inbox WHERE user_id = ?1 AND item_id = ?2 AND applied_at_epoch = ?3

-- name: keep_entry
UPDATE inbox SET applied_at_epoch = ?5, submitted_at_epoch = coalesce(submitted_at_epoch, ?4)
WHERE user_id = ?1 AND item_id = ?2 AND applied_at_epoch = ?3
