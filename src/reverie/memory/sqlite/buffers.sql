-- Statements about rows that are not done name their index: without statistics, SQLite would read the done rows, too.

-- name: last_place
-- The last place given in any buffer. Places are also the numbers of the rows.
SELECT coalesce(max(rowid), 0) FROM buffer_zone

-- name: insert_rows
-- Followed by the values of each row, and `insert_rows_end`. A row is left out if its id is known, or if the memory that
-- keeps its content was deleted. Rows of NULL, which only fill the statement up, are skipped.
WITH given (
  user_id, buffer_id, project_id, blob_type, blob_id, place, buffer_size, created_at, metadata, content
) AS (VALUES

-- name: insert_rows_end
)
INSERT INTO buffer_zone (
  rowid, user_id, buffer_id, project_id, blob_type, blob_id, place, buffer_size, status, created_at, updated_at,
  metadata, content
)
SELECT g.place, g.user_id, g.buffer_id, g.project_id, g.blob_type, g.blob_id, g.place, g.buffer_size, 'idle', g.created_at,
  g.created_at, g.metadata, g.content
FROM given AS g
WHERE g.user_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM memory_tombstones AS t WHERE t.user_id = g.user_id AND t.id = g.blob_id)
ON CONFLICT (user_id, buffer_id) DO NOTHING

-- name: not_held
-- The first row of an effect that is not among those just finished.
SELECT buffer_id FROM buffer_zone
WHERE user_id = :user_id AND buffer_id IN (SELECT value FROM json_each(:buffer_ids))
  AND buffer_id NOT IN (SELECT value FROM json_each(:finished))
ORDER BY place LIMIT 1

-- name: finish_rows
UPDATE buffer_zone
SET status = 'done', content = '', error = NULL, lease_token = NULL, lease_holder = NULL, lease_until = NULL,
    updated_at = :now
WHERE user_id = :user_id AND buffer_id IN (SELECT value FROM json_each(:buffer_ids))
  AND +project_id = :project_id AND +blob_type = :blob_type AND status = 'processing' AND lease_token = :token
RETURNING buffer_id

-- name: states
-- Rows, tokens and the oldest time of each of some buffers; `buffers` is a JSON array of [user, cube, type].
SELECT b.key, count(*), sum(z.buffer_size), min(z.created_at)
FROM json_each(:buffers) AS b CROSS JOIN buffer_zone AS z INDEXED BY idx_buffer_zone_open
WHERE z.user_id = b.value ->> 0 AND z.project_id = b.value ->> 1 AND z.blob_type = b.value ->> 2 AND z.status <> 'done'
  AND (z.status = 'idle' OR (z.status = 'processing' AND z.lease_until <= :now))
GROUP BY b.key

-- name: taken
-- Of the rows that are taken: whether another holder has some under a lease that is not over, whether a lease is over,
-- and whether the holder has taken some before.
SELECT
  coalesce(max(lease_until > :now AND lease_holder <> :holder), 0),
  coalesce(max(lease_until <= :now AND lease_holder <> :holder), 0),
  coalesce(max(lease_holder = :holder), 0)
FROM buffer_zone INDEXED BY idx_buffer_zone_open
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND status = 'processing'

-- name: free_rows
-- The rows that a holder may take, oldest first; `blob_ids` is null or a JSON array. With `own`, only those that the
-- holder has taken before.
SELECT buffer_id, buffer_size FROM buffer_zone INDEXED BY idx_buffer_zone_open
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND (status = 'idle' OR (status = 'processing' AND (lease_until <= :now OR lease_holder = :holder)))
  AND (NOT :own OR (status = 'processing' AND lease_holder = :holder))
  AND (:blob_ids IS NULL OR blob_id IN (SELECT value FROM json_each(:blob_ids)))
ORDER BY place

