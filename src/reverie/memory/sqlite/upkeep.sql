-- name: find_pass
SELECT pass, undone_epoch FROM memory_passes WHERE user_id = :user_id AND project_id = :project_id AND id = :pass_id

-- name: begin_pass
INSERT INTO memory_passes (user_id, project_id, id, label, began_epoch)
VALUES (:user_id, :project_id, :pass_id, :label, :now) RETURNING pass

-- name: forget_changes
-- Forget what the oldest passes of a tenant have changed: only the last ones can be undone.
DELETE FROM memory_pass_changes WHERE pass IN (
  SELECT pass FROM memory_passes WHERE user_id = :user_id AND project_id = :project_id
  ORDER BY pass DESC LIMIT -1 OFFSET :kept
)

-- name: forget_passes
DELETE FROM memory_passes WHERE pass IN (
  SELECT pass FROM memory_passes WHERE user_id = :user_id AND project_id = :project_id
  ORDER BY pass DESC LIMIT -1 OFFSET :kept
)

-- name: note_change
INSERT INTO memory_pass_changes (pass, number, change, id, other, relation)
SELECT :pass, coalesce(max(number), 0) + 1, :change, :id, :other, :relation
FROM memory_pass_changes WHERE pass = :pass

-- name: changes
-- The created ones come first: without them, others have room to come back.
SELECT change, id, other, relation FROM memory_pass_changes WHERE pass = :pass
ORDER BY change = 'created' DESC, number DESC

-- name: edited
-- Which of the items that a pass has made were changed since by somebody, or replaced by something else than the pass.
SELECT DISTINCT c.id FROM memory_pass_changes AS c
  CROSS JOIN memory_versions AS v ON v.user_id = :user_id AND v.id = c.id AND v.change = 'revise'
WHERE c.pass = :pass AND c.change = 'created'
UNION
SELECT c.id FROM memory_pass_changes AS c
  CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = c.id AND i.superseded_by IS NOT NULL
WHERE c.pass = :pass AND c.change = 'created' AND NOT EXISTS (
  SELECT 1 FROM memory_pass_changes AS own
  WHERE own.pass = :pass AND own.change = 'superseded' AND own.id = c.id AND own.other = i.superseded_by
)

-- name: alive
SELECT seq, tier, superseded_by FROM memory_items
WHERE user_id = :user_id AND project_id = :project_id AND id = :id

-- name: unlink
DELETE FROM memory_links
WHERE user_id = :user_id AND source_id = :source_id AND relation = :relation AND target_id = :target_id

-- name: rest
-- Lets an item count as used now, so that it is not archived again at once.
UPDATE memory_items SET worth_epoch = :now + CAST(importance * :importance_ms AS INTEGER)
WHERE seq = :seq AND worth_epoch IS NOT NULL AND tier <> 'archive'

-- name: mark_undone
UPDATE memory_passes SET undone_epoch = :now WHERE pass = :pass

-- name: pass_done
INSERT INTO memory_upkeep (user_id, project_id, label, succeeded_epoch, fresh)
VALUES (:user_id, :project_id, :label, :until, 0)
ON CONFLICT (user_id, project_id, label) DO UPDATE
SET succeeded_epoch = max(excluded.succeeded_epoch, coalesce(succeeded_epoch, 0)), fresh = 0

-- name: judge
INSERT INTO memory_judged (user_id, project_id, key)
SELECT :user_id, :project_id, value FROM json_each(:keys) WHERE true ON CONFLICT DO NOTHING

-- name: judged
SELECT given.value FROM json_each(:keys) AS given
  CROSS JOIN memory_judged AS j ON j.user_id = :user_id AND j.project_id = :project_id AND j.key = given.value

-- name: succeeded
SELECT succeeded_epoch FROM memory_upkeep WHERE user_id = :user_id AND project_id = :project_id AND label = :label

-- name: passes
SELECT p.id, p.label, p.began_epoch, p.undone_epoch,
  (SELECT count(*) FROM memory_pass_changes AS c WHERE c.pass = p.pass)
FROM memory_passes AS p WHERE p.user_id = :user_id AND p.project_id = :project_id
ORDER BY p.pass DESC LIMIT :limit

