-- name: texts
SELECT seq, text FROM memory_items

-- name: index_text
INSERT INTO memory_words (rowid, words) VALUES (:seq, :words)
