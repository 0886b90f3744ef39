-- name: changes
SELECT changes FROM memory_tenants WHERE user_id = ? AND project_id = ?

-- name: keep
INSERT INTO memory_searches (user_id, project_id, query, changes, hits, made_at_epoch)
SELECT :user_id, :project_id, :query, :changes, :hits, :now
WHERE :changes = (SELECT changes FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id)
ON CONFLICT (user_id, project_id, query) DO UPDATE
SET changes = excluded.changes, hits = excluded.hits, made_at_epoch = excluded.made_at_epoch

-- name: forget
-- Removes searches that a change has made worthless, and the oldest beyond the limit.
DELETE FROM memory_searches WHERE user_id = :user_id AND project_id = :project_id AND (
  changes <> (SELECT changes FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id)
  OR query IN (
    SELECT query FROM memory_searches WHERE user_id = :user_id AND project_id = :project_id
    ORDER BY made_at_epoch DESC, query LIMIT -1 OFFSET :kept
  )
)

-- name: kept
SELECT s.project_id, s.hits FROM memory_tenants AS t
  CROSS JOIN memory_searches AS s
    ON s.user_id = t.user_id AND s.project_id = t.project_id AND s.query = :query AND s.changes = t.changes
WHERE t.user_id = :user_id AND (:cubes IS NULL OR t.project_id IN (SELECT value FROM json_each(:cubes)))
