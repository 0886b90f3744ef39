-- name: dated_by
SELECT retention_ms FROM queue_counters

-- name: set_dated_by
UPDATE queue_counters SET retention_ms = :retention_ms

-- name: dated
-- The next statuses that have a date of expiry.
SELECT expires_at_epoch, rowid FROM pending_messages INDEXED BY idx_pending_messages_expiry
WHERE expires_at_epoch IS NOT NULL AND (expires_at_epoch, rowid) > (:moment, :row)
ORDER BY expires_at_epoch, rowid LIMIT :limit

-- name: date_earlier
UPDATE pending_messages SET expires_at_epoch = processed_at_epoch + :retention_ms
WHERE rowid IN (SELECT value FROM json_each(:rows)) AND expires_at_epoch > processed_at_epoch + :retention_ms
  AND (+status = 'completed' OR (+status = 'failed' AND error_message IS 'cancelled'))

-- name: next_lanes
SELECT max(lane), count(*) FROM (SELECT lane FROM lanes WHERE lane > :after ORDER BY lane LIMIT :limit)

-- name: drop_lanes
-- Removes lanes that have had no message for long. A submit or a requeue adds them again. The numbers of messages in a
-- lane can be trusted unless a process of an earlier version, which does not count, has moved something.
DELETE FROM lanes
WHERE lane > :after AND lane <= :last AND depth = 0 AND running = 0 AND turn IS NULL AND rest_until_epoch IS NULL
  AND coalesce(ready_at_epoch, 0) <= :before AND (SELECT counted_turn = turn FROM queue_counters)
