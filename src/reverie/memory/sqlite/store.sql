-- name: insert_item
INSERT INTO memory_items (
  user_id, id, project_id, server_session_id, kind, tier, text, tags, info, sources,
  created_at_epoch, updated_at_epoch
) VALUES (
  :user_id, :id, :project_id, :server_session_id, :kind, :tier, :text, :tags, :info, :sources, :now, :now
)
ON CONFLICT (user_id, id) DO NOTHING
RETURNING seq

-- name: insert_words
INSERT INTO memory_words (rowid, words) VALUES (:seq, :words)

-- name: text_of
SELECT text FROM memory_items WHERE user_id = :user_id AND id = :id

-- name: enter_inbox
-- The first to come decides, with two exceptions: another message under the same id, and a message that was
-- closed by a worker which had lost it, or before a person sent it back.
INSERT INTO inbox (user_id, item_id, fingerprint, closed, losses, requeues, follow_ups, applied_at_epoch)
VALUES (:user_id, :item_id, :fingerprint, :closed, :losses, :requeues, :follow_ups, :now)
ON CONFLICT (user_id, item_id) DO UPDATE
SET fingerprint = excluded.fingerprint, closed = excluded.closed, losses = excluded.losses,
    requeues = excluded.requeues, follow_ups = excluded.follow_ups, applied_at_epoch = excluded.applied_at_epoch
WHERE inbox.fingerprint <> excluded.fingerprint
  OR (inbox.closed AND (excluded.requeues, excluded.losses) > (inbox.requeues, inbox.losses))
RETURNING 1

-- name: read_inbox
SELECT closed, follow_ups FROM inbox WHERE user_id = :user_id AND item_id = :item_id

-- name: search
SELECT -bm25(memory_words) AS score, i.id, i.user_id, i.project_id, i.text, i.kind, i.tier, i.server_session_id,
  i.tags, i.info, i.sources, i.created_at_epoch, i.updated_at_epoch
FROM memory_words JOIN memory_items AS i ON i.seq = memory_words.rowid
WHERE memory_words MATCH :expression
  AND i.user_id = :user_id
  AND (:cubes IS NULL OR i.project_id IN (SELECT value FROM json_each(:cubes)))
ORDER BY score DESC, i.created_at_epoch DESC
LIMIT :limit

-- name: get
SELECT 0.0, id, user_id, project_id, text, kind, tier, server_session_id, tags, info, sources,
  created_at_epoch, updated_at_epoch
FROM memory_items WHERE user_id = :user_id AND id = :id
