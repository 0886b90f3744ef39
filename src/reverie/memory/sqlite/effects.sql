-- name: last_seq
SELECT coalesce(max(seq), 0) FROM memory_items

-- name: insert_items
-- Followed by the values of each item, and `insert_items_end`. An item is left out if its id is known or was deleted, or
-- if all turns that it comes from were. Rows of NULL, which only fill the statement up, are skipped. No rows are
-- returned, because each would cost a switch of threads.
WITH given (
  seq, user_id, id, project_id, tenant, server_session_id, kind, tier, type, title, narrative, facts, concepts,
  device_id, agent_id, domain, text, tags, info, sources, importance, valid_from_epoch, valid_to_epoch,
  expires_at_epoch, created_at_epoch, updated_at_epoch, worth_epoch
) AS (VALUES

-- name: insert_items_end
)
INSERT INTO memory_items (
  seq, user_id, id, project_id, tenant, server_session_id, kind, tier, type, title, narrative, facts, concepts,
  device_id, agent_id, domain, text, tags, info, sources, importance, valid_from_epoch, valid_to_epoch,
  expires_at_epoch, created_at_epoch, updated_at_epoch, worth_epoch
)
SELECT * FROM given AS g
WHERE g.seq IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM memory_tombstones AS t WHERE t.user_id = g.user_id AND t.id = g.id)
  AND (g.sources = '[]' OR NOT EXISTS (SELECT 1 FROM memory_tombstones AS t WHERE t.user_id = g.user_id) OR EXISTS (
    SELECT 1 FROM json_each(g.sources) AS source WHERE NOT EXISTS (
      SELECT 1 FROM memory_tombstones AS t
      WHERE t.user_id = g.user_id AND t.id IN (
        (source.value ->> 'item_id') || '.' || (source.value ->> 'index'), source.value ->> 'item_id'
      )
    )
  ))
ON CONFLICT (user_id, id) DO NOTHING

-- name: count_additions
-- Counts new items as changes of their tenants; the parameter is a JSON array of [tenant, number].
UPDATE memory_tenants SET changes = changes + added.number
FROM (SELECT value ->> 0 AS tenant, value ->> 1 AS number FROM json_each(?)) AS added
WHERE memory_tenants.tenant = added.tenant

-- name: seqs_after
SELECT json_group_array(seq) FROM memory_items WHERE seq > ?

-- name: text_of
SELECT project_id, text FROM memory_items WHERE user_id = :user_id AND id = :id

-- name: version_of
SELECT seq, version FROM memory_items WHERE user_id = :user_id AND project_id = :project_id AND id = :id

-- name: id_of
SELECT id, version FROM memory_items WHERE seq = :seq

-- name: known
-- What the index and the counts need to know of an item.
SELECT seq, tenant, tier, superseded_by, server_session_id, kind, coalesce(valid_from_epoch, created_at_epoch),
  importance, text, title, narrative, facts, sources, valid_from_epoch
FROM memory_items WHERE seq = :seq

-- name: tenant_of
SELECT user_id, project_id FROM memory_items WHERE seq = ?

-- name: adopt
UPDATE memory_items
SET tenant = :tenant, worth_epoch = CASE WHEN superseded_by IS NULL
  THEN coalesce(accessed_at_epoch, created_at_epoch) + CAST(importance * :importance_ms AS INTEGER) END
WHERE seq = :seq

-- name: keep_version
INSERT OR REPLACE INTO memory_versions (user_id, id, version, text, kind, tier, change, changed_at_epoch)
SELECT user_id, id, version, text, kind, tier, :change, :now FROM memory_items WHERE seq = :seq

-- name: keep_versions
INSERT OR REPLACE INTO memory_versions (user_id, id, version, text, kind, tier, change, changed_at_epoch)
SELECT i.user_id, i.id, i.version, i.text, i.kind, i.tier, :change, :now
FROM json_each(:seqs) AS given CROSS JOIN memory_items AS i ON i.seq = given.value

-- name: is_revised
-- Whether a revision would change an item.
SELECT 1 FROM memory_items
WHERE seq = :seq AND (
  coalesce(:text, text) <> text OR coalesce(:kind, kind) <> kind OR coalesce(:title, title) IS NOT title
  OR coalesce(:tags, tags) <> tags OR coalesce(:info, info) IS NOT info OR coalesce(:sources, sources) <> sources
  OR coalesce(:importance, importance) <> importance
  OR coalesce(:valid_from, valid_from_epoch) IS NOT valid_from_epoch
  OR coalesce(:valid_to, valid_to_epoch) IS NOT valid_to_epoch
)

