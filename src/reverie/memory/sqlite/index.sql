-- name: find_tenant
SELECT tenant FROM memory_tenants WHERE user_id = ? AND project_id = ?

-- name: find_tenants
-- The numbers of tenants; each is given as its user and its cube. The answer is one row, because each row costs a
-- switch of threads.
SELECT json_group_array(json_array(t.user_id, t.project_id, t.tenant))
FROM json_each(?) AS given
  CROSS JOIN memory_tenants AS t ON t.user_id = given.value ->> 0 AND t.project_id = given.value ->> 1

-- name: new_tenant
INSERT INTO memory_tenants (user_id, project_id) VALUES (?, ?) RETURNING tenant

-- name: take_places
-- Takes the next places in conversations. Each is given as its tenant, its id and how many places it needs.
INSERT INTO memory_sessions (tenant, server_session_id, places)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
ON CONFLICT (tenant, server_session_id) DO UPDATE SET places = places + excluded.places

-- name: places_taken
-- The number of each of these conversations, and its last place, in one row.
SELECT json_group_array(json_array(s.tenant, s.server_session_id, s.session, s.places))
FROM json_each(?) AS given
  CROSS JOIN memory_sessions AS s ON s.tenant = given.value ->> 0 AND s.server_session_id = given.value ->> 1

-- name: know_names
INSERT INTO memory_names (tenant, name) SELECT value ->> 0, value ->> 1 FROM json_each(?) WHERE true
ON CONFLICT DO NOTHING

-- name: still_speaks
-- Whether a card of a tenant has this speaker; the word is one of the name.
SELECT EXISTS (
  SELECT 1 FROM memory_postings AS p CROSS JOIN memory_cards AS c ON c.seq = p.seq
  WHERE p.shelf IN (?1, ?2) AND p.word = ?3 AND c.speaker = ?4
)

-- name: still_speaks_at_all
SELECT EXISTS (
  SELECT 1 FROM memory_items AS i CROSS JOIN memory_cards AS c ON c.seq = i.seq
  WHERE i.tenant = ? AND c.speaker = ?
)

-- name: forget_name
DELETE FROM memory_names WHERE tenant = ? AND name = ?

-- name: count_tier
INSERT INTO memory_tiers (tenant, tier, items) VALUES (?, ?, ?)
ON CONFLICT (tenant, tier) DO UPDATE SET items = items + excluded.items
RETURNING items

-- name: count_tiers
INSERT INTO memory_tiers (tenant, tier, items) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
ON CONFLICT (tenant, tier) DO UPDATE SET items = items + excluded.items

-- name: tiers
SELECT json_group_array(json_array(tenant, tier, items)) FROM memory_tiers
WHERE tenant IN (SELECT value FROM json_each(?))

-- name: count_shelf
INSERT INTO memory_shelves (shelf, items, words) VALUES (?, ?, ?)
ON CONFLICT (shelf) DO UPDATE SET items = items + excluded.items, words = words + excluded.words

-- name: count_shelves
INSERT INTO memory_shelves (shelf, items, words)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
ON CONFLICT (shelf) DO UPDATE SET items = items + excluded.items, words = words + excluded.words

-- name: put_cards
-- Followed by the values of each card, and `put_cards_end`; rows of NULL are skipped.
WITH given (
  seq, shelf, session, place, speaker, kind, held_at_epoch, importance, asks, length, words, tokenizer, embedder, vector,
  block
) AS (VALUES

-- name: put_cards_end
)
INSERT INTO memory_cards (
  seq, shelf, session, place, speaker, kind, held_at_epoch, importance, asks, length, words, tokenizer, embedder, vector,
  block, uses
)
SELECT g.*, (SELECT access_count FROM memory_items AS i WHERE i.seq = g.seq) FROM given AS g WHERE g.seq IS NOT NULL

-- name: card
SELECT shelf, session, place, embedder, block, length, words FROM memory_cards WHERE seq = ?

-- name: drop_card
DELETE FROM memory_cards WHERE seq = ?

-- name: move_card
UPDATE memory_cards SET shelf = ?2, block = ?3 WHERE seq = ?1

-- name: note_card
-- Keeps the card of an item whose texts have not changed up to date.
UPDATE memory_cards SET kind = ?2, held_at_epoch = ?3, importance = ?4 WHERE seq = ?1

-- name: put_postings
-- Followed by the values of each word of each item, and `put_postings_end`; rows of NULL are skipped.
WITH given (shelf, word, seq, times, length) AS (VALUES

-- name: put_postings_end
)
INSERT OR REPLACE INTO memory_postings (shelf, word, seq, times, length) SELECT * FROM given WHERE seq IS NOT NULL

-- name: drop_posting
DELETE FROM memory_postings WHERE shelf = ? AND word = ? AND seq = ?

-- name: move_posting
UPDATE OR REPLACE memory_postings SET shelf = ?4 WHERE shelf = ?1 AND word = ?2 AND seq = ?3

-- name: set_vector
UPDATE memory_cards SET embedder = ?2, vector = ?3, block = ?4 WHERE seq = ?1

-- name: leave_to_indexer
INSERT INTO memory_unindexed (seq) SELECT value FROM json_each(?) WHERE true ON CONFLICT DO NOTHING

-- name: model
SELECT model FROM memory_models WHERE name = ?

-- name: new_model
INSERT INTO memory_models (name) VALUES (?) RETURNING model

-- name: models
SELECT value FROM memory_state WHERE name = 'models'
