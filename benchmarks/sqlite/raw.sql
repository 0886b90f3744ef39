-- name: insert
-- Insert a message as the queue does, and nothing else: no lane, no counters, no returned row.
INSERT INTO pending_messages (
  user_id, id, message_type, project_id, payload, created_at_epoch, updated_at_epoch,
  lane, level, place, fingerprint, timestamp_epoch
) VALUES (?1, ?2, 'noop', ?1, '{}', ?3, ?3, ?4, 3, ?5, ?6, ?3)

-- name: claim
UPDATE pending_messages
SET status = 'processing', claim_id = ?1, worker = 'raw', lease_until_epoch = ?2, started_at_epoch = ?3,
    updated_at_epoch = ?3
WHERE rowid IN (SELECT rowid FROM pending_messages WHERE status = 'pending' ORDER BY rowid LIMIT ?4)
RETURNING rowid, user_id, id, message_type, memory_session_id, project_id, payload, level, retry_count, losses,
  task_id, trace_id, user_name, info, timestamp_epoch

-- name: complete
UPDATE pending_messages
SET status = 'completed', retry_count = retry_count + 1, processed_at_epoch = ?1, expires_at_epoch = ?2,
    claim_id = NULL, worker = NULL, lease_until_epoch = NULL, updated_at_epoch = ?1
WHERE rowid IN (SELECT value FROM json_each(?3)) AND claim_id = ?4

-- name: count_completed
SELECT count(*) FROM pending_messages WHERE status = 'completed'

-- name: count_by_status
SELECT status, count(*) FROM pending_messages GROUP BY status