-- name: revise
UPDATE memory_items
SET text = coalesce(:text, text), kind = coalesce(:kind, kind), title = coalesce(:title, title),
    tags = coalesce(:tags, tags), info = coalesce(:info, info), sources = coalesce(:sources, sources),
    importance = coalesce(:importance, importance), valid_from_epoch = coalesce(:valid_from, valid_from_epoch),
    valid_to_epoch = coalesce(:valid_to, valid_to_epoch),
    worth_epoch = worth_epoch + CAST((coalesce(:importance, importance) - importance) * :importance_ms AS INTEGER),
    extracted_at_epoch = CASE WHEN :text IS NULL OR :text = text THEN extracted_at_epoch END,
    version = version + 1, updated_at_epoch = :now
WHERE seq = :seq

-- name: successor_of
SELECT seq, superseded_by, coalesce(valid_from_epoch, created_at_epoch) FROM memory_items
WHERE user_id = :user_id AND project_id = :project_id AND id = :id

-- name: supersede
UPDATE memory_items
SET superseded_by = :successor, was_open = coalesce(was_open, valid_to_epoch IS NULL), valid_to_epoch = coalesce(
      valid_to_epoch, max(:held_at, coalesce(valid_from_epoch, created_at_epoch))
    ),
    worth_epoch = NULL, version = version + 1, updated_at_epoch = :now
WHERE seq = :seq

-- name: shorten_sources
-- Leaves a merged item that was merged again its first source: its successor and its members have them all. Otherwise
-- something that is said every day would keep a list of all days for each day.
UPDATE memory_items SET sources = json_array(json_extract(sources, '$[0]'))
WHERE seq = :seq AND json_array_length(sources) > 1
  AND EXISTS (
    SELECT 1 FROM memory_links
    WHERE user_id = :user_id AND source_id = :successor AND relation = 'derived_from' AND target_id = memory_items.id
  )
  AND EXISTS (
    SELECT 1 FROM memory_links AS l
      CROSS JOIN memory_items AS m ON m.user_id = :user_id AND m.id = l.target_id AND m.superseded_by = l.source_id
    WHERE l.user_id = :user_id AND l.source_id = memory_items.id AND l.relation = 'derived_from'
  )

-- name: restore_sources
-- Gives a merged item the sources of all its members.
WITH RECURSIVE members (id, depth) AS (
  SELECT id, 0 FROM memory_items WHERE seq = :seq
  UNION
  SELECT m.id, members.depth + 1 FROM members
    CROSS JOIN memory_links AS l ON l.user_id = :user_id AND l.source_id = members.id AND l.relation = 'derived_from'
    CROSS JOIN memory_items AS m ON m.user_id = :user_id AND m.id = l.target_id AND m.superseded_by = members.id
)
UPDATE memory_items SET sources = (
  SELECT json_group_array(DISTINCT json(source.value))
  FROM members CROSS JOIN memory_items AS m ON m.user_id = :user_id AND m.id = members.id
    CROSS JOIN json_each(m.sources) AS source
)
WHERE seq = :seq AND (SELECT count(*) FROM members) > 1

-- name: revive
UPDATE memory_items
SET superseded_by = NULL, valid_to_epoch = CASE WHEN coalesce(was_open, 1) THEN NULL ELSE valid_to_epoch END,
    was_open = NULL, version = version + 1, updated_at_epoch = :now,
    worth_epoch = :now + CAST(importance * :importance_ms AS INTEGER)
WHERE seq = :seq

-- name: move
UPDATE memory_items SET tier = :tier, version = version + 1, updated_at_epoch = :now WHERE seq = :seq

-- name: places
-- Items that are counted in their tier: id, seq, version, tier.
SELECT i.id, i.seq, i.version, i.tier
FROM json_each(:ids) AS given CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = given.value
WHERE i.project_id = :project_id AND i.superseded_by IS NULL AND i.tenant IS NOT NULL

-- name: move_all
UPDATE memory_items SET tier = given.value ->> 1, version = version + 1, updated_at_epoch = :now
FROM json_each(:moves) AS given WHERE memory_items.seq = given.value ->> 0

-- name: least_worth
SELECT seq FROM memory_items WHERE tenant = :tenant AND tier = :tier AND worth_epoch IS NOT NULL
ORDER BY worth_epoch LIMIT :limit

-- name: touch
UPDATE memory_items
SET access_count = access_count + given.times, accessed_at_epoch = :now,
    worth_epoch = CASE WHEN worth_epoch IS NOT NULL THEN :now + CAST(importance * :importance_ms AS INTEGER) END
