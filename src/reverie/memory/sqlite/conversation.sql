-- name: extracted
UPDATE memory_items SET extracted_at_epoch = :now
WHERE user_id = :user_id AND project_id = :project_id AND id IN (SELECT value FROM json_each(:ids))
  AND extracted_at_epoch IS NULL

-- name: note_query
INSERT INTO memory_queries (user_id, project_id, id, server_session_id, query, found, asked_at_epoch)
VALUES (:user_id, :project_id, :id, :session_id, :query, :found, :now)
ON CONFLICT (user_id, project_id, id) DO UPDATE SET query = excluded.query, found = excluded.found

-- name: note_answer
-- Writes the answer to the query with this id, or to the last query of the session that has no answer yet.
UPDATE memory_queries SET answer = :answer, used = :used
WHERE user_id = :user_id AND project_id = :project_id AND id = coalesce(:id, (
  SELECT q.id FROM memory_queries AS q
  WHERE q.user_id = :user_id AND q.project_id = :project_id AND q.answer IS NULL
    AND q.server_session_id IS :session_id
  ORDER BY q.asked_at_epoch DESC, q.id DESC LIMIT 1
))

-- name: forget_queries
DELETE FROM memory_queries WHERE user_id = :user_id AND project_id = :project_id AND id IN (
  SELECT id FROM memory_queries WHERE user_id = :user_id AND project_id = :project_id
  ORDER BY asked_at_epoch DESC, id DESC LIMIT -1 OFFSET :kept
)

-- name: queries
SELECT id, query, server_session_id, found, asked_at_epoch, answer, used FROM memory_queries
WHERE user_id = ? AND project_id = ? ORDER BY asked_at_epoch DESC, id DESC

-- name: extraction
SELECT extraction FROM memory_cubes WHERE user_id = ? AND project_id = ?

-- name: set_extraction
INSERT OR REPLACE INTO memory_cubes (user_id, project_id, extraction) VALUES (?, ?, ?)

-- name: unread
SELECT id FROM memory_items
WHERE user_id = ? AND project_id = ? AND id IN (SELECT value FROM json_each(?)) AND extracted_at_epoch IS NULL

-- name: unread_turns
-- Turns that no run has read for facts yet and that are in no buffer, oldest first.
SELECT i.seq, i.id, i.text FROM memory_items AS i
WHERE i.tenant = (SELECT tenant FROM memory_tenants WHERE user_id = ?1 AND project_id = ?2)
  AND i.kind = 'turn' AND i.seq > ?3 AND i.extracted_at_epoch IS NULL AND i.superseded_by IS NULL
  AND NOT EXISTS (
    SELECT 1 FROM buffer_zone AS b WHERE b.user_id = ?1 AND b.buffer_id = i.id AND b.status <> 'done'
  )
ORDER BY i.seq LIMIT ?4
