-- name: old_index
DROP TABLE IF EXISTS memory_words

-- name: forget_index
UPDATE memory_items SET tenant = NULL

-- name: items
SELECT seq, tenant, tier, superseded_by, server_session_id, kind, coalesce(valid_from_epoch, created_at_epoch),
  importance, text, title, narrative, facts, sources, valid_from_epoch
FROM memory_items ORDER BY seq
