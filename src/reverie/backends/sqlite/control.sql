-- name: by_ids
SELECT m.rowid, m.user_id, m.id, m.lane, m.status, m.error_message, m.message_type FROM json_each(:item_ids) AS given
  CROSS JOIN pending_messages AS m ON m.user_id = :user_id AND m.id = given.value
WHERE (:task_id IS NULL OR m.task_id = :task_id) AND (:project_id IS NULL OR m.project_id = :project_id)
  AND (:label IS NULL OR m.message_type = :label)
  AND m.status IN (SELECT value FROM json_each(:statuses))
  AND NOT (:without_cancelled AND m.error_message IS 'cancelled')
ORDER BY m.rowid LIMIT :limit

-- name: of_user
SELECT rowid, user_id, id, lane, status, error_message, message_type FROM pending_messages
WHERE user_id = :user_id
  AND (:task_id IS NULL OR task_id = :task_id) AND (:project_id IS NULL OR project_id = :project_id)
  AND (:label IS NULL OR message_type = :label) AND NOT cancel_requested
  AND +status IN (SELECT value FROM json_each(:statuses))
  AND NOT (:without_cancelled AND error_message IS 'cancelled')
ORDER BY rowid LIMIT :limit

-- name: of_anyone
SELECT rowid, user_id, id, lane, status, error_message, message_type FROM pending_messages
WHERE status IN (SELECT value FROM json_each(:statuses))
  AND NOT (:without_cancelled AND error_message IS 'cancelled')
  AND (:task_id IS NULL OR task_id = :task_id) AND (:project_id IS NULL OR project_id = :project_id)
  AND (:label IS NULL OR message_type = :label) AND NOT cancel_requested
ORDER BY rowid LIMIT :limit

-- name: request_cancel
UPDATE pending_messages SET cancel_requested = 1, updated_at_epoch = ?2 WHERE rowid = ?1

-- name: add_lane
-- Adds the lane of a message, if it was removed because nothing waited in it for long.
INSERT INTO lanes (user_id, project_id, message_type, level)
SELECT user_id, project_id, message_type, level FROM pending_messages WHERE rowid = ?
ON CONFLICT (user_id, project_id, message_type) DO NOTHING

-- name: requeue
-- A failed or cancelled message waits again as if it were new. Its deadline is removed, because it may have passed. Its
-- lane is found by name, because the number of a lane that was removed may belong to another one.
UPDATE pending_messages
SET lane = (
      SELECT l.lane FROM lanes AS l
      WHERE l.user_id = pending_messages.user_id AND l.project_id = pending_messages.project_id
        AND l.message_type = pending_messages.message_type
    ),
    status = 'pending', retry_count = 0, losses = 0, conflicts = 0, requeues = requeues + 1,
    error_message = NULL, started_at_epoch = NULL, processed_at_epoch = NULL, expires_at_epoch = NULL,
    deadline_epoch = NULL, extra = json_remove(extra, '$.deadline'), place = ?2, updated_at_epoch = ?3
WHERE rowid = ?1
RETURNING lane

-- name: delete
DELETE FROM pending_messages WHERE rowid = ?1

-- name: delete_memos
DELETE FROM memos WHERE user_id = ?1 AND id = ?2

-- name: pause
INSERT INTO paused_labels (label, reason) VALUES (?1, ?2) ON CONFLICT (label) DO UPDATE SET reason = excluded.reason

-- name: resume
DELETE FROM paused_labels WHERE label = ?1

-- name: blank_turn
-- Removes the words of one turn from a message of the label `add`, and all words from an observation or a summary. The
-- fingerprint stays: a repeat is a duplicate.
UPDATE pending_messages
SET payload = CASE
  WHEN NOT json_valid(payload) OR message_type <> 'add' THEN ''
  WHEN json_type(payload, '$[' || :turn || '].content') = 'text' THEN json_set(payload, '$[' || :turn || '].content', '')
  ELSE payload
END
WHERE user_id = :user_id AND id = :id AND message_type IN ('add', 'observation', 'summary')
