-- name: insert_item
INSERT INTO memory_items (
  user_id, id, project_id, server_session_id, kind, tier, text, tags, info, sources,
  created_at_epoch, updated_at_epoch
)
SELECT :user_id, :id, :project_id, :server_session_id, :kind, :tier, :text, :tags, :info, :sources, :now, :now
WHERE NOT EXISTS (SELECT 1 FROM memory_tombstones WHERE user_id = :user_id AND id = :id)
ON CONFLICT (user_id, id) DO NOTHING
RETURNING seq

-- name: insert_words
INSERT INTO memory_words (rowid, words) VALUES (:seq, :words)

-- name: delete_words
DELETE FROM memory_words WHERE rowid = :seq

-- name: text_of
SELECT project_id, text FROM memory_items WHERE user_id = :user_id AND id = :id

-- name: version_of
SELECT seq, version FROM memory_items WHERE user_id = :user_id AND project_id = :project_id AND id = :id

-- name: revise
UPDATE memory_items
SET text = coalesce(:text, text), kind = coalesce(:kind, kind), tags = coalesce(:tags, tags),
    info = coalesce(:info, info), sources = coalesce(:sources, sources),
    version = version + 1, updated_at_epoch = :now
WHERE seq = :seq

-- name: supersede
UPDATE memory_items SET superseded_by = :successor, version = version + 1, updated_at_epoch = :now WHERE seq = :seq

-- name: move
UPDATE memory_items SET tier = :tier, version = version + 1, updated_at_epoch = :now WHERE seq = :seq

-- name: touch
UPDATE memory_items SET access_count = access_count + 1, accessed_at_epoch = :now
WHERE user_id = :user_id AND project_id = :project_id AND id = :id

-- name: link
INSERT INTO memory_links (user_id, source_id, relation, target_id, created_at_epoch)
VALUES (:user_id, :source_id, :relation, :target_id, :now)
ON CONFLICT DO NOTHING

-- name: count_items
SELECT count(*) FROM memory_items
WHERE user_id = :user_id AND project_id = :project_id AND id IN (SELECT value FROM json_each(:ids))

-- name: delete_item
DELETE FROM memory_items WHERE seq = :seq

-- name: delete_links
DELETE FROM memory_links WHERE user_id = :user_id AND (source_id = :id OR target_id = :id)

-- name: bury_id
INSERT INTO memory_tombstones (user_id, id, deleted_at_epoch) VALUES (:user_id, :id, :now) ON CONFLICT DO NOTHING
