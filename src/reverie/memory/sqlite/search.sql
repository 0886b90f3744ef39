-- name: shelves
SELECT s.shelf, t.tenant, s.items, s.words
FROM memory_tenants AS t CROSS JOIN memory_shelves AS s ON s.shelf BETWEEN 2 * t.tenant AND 2 * t.tenant + :past
WHERE t.user_id = :user_id AND (:cubes IS NULL OR t.project_id IN (SELECT value FROM json_each(:cubes)))

-- name: names
SELECT n.name FROM memory_tenants AS t CROSS JOIN memory_names AS n ON n.tenant = t.tenant
WHERE t.user_id = :user_id AND (:cubes IS NULL OR t.project_id IN (SELECT value FROM json_each(:cubes)))
LIMIT :limit

-- name: has_kinds
-- Whether the user has any items of these kinds, in whatever tier, indexed or not.
SELECT EXISTS (
  SELECT 1 FROM memory_tenants AS t CROSS JOIN json_each(:kinds) AS k
    CROSS JOIN memory_items AS i INDEXED BY idx_memory_items_kind ON i.tenant = t.tenant AND i.kind = k.value
  WHERE t.user_id = :user_id AND (:cubes IS NULL OR t.project_id IN (SELECT value FROM json_each(:cubes)))
)

-- name: session_numbers
SELECT session FROM memory_sessions
WHERE tenant IN (SELECT value FROM json_each(:tenants)) AND server_session_id = :session_id

-- name: passes_filters
-- The part of a statement that says which items `i` pass the filters of a search.
(:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)))
  AND i.kind NOT IN (SELECT value FROM json_each(:without_kinds))
  AND (:tiers IS NULL OR i.tier IN (SELECT value FROM json_each(:tiers)))
  AND (:tiers IS NOT NULL OR :as_of IS NOT NULL OR i.tier <> 'archive')
  AND (:tags IS NULL OR EXISTS (
    SELECT 1 FROM json_each(i.tags) AS own JOIN json_each(:tags) AS given ON own.value = given.value
  ))
  AND (:device_id IS NULL OR i.device_id = :device_id)
  AND (:agent_id IS NULL OR i.agent_id = :agent_id)
  AND (:since IS NULL OR coalesce(i.valid_from_epoch, i.created_at_epoch) >= :since)
  AND (:until IS NULL OR coalesce(i.valid_from_epoch, i.created_at_epoch) < :until)
  AND (
    (:as_of IS NULL AND i.superseded_by IS NULL)
    OR (
      coalesce(i.valid_from_epoch, i.created_at_epoch) <= :as_of
      AND (i.valid_to_epoch IS NULL OR i.valid_to_epoch > :as_of)
    )
  )

-- name: allowed
SELECT i.seq FROM memory_items AS i
WHERE i.tenant IN (SELECT value FROM json_each(:tenants)) AND passes_filters

-- name: allowed_in_tiers
-- The same for given tiers: only items in these are looked at.
SELECT i.seq FROM json_each(:tenants) AS t CROSS JOIN json_each(:tiers) AS own
  CROSS JOIN memory_items AS i ON i.tenant = t.value AND i.tier = own.value
WHERE passes_filters

-- name: has_archive
SELECT EXISTS (
  SELECT 1 FROM json_each(:tenants) AS t
    CROSS JOIN memory_tiers AS r ON r.tenant = t.value AND r.tier = 'archive' AND r.items > 0
)

-- name: count_kinds
SELECT count(*) FROM (
  SELECT 1 FROM json_each(:tenants) AS t CROSS JOIN json_each(:kinds) AS k
    CROSS JOIN memory_items AS i ON i.tenant = t.value AND i.kind = k.value
  LIMIT :most
)

-- name: count_words
SELECT given.value, (
  SELECT count(*) FROM (SELECT 1 FROM memory_postings WHERE shelf = ?1 AND word = given.value LIMIT ?3)
)
FROM json_each(?2) AS given

-- name: postings
SELECT seq, times, length FROM memory_postings WHERE shelf = ? AND word = ?

