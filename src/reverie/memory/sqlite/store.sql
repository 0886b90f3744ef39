-- name: get
SELECT item_columns FROM memory_items AS i WHERE i.user_id = :user_id AND i.id = :id

-- name: items
SELECT item_columns FROM json_each(:ids) AS given
  CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = given.value
WHERE i.project_id = :project_id
ORDER BY given.key

-- name: page
-- The items of a user in the order in which they were learned, after the cursor.
SELECT i.seq, item_columns FROM memory_items AS i
WHERE i.user_id = :user_id AND (:project_id IS NULL OR i.project_id = :project_id)
  AND (i.created_at_epoch, i.seq) > (:created_at, :seq)
  AND (:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:tiers IS NULL OR i.tier IN (SELECT value FROM json_each(:tiers)))
  AND (:session_id IS NULL OR i.server_session_id = :session_id)
  AND (:with_superseded OR i.superseded_by IS NULL)
ORDER BY i.created_at_epoch, i.seq LIMIT :limit

-- name: links
SELECT l.relation, l.source_id = :id, item_columns FROM memory_links AS l
  CROSS JOIN memory_items AS i
    ON i.user_id = l.user_id AND i.id = CASE WHEN l.source_id = :id THEN l.target_id ELSE l.source_id END
WHERE l.user_id = :user_id AND (l.source_id = :id OR l.target_id = :id)
ORDER BY l.created_at_epoch, l.relation, i.id

-- name: history
SELECT version, text, kind, tier, change, changed_at_epoch FROM memory_versions
WHERE user_id = :user_id AND id = :id ORDER BY version

-- name: is_deleted
SELECT EXISTS (SELECT 1 FROM memory_tombstones WHERE user_id = :user_id AND id = :id)

-- name: tenants
SELECT DISTINCT user_id, project_id FROM memory_items
WHERE (user_id, project_id) > (:user_id, :project_id)
ORDER BY user_id, project_id LIMIT :limit