-- name: changed
-- The living items of a tenant that were written, changed or read for facts since a moment, in the order of their
-- numbers. Upkeep leaves turns alone until they are read.
SELECT i.seq, item_columns FROM memory_items AS i
WHERE i.tenant = (SELECT tenant FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id)
  AND i.tier IN ('working', 'long_term') AND i.superseded_by IS NULL
  AND max(i.updated_at_epoch, coalesce(i.extracted_at_epoch, 0)) >= :since AND i.seq > :after
ORDER BY +i.seq LIMIT :limit

-- name: coldest
-- The items of a tier of least worth, which nobody has used since a moment. `worth_epoch` is the moment of the last use,
-- or of the writing, later by the importance: what has not been used since `before` is worth less than the sum.
SELECT item_columns FROM memory_items AS i
WHERE i.tenant = (SELECT tenant FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id)
  AND i.tier = :tier AND i.worth_epoch < :before + :importance_ms
  AND i.worth_epoch - CAST(i.importance * :importance_ms AS INTEGER) < :before
ORDER BY i.worth_epoch LIMIT :limit

-- name: tiers
SELECT r.tier, r.items FROM memory_tenants AS t CROSS JOIN memory_tiers AS r ON r.tenant = t.tenant
WHERE t.user_id = :user_id AND t.project_id = :project_id AND r.items > 0

-- name: cards
SELECT c.seq, i.id, i.text, CASE WHEN c.embedder = :embedder THEN c.vector END
FROM json_each(:ids) AS given
  CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = given.value
  CROSS JOIN memory_cards AS c ON c.seq = i.seq
WHERE i.project_id = :project_id

-- name: cards_by_seq
SELECT c.seq, i.id, i.text, CASE WHEN c.embedder = :embedder THEN c.vector END
FROM json_each(:seqs) AS given
  CROSS JOIN memory_cards AS c ON c.seq = given.value
  CROSS JOIN memory_items AS i ON i.seq = c.seq

-- name: shelf
SELECT 2 * tenant FROM memory_tenants WHERE user_id = :user_id AND project_id = :project_id

-- name: blocks
SELECT seqs, bits FROM memory_bits WHERE shelf = ? AND embedder = ?

-- name: rarest
-- The rarest words of an item, each counted up to `most`.
SELECT given.value, (
  SELECT count(*) FROM (SELECT 1 FROM memory_postings WHERE shelf = :shelf AND word = given.value LIMIT :most)
) AS times
FROM json_each(:words) AS given ORDER BY times, given.key LIMIT :limit

-- name: with_word
SELECT seq FROM memory_postings WHERE shelf = ? AND word = ? LIMIT ?

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM memory_items

-- name: counted_to
SELECT value FROM memory_state WHERE name = 'upkeep_counted'

-- name: set_counted_to
INSERT OR REPLACE INTO memory_state (name, value) VALUES ('upkeep_counted', ?)

-- name: count_fresh
-- Items that replace others make a tenant no larger: most were written by upkeep itself.
INSERT INTO memory_upkeep (user_id, project_id, label, fresh)
SELECT i.user_id, i.project_id, l.value, count(*)
FROM memory_items AS i CROSS JOIN json_each(:labels) AS l
WHERE i.seq > :after AND i.seq <= :last AND NOT EXISTS (
  SELECT 1 FROM memory_links AS k WHERE k.user_id = i.user_id AND k.source_id = i.id AND k.relation = 'supersedes'
)
GROUP BY i.user_id, i.project_id, l.value
ON CONFLICT (user_id, project_id, label) DO UPDATE SET fresh = fresh + excluded.fresh

-- name: grown
-- Tenants that have grown by `least` items since the last pass; by `few`, if they are near the limit of a tier.
SELECT u.user_id, u.project_id FROM memory_upkeep AS u
WHERE u.label = :label AND u.fresh >= :few AND (
  u.fresh >= :least OR EXISTS (
    SELECT 1 FROM memory_tenants AS t CROSS JOIN memory_tiers AS r ON r.tenant = t.tenant AND r.tier = 'long_term'
    WHERE t.user_id = u.user_id AND t.project_id = u.project_id AND r.items >= :near
  )
)
ORDER BY u.fresh DESC LIMIT :limit