-- name: blocks
SELECT seqs, bits FROM memory_bits WHERE shelf = ? AND embedder = ?

-- name: vectors
SELECT c.vector FROM json_each(:seqs) AS given
  CROSS JOIN memory_cards AS c ON c.seq = given.value AND c.embedder = :embedder

-- name: has_lost_vectors
SELECT EXISTS (
  SELECT 1 FROM json_each(:seqs) AS given CROSS JOIN memory_cards AS c ON c.seq = given.value
    LEFT JOIN memory_bits AS b ON b.shelf = c.shelf AND b.embedder = c.embedder AND b.block = c.block
  WHERE c.embedder = :embedder AND b.block IS NULL
)

-- name: cards
SELECT c.seq, c.session, c.place, c.speaker, c.kind, c.held_at_epoch, c.importance, c.uses, c.asks, c.length,
  CASE WHEN c.embedder = :embedder THEN c.vector END
FROM json_each(:seqs) AS given CROSS JOIN memory_cards AS c ON c.seq = given.value

-- name: cards_at
SELECT c.seq, c.session, c.place, c.speaker, c.kind, c.held_at_epoch, c.importance, c.uses, c.asks, c.length,
  CASE WHEN c.embedder = :embedder THEN c.vector END, c.shelf
FROM json_each(:places) AS given
  CROSS JOIN memory_cards AS c ON c.session = given.value ->> 0 AND c.place = given.value ->> 1

-- name: words_of
SELECT c.seq, c.words FROM json_each(:seqs) AS given CROSS JOIN memory_cards AS c ON c.seq = given.value

-- name: items
SELECT i.seq, item_columns FROM json_each(:seqs) AS given CROSS JOIN memory_items AS i ON i.seq = given.value

-- name: derived
-- Facts and their turns, but for turns that have changed and were not read again: the facts do not say what these say.
SELECT i.seq, t.seq FROM json_each(:seqs) AS given
  CROSS JOIN memory_items AS i ON i.seq = given.value AND i.kind <> 'turn'
  CROSS JOIN memory_links AS l ON l.user_id = i.user_id AND l.source_id = i.id AND l.relation = 'derived_from'
  CROSS JOIN memory_items AS t ON t.user_id = l.user_id AND t.id = l.target_id AND t.kind = 'turn'
    AND (t.version = 1 OR t.extracted_at_epoch IS NOT NULL)

-- name: around
SELECT item_columns FROM memory_items AS own
  CROSS JOIN memory_cards AS c ON c.seq = own.seq
  CROSS JOIN memory_cards AS near ON near.session = c.session
    AND near.place BETWEEN c.place - :reach AND c.place + :reach AND near.seq <> c.seq AND near.shelf = c.shelf
  CROSS JOIN memory_items AS i ON i.seq = near.seq
WHERE own.user_id = :user_id AND own.id = :id
ORDER BY near.place

-- name: linked
-- The living items that can be reached from an item, by the number of links between them.
WITH RECURSIVE reached (id, distance) AS (
  SELECT :id, 0
  UNION
  SELECT CASE WHEN l.source_id = r.id THEN l.target_id ELSE l.source_id END, r.distance + 1
  FROM reached AS r CROSS JOIN memory_links AS l
    ON l.user_id = :user_id AND (l.source_id = r.id OR l.target_id = r.id)
  WHERE r.distance < :hops
)
SELECT item_columns FROM (SELECT id, min(distance) AS distance FROM reached WHERE id <> :id GROUP BY id) AS r
  CROSS JOIN memory_items AS i ON i.user_id = :user_id AND i.id = r.id
WHERE i.superseded_by IS NULL
ORDER BY r.distance, i.seq LIMIT :limit

-- name: old_index_hits
SELECT i.seq, i.text FROM memory_words CROSS JOIN memory_items AS i ON i.seq = memory_words.rowid
WHERE memory_words MATCH :expression AND i.user_id = :user_id AND i.tenant IS NULL
  AND (:cubes IS NULL OR i.project_id IN (SELECT value FROM json_each(:cubes)))
  AND passes_filters
ORDER BY bm25(memory_words) LIMIT :limit