FROM (
  SELECT i.seq, count(*) AS times
  FROM json_each(:ids) AS own CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = own.value
  WHERE i.project_id = :project_id GROUP BY i.seq
) AS given
WHERE memory_items.seq = given.seq
RETURNING seq, tier = 'archive' AND superseded_by IS NULL

-- name: touch_cards
UPDATE memory_cards SET uses = uses + given.times
FROM (
  SELECT i.seq, count(*) AS times
  FROM json_each(:ids) AS own CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = own.value
  WHERE i.project_id = :project_id GROUP BY i.seq
) AS given
WHERE memory_cards.seq = given.seq

-- name: link
INSERT INTO memory_links (user_id, source_id, relation, target_id, created_at_epoch)
VALUES (:user_id, :source_id, :relation, :target_id, :now)
ON CONFLICT DO NOTHING RETURNING 1

-- name: link_all
INSERT INTO memory_links (user_id, source_id, relation, target_id, created_at_epoch)
SELECT :user_id, given.value ->> 0, given.value ->> 1, given.value ->> 2, :now FROM json_each(:links) AS given
WHERE true
ON CONFLICT DO NOTHING

-- name: count_items
SELECT count(*) FROM memory_items
WHERE user_id = :user_id AND project_id = :project_id AND id IN (SELECT value FROM json_each(:ids))

-- name: derived_items
-- The items that were derived from an item, and how many other sources of each are left.
SELECT i.seq, i.id, (
  SELECT count(*) FROM memory_links AS other
  WHERE other.user_id = :user_id AND other.source_id = i.id AND other.relation = 'derived_from'
    AND other.target_id <> :id
)
FROM memory_links AS l CROSS JOIN memory_items AS i ON i.user_id = l.user_id AND i.id = l.source_id
WHERE l.user_id = :user_id AND l.target_id = :id AND l.relation = 'derived_from'

-- name: merged_items
-- The items that were merged into one: it has superseded them, and is derived from them.
SELECT i.seq, i.id FROM memory_links AS l
  CROSS JOIN memory_items AS i ON i.user_id = l.user_id AND i.id = l.target_id AND i.superseded_by = l.source_id
WHERE l.user_id = :user_id AND l.source_id = :id AND l.relation = 'derived_from'

-- name: has_old_index
-- Another process may remove the old index at any time.
SELECT 1 FROM memory_state WHERE name = 'old_index'

-- name: delete_old_words
DELETE FROM memory_words WHERE rowid = :seq

-- name: delete_item
DELETE FROM memory_items WHERE seq = :seq

-- name: delete_unindexed
DELETE FROM memory_unindexed WHERE seq = :seq

-- name: delete_links
DELETE FROM memory_links WHERE user_id = :user_id AND (source_id = :id OR target_id = :id)

-- name: delete_versions
DELETE FROM memory_versions WHERE user_id = :user_id AND id = :id

-- name: delete_buffered
-- Almost every row has the id of its memory; the others are in an index of their own.
DELETE FROM buffer_zone WHERE rowid IN (
  SELECT rowid FROM buffer_zone WHERE user_id = :user_id AND buffer_id = :id AND blob_id = :id
  UNION ALL
  SELECT rowid FROM buffer_zone WHERE user_id = :user_id AND blob_id = :id AND blob_id <> buffer_id
)

-- name: read_again
-- A turn whose text has changed is read for facts again. A run that has taken the row cannot mark it done any more.
UPDATE buffer_zone
SET content = (
      SELECT json_object(
        'content', i.text, 'role', coalesce(i.sources ->> '$[0].role', 'user'), 'name', i.sources ->> '$[0].name',
        'chat_time', i.sources ->> '$[0].chat_time'
      )
      FROM memory_items AS i WHERE i.seq = :seq
    ),
    created_at = CASE WHEN status = 'done' THEN :now ELSE created_at END,
    status = 'idle', failures = 0, error = NULL, lease_token = NULL, lease_holder = NULL, lease_until = NULL,
    updated_at = :now
WHERE rowid IN (
  SELECT rowid FROM buffer_zone WHERE user_id = :user_id AND buffer_id = :id AND blob_id = :id
  UNION ALL
  SELECT rowid FROM buffer_zone WHERE user_id = :user_id AND blob_id = :id AND blob_id <> buffer_id
)

-- name: bury_id
INSERT INTO memory_tombstones (user_id, id, deleted_at_epoch) VALUES (:user_id, :id, :now) ON CONFLICT DO NOTHING

-- name: deleted_among
SELECT t.id FROM json_each(:ids) AS given
  CROSS JOIN memory_tombstones AS t ON t.user_id = :user_id AND t.id = given.value
