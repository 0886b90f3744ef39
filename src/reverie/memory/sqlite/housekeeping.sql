-- name: expired
-- Items whose time is over, the newest first: what was made from others comes before them.
SELECT i.id, i.version FROM memory_items AS i
WHERE i.tenant = (SELECT tenant FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id)
  AND (
    i.expires_at_epoch <= :now
    OR :has_rules AND i.created_at_epoch <= :now - coalesce(
      (SELECT value FROM json_each(:rules) WHERE key = i.kind || '/' || i.tier),
      (SELECT value FROM json_each(:rules) WHERE key = i.kind || '/*'),
      (SELECT value FROM json_each(:rules) WHERE key = '*/' || i.tier)
    )
  )
ORDER BY i.seq DESC LIMIT :limit

-- name: tenants_expired
SELECT DISTINCT user_id, project_id FROM memory_items
WHERE expires_at_epoch <= :now AND (user_id, project_id) > (:user_id, :project_id)
ORDER BY user_id, project_id LIMIT :limit

-- name: tenants_uncounted
SELECT user_id, project_id FROM memory_tenants
WHERE changes <> counted AND (user_id, project_id) > (:user_id, :project_id)
ORDER BY user_id, project_id LIMIT :limit

-- name: cubes
SELECT project_id FROM memory_tenants WHERE user_id = ? ORDER BY project_id

-- name: counts
SELECT kind, tier, count(*) FROM memory_items
WHERE tenant = (SELECT tenant FROM memory_tenants WHERE user_id = ? AND project_id = ?) AND superseded_by IS NULL
GROUP BY kind, tier

-- name: note_counted
UPDATE memory_tenants SET counted = :changes WHERE user_id = :user_id AND project_id = :project_id

-- name: last_counts
SELECT counts FROM memory_statistics WHERE user_id = :user_id AND project_id = :project_id AND day <= :day
ORDER BY day DESC LIMIT 1

-- name: keep_counts
INSERT INTO memory_statistics (user_id, project_id, day, items, counts)
VALUES (:user_id, :project_id, :day, :items, :counts)
ON CONFLICT (user_id, project_id, day) DO UPDATE SET items = excluded.items, counts = excluded.counts

-- name: forget_counts
DELETE FROM memory_statistics WHERE user_id = :user_id AND project_id = :project_id AND day < (
  SELECT max(day) FROM memory_statistics WHERE user_id = :user_id AND project_id = :project_id AND day <= :oldest
)

-- name: add_total
INSERT INTO memory_totals (kind, tier, day, items)
SELECT :kind, :tier, :day, :difference + coalesce((
  SELECT items FROM memory_totals WHERE kind = :kind AND tier = :tier AND day <= :day ORDER BY day DESC LIMIT 1
), 0)
ON CONFLICT (kind, tier, day) DO UPDATE SET items = excluded.items

-- name: forget_totals
DELETE FROM memory_totals WHERE kind = :kind AND tier = :tier AND day < (
  SELECT max(day) FROM memory_totals WHERE kind = :kind AND tier = :tier AND day <= :oldest
)

-- name: counted
SELECT s.user_id, s.project_id, s.counts, coalesce((
  SELECT b.items FROM memory_statistics AS b
  WHERE b.user_id = s.user_id AND b.project_id = s.project_id AND b.day <= :day_before ORDER BY b.day DESC LIMIT 1
), 0), coalesce((
  SELECT b.items FROM memory_statistics AS b
  WHERE b.user_id = s.user_id AND b.project_id = s.project_id AND b.day <= :week_before ORDER BY b.day DESC LIMIT 1
), 0)
FROM memory_statistics AS s
WHERE (:user_id IS NULL OR s.user_id = :user_id) AND (:project_id IS NULL OR s.project_id = :project_id)
  AND s.day = (
    SELECT max(l.day) FROM memory_statistics AS l
    WHERE l.user_id = s.user_id AND l.project_id = s.project_id AND l.day <= :day
  )
ORDER BY s.items DESC, s.user_id, s.project_id LIMIT :limit

-- name: totals
-- The last sum of each kind and tier until a day.
SELECT t.kind, t.tier, t.items FROM memory_totals AS t
WHERE t.items <> 0 AND t.day = (
  SELECT max(l.day) FROM memory_totals AS l WHERE l.kind = t.kind AND l.tier = t.tier AND l.day <= :day
)
ORDER BY t.kind, t.tier

-- name: count_tenants
SELECT count(DISTINCT tenant) FROM memory_tiers WHERE items > 0
