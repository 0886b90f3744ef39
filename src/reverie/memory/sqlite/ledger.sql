-- name: enter_calls
-- Answers the keys that were not known.
INSERT INTO llm_calls (key, day)
SELECT value ->> 'key', value ->> 'day' FROM json_each(:spent) WHERE true
ON CONFLICT (key) DO NOTHING
RETURNING key

-- name: add_usage
INSERT INTO llm_usage (user_id, project_id, day, label, calls, input_tokens, output_tokens, micros)
SELECT
  value ->> 'user_id', value ->> 'mem_cube_id', value ->> 'day', value ->> 'label',
  count(*), sum(value ->> 'input_tokens'), sum(value ->> 'output_tokens'), sum(value ->> 'micros')
FROM json_each(:spent) WHERE true
GROUP BY 1, 2, 3, 4
ON CONFLICT (user_id, project_id, day, label) DO UPDATE
SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens, micros = micros + excluded.micros

-- name: forget_calls
DELETE FROM llm_calls WHERE day < :before

-- name: spent_on
SELECT coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(micros), 0)
FROM llm_usage WHERE user_id = :user_id AND project_id = :project_id AND day = :day
  AND (:labels IS NULL OR label IN (SELECT value FROM json_each(:labels)))

-- name: usage_of_user
SELECT day, user_id, project_id, label, calls, input_tokens, output_tokens, micros FROM llm_usage
WHERE user_id = :user_id AND (:project_id IS NULL OR project_id = :project_id) AND day BETWEEN :since AND :until
  AND (day < :day OR (user_id, project_id, label) > (:after_user, :after_project, :after_label))
ORDER BY day DESC, project_id, label LIMIT :limit

-- name: usage
SELECT day, user_id, project_id, label, calls, input_tokens, output_tokens, micros FROM llm_usage
WHERE day BETWEEN :since AND :until AND (:project_id IS NULL OR project_id = :project_id)
  AND (day < :day OR (user_id, project_id, label) > (:after_user, :after_project, :after_label))
ORDER BY day DESC, user_id, project_id, label LIMIT :limit