-- name: leave_own_rows
-- Rows that the holder took before, and does not take again, are idle.
UPDATE buffer_zone INDEXED BY idx_buffer_zone_open
SET status = 'idle', lease_token = NULL, lease_holder = NULL, lease_until = NULL, updated_at = :now
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND status = 'processing' AND lease_holder = :holder

-- name: give_up_lost_rows
-- A row whose last run never ended counts one failure more; with `most` failures it is given up.
UPDATE buffer_zone INDEXED BY idx_buffer_zone_open
SET status = 'failed', failures = failures + 1, error = :reason,
    lease_token = NULL, lease_holder = NULL, lease_until = NULL, updated_at = :now
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND status = 'processing' AND lease_until <= :now AND lease_holder <> :holder
  AND :most > 0 AND failures + 1 >= :most

-- name: take_rows
-- A row that is taken from another holder counts a failure: the run of that holder has never ended.
UPDATE buffer_zone
SET failures = failures + (status = 'processing'), status = 'processing', lease_token = :token, lease_holder = :holder, lease_until = :lease_until, updated_at = :now
WHERE user_id = :user_id AND buffer_id IN (SELECT value FROM json_each(:buffer_ids))
  AND (status = 'idle' OR (status = 'processing' AND lease_until <= :now))
RETURNING buffer_id, blob_id, content, buffer_size, status, failures, metadata, created_at, updated_at

-- name: release_rows
-- A failure is counted if there is a `reason`; a row with `most` failures is given up.
UPDATE buffer_zone INDEXED BY idx_buffer_zone_open
SET status = CASE WHEN :reason IS NOT NULL AND :most > 0 AND failures + 1 >= :most THEN 'failed' ELSE 'idle' END,
    failures = failures + (:reason IS NOT NULL), error = coalesce(:reason, error),
    lease_token = NULL, lease_holder = NULL, lease_until = NULL, updated_at = :now
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND status = 'processing' AND lease_token = :token

-- name: full_buffers
SELECT user_id, project_id, blob_type, count(*), sum(buffer_size), min(created_at)
FROM buffer_zone INDEXED BY idx_buffer_zone_open
WHERE status <> 'done' AND (status = 'idle' OR (status = 'processing' AND lease_until <= :now))
GROUP BY user_id, project_id, blob_type
HAVING sum(buffer_size) >= :tokens OR min(created_at) < :before
ORDER BY min(created_at) LIMIT :limit

-- name: failed_buffers
SELECT user_id, project_id, blob_type, count(*), sum(buffer_size), min(created_at)
FROM buffer_zone INDEXED BY idx_buffer_zone_open
WHERE status <> 'done' AND status = 'failed'
GROUP BY user_id, project_id, blob_type
LIMIT :limit

-- name: rows
SELECT buffer_id, blob_id, content, buffer_size, status, failures, metadata, created_at, updated_at FROM buffer_zone
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type
  AND (:status IS NULL OR status = :status)
ORDER BY place LIMIT :limit

-- name: open_rows
SELECT buffer_id, blob_id, content, buffer_size, status, failures, metadata, created_at, updated_at
FROM buffer_zone INDEXED BY idx_buffer_zone_open
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND (
    status = :status
    OR (:status = 'free' AND (status = 'idle' OR (status = 'processing' AND lease_until <= :now)))
  )
ORDER BY place LIMIT :limit

-- name: retry_failed
UPDATE buffer_zone INDEXED BY idx_buffer_zone_open SET status = 'idle', failures = 0, error = NULL, updated_at = :now
WHERE user_id = :user_id AND project_id = :project_id AND blob_type = :blob_type AND status <> 'done'
  AND status = 'failed'
RETURNING 1

-- name: prune
DELETE FROM buffer_zone WHERE (user_id, buffer_id) IN (
  SELECT user_id, buffer_id FROM buffer_zone WHERE status = 'done' AND updated_at < :before
  ORDER BY updated_at LIMIT :limit
)
RETURNING 1
