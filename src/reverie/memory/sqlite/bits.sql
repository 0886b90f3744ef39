-- name: put_block
INSERT OR REPLACE INTO memory_bits (shelf, embedder, block, seqs, bits) VALUES (?, ?, ?, ?, ?)

-- name: last_blocks
-- The last block of each of these shelves, and how many bytes the numbers of its items take, in one row.
SELECT json_group_array(json_array(b.shelf, b.block, length(b.seqs)))
FROM json_each(?1) AS given CROSS JOIN memory_bits AS b ON b.shelf = given.value AND b.embedder = ?2
  AND b.block = (SELECT max(block) FROM memory_bits WHERE shelf = given.value AND embedder = ?2)

-- name: fill_blocks
-- Adds items to the ends of blocks. Followed by the values of each block, and `fill_blocks_end`; rows of NULL are
-- skipped.
WITH given (shelf, embedder, block, seqs, bits) AS (VALUES

-- name: fill_blocks_end
)
INSERT INTO memory_bits (shelf, embedder, block, seqs, bits) SELECT * FROM given WHERE shelf IS NOT NULL
ON CONFLICT (shelf, embedder, block) DO UPDATE
SET seqs = CAST(seqs || excluded.seqs AS BLOB), bits = CAST(bits || excluded.bits AS BLOB)

-- name: block
SELECT seqs, bits FROM memory_bits WHERE shelf = ? AND embedder = ? AND block = ?

-- name: drop_block
DELETE FROM memory_bits WHERE shelf = ? AND embedder = ? AND block = ?
