-- name: read_state
SELECT state FROM shared_state WHERE key = :key

-- name: write_state
INSERT INTO shared_state (key, state, forget_at_epoch) VALUES (:key, :state, :forget_at)
ON CONFLICT (key) DO UPDATE SET state = excluded.state, forget_at_epoch = excluded.forget_at_epoch

-- name: remove_state
DELETE FROM shared_state WHERE key = :key

-- name: forget_states
-- Removes a bounded number at a time; that is enough, because a step adds at most one.
DELETE FROM shared_state WHERE key IN (
  SELECT key FROM shared_state WHERE forget_at_epoch <= :now ORDER BY forget_at_epoch LIMIT 100
)

-- name: all_states
SELECT key, state FROM shared_state ORDER BY key LIMIT 10000
