-- name: enter_inbox
-- The first row for a message wins. It is replaced only by another message under the same id, or if it was closed by a
-- worker that had lost the message, or before a person requeued the message.
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

-- name: rarest
-- The rarest of these phrases that the index has, and how many of them it has. A common phrase is counted only up to
-- `count_to`, so that no phrase costs more than that.
SELECT phrase, count(*) OVER () FROM (
  SELECT given.key, given.value AS phrase, (
    SELECT count(*) FROM (SELECT 1 FROM memory_words WHERE memory_words MATCH given.value LIMIT :count_to)
  ) AS texts
  FROM json_each(:phrases) AS given
)
WHERE texts > 0 ORDER BY texts, key LIMIT :limit

-- name: search
SELECT -bm25(memory_words) AS score, item_columns
FROM memory_words JOIN memory_items AS i ON i.seq = memory_words.rowid
WHERE memory_words MATCH :expression
  AND i.user_id = :user_id
  AND i.superseded_by IS NULL
  AND (:cubes IS NULL OR i.project_id IN (SELECT value FROM json_each(:cubes)))
ORDER BY score DESC, i.created_at_epoch DESC
LIMIT :limit

-- name: get
SELECT 0.0, item_columns FROM memory_items AS i WHERE i.user_id = :user_id AND i.id = :id

-- name: items
SELECT 0.0, item_columns FROM json_each(:ids) AS given
  CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = given.value
WHERE i.project_id = :project_id
ORDER BY given.key

-- name: tenants
SELECT DISTINCT user_id, project_id FROM memory_items
WHERE (user_id, project_id) > (:user_id, :project_id)
ORDER BY user_id, project_id LIMIT :limit
