-- name: read_record
SELECT value FROM records WHERE kind = :kind AND id = :id

-- name: page_records
SELECT id, value FROM records WHERE kind = :kind AND id > :after ORDER BY id LIMIT :limit

-- name: count_records
SELECT count(*) FROM records WHERE kind = :kind

-- name: write_record
INSERT INTO records (kind, id, value) VALUES (:kind, :id, :value)
ON CONFLICT (kind, id) DO UPDATE SET value = excluded.value

-- name: remove_record
DELETE FROM records WHERE kind = :kind AND id = :id

-- name: add_entry
INSERT INTO audit_log (at_epoch, who, action, target, user_id, trace_id)
VALUES (:at, :who, :action, :target, :user_id, :trace_id)

-- name: trim_log
DELETE FROM audit_log WHERE number <= (SELECT max(number) FROM audit_log) - :kept

-- name: read_log
SELECT number, at_epoch, who, action, target, user_id, trace_id FROM audit_log
WHERE number < :before ORDER BY number DESC LIMIT :limit

-- name: read_log_of_user
SELECT number, at_epoch, who, action, target, user_id, trace_id FROM audit_log
WHERE user_id = :user_id AND number < :before ORDER BY number DESC LIMIT :limit
