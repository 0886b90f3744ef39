-- name: state
SELECT name, value FROM memory_state

-- name: set_state
INSERT INTO memory_state (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: drop_state
DELETE FROM memory_state WHERE name = ?

-- name: has_old_items
SELECT EXISTS (SELECT 1 FROM memory_items WHERE tenant IS NULL)

-- name: old_items
SELECT seq FROM memory_items WHERE tenant IS NULL LIMIT :limit

-- name: named_seqs
SELECT seq FROM memory_items
WHERE user_id = :user_id AND project_id = :project_id AND id IN (SELECT value FROM json_each(:ids))

-- name: unindexed
SELECT seq FROM memory_unindexed LIMIT :limit

-- name: next_seqs
-- The next items of a pass over all items.
SELECT seq FROM memory_items WHERE seq > :cursor ORDER BY seq LIMIT :limit

-- name: known
-- Items as the index needs them (see `known` of effects.sql), and by what their cards were made.
SELECT i.seq, i.tenant, i.tier, i.superseded_by, i.server_session_id, i.kind,
  coalesce(i.valid_from_epoch, i.created_at_epoch), i.importance, i.text, i.title, i.narrative, i.facts, i.sources,
  i.valid_from_epoch, c.tokenizer, c.embedder
FROM json_each(:seqs) AS given CROSS JOIN memory_items AS i ON i.seq = given.value
  LEFT JOIN memory_cards AS c ON c.seq = i.seq

-- name: indexed
DELETE FROM memory_unindexed WHERE seq = ?

-- name: counts
SELECT
  (SELECT count(*) FROM memory_items WHERE tenant IS NULL),
  (SELECT count(*) FROM memory_unindexed),
  (SELECT count(*) FROM memory_items WHERE seq > :cursor),
  (SELECT count(*) FROM memory_items)

-- name: has_old_index
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'memory_words')

-- name: shrink_old_index
DELETE FROM memory_words_data WHERE id IN (SELECT id FROM memory_words_data LIMIT :limit) RETURNING 1

-- name: drop_old_index
DROP TABLE memory_words

-- name: drop_bits
DROP TABLE IF EXISTS memory_bits

-- name: new_bits
CREATE TABLE memory_bits (
  shelf INTEGER NOT NULL,
  embedder INTEGER NOT NULL,
  block INTEGER NOT NULL,
  seqs BLOB NOT NULL,
  bits BLOB NOT NULL,
  PRIMARY KEY (shelf, embedder, block)
) WITHOUT ROWID
