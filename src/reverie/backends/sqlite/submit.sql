-- name: add_lanes
-- Followed by one (user_id, project_id, message_type, level) for each lane, and `add_lanes_end`. Rows of NULL, which
-- only fill the statement up, are skipped.
WITH given (user_id, project_id, message_type, level) AS (VALUES

-- name: add_lanes_end
)
INSERT INTO lanes (user_id, project_id, message_type, level) SELECT * FROM given WHERE user_id IS NOT NULL
ON CONFLICT (user_id, project_id, message_type) DO UPDATE SET level = excluded.level

-- name: fill_lanes
-- Like `add_lanes`, and also does at once what `write_lanes` would do later: adds the number of ready messages to each
-- lane, and gives a lane that may be served a turn.
WITH given (user_id, project_id, message_type, level, depth, turn, ready_at_epoch) AS (VALUES

-- name: fill_lanes_end
)
INSERT INTO lanes (user_id, project_id, message_type, level, depth, turn, ready_at_epoch)
SELECT * FROM given WHERE user_id IS NOT NULL
ON CONFLICT (user_id, project_id, message_type) DO UPDATE
SET level = excluded.level, depth = depth + excluded.depth,
    ready_at_epoch = CASE WHEN turn IS NULL THEN excluded.ready_at_epoch ELSE ready_at_epoch END,
    turn = CASE WHEN turn IS NULL AND rest_until_epoch IS NULL AND (running = 0 OR NOT ordered)
      THEN excluded.turn ELSE turn END

-- name: is_turn_given
SELECT 1 FROM lanes WHERE message_type = ? AND turn = ? LIMIT 1

-- name: lane_numbers
SELECT json_group_array(json_array(l.lane, l.user_id, l.project_id, l.message_type)) FROM json_each(:lanes) AS given
  CROSS JOIN lanes AS l
  ON l.user_id = given.value ->> 0 AND l.project_id = given.value ->> 1 AND l.message_type = given.value ->> 2

-- name: insert_messages
-- Followed by the values of each message, and `insert_messages_end`. No rows are returned, because each would cost a
-- switch of threads.
WITH given (
  user_id, id, message_type, memory_session_id, project_id, payload, now, level, place, due_at_epoch, fingerprint,
  task_id, trace_id, user_name, info, timestamp_epoch, deadline_epoch, waits_for, unique_key, unique_until_epoch, extra,
  max_retries
) AS (VALUES

-- name: insert_messages_end
)
INSERT INTO pending_messages (
  user_id, id, message_type, memory_session_id, project_id, payload, created_at_epoch, updated_at_epoch,
  lane, level, place, due_at_epoch, fingerprint, task_id, trace_id, user_name, info, timestamp_epoch,
  deadline_epoch, waits_for, unique_key, unique_until_epoch, extra, max_retries
)
SELECT g.user_id, g.id, g.message_type, g.memory_session_id, g.project_id, g.payload, g.now, g.now,
  l.lane, g.level, g.place, g.due_at_epoch, g.fingerprint, g.task_id, g.trace_id, g.user_name, g.info,
  g.timestamp_epoch, g.deadline_epoch, g.waits_for, g.unique_key, g.unique_until_epoch, g.extra, g.max_retries
FROM given AS g CROSS JOIN lanes AS l
  ON l.user_id = g.user_id AND l.project_id = g.project_id AND l.message_type = g.message_type
WHERE true
ON CONFLICT (user_id, id) DO NOTHING

-- name: fingerprints
SELECT m.user_id, m.id, m.fingerprint, m.place FROM json_each(:keys) AS given
  CROSS JOIN pending_messages AS m ON m.user_id = given.value ->> 0 AND m.id = given.value ->> 1

-- name: unhandled
SELECT given.value FROM json_each(:labels) AS given
WHERE NOT EXISTS (
  SELECT 1 FROM workers AS w, json_each(w.labels) AS handled
  WHERE w.alive_until_epoch > :now AND handled.value = given.value
)
LIMIT 1

-- name: known_labels
SELECT label FROM label_counts WHERE label IN (SELECT value FROM json_each(:labels))

-- name: count_labels
SELECT count(*) FROM label_counts

-- name: forget_labels
-- Removes the labels of which no message is kept, except the given ones.
DELETE FROM label_counts
WHERE max(waiting, in_progress, completed, failed, cancelled) <= 0
  AND label NOT IN (SELECT value FROM json_each(:labels))

-- name: statuses
-- The statuses of messages by their keys, [[user_id, id], …].
SELECT m.user_id, m.id, m.status, m.error_message FROM json_each(:keys) AS given
  CROSS JOIN pending_messages AS m ON m.user_id = given.value ->> 0 AND m.id = given.value ->> 1

-- name: forget_dependencies
-- Removes the dependencies of an earlier message with the same id.
DELETE FROM dependencies WHERE user_id = ? AND child_id = ?

-- name: add_dependency
INSERT OR IGNORE INTO dependencies (user_id, parent_id, child_id) VALUES (?, ?, ?)

-- name: holders
-- The messages with a unique key: first those that wait, then those in progress, then those whose window is not over.
SELECT rowid, id, lane, status, place FROM pending_messages
WHERE user_id = :user_id AND project_id = :project_id AND message_type = :message_type AND unique_key = :unique_key
  AND (status IN ('pending', 'processing') OR unique_until_epoch > :now)
ORDER BY CASE status WHEN 'pending' THEN 1 WHEN 'processing' THEN 2 ELSE 3 END, rowid DESC

-- name: reschedule
-- A message that has a place keeps it, unless the new due time is in the future: then it gives the place up.
UPDATE pending_messages
SET due_at_epoch = CASE WHEN :due > :now OR place IS NULL THEN :due END,
    place = CASE WHEN :due > :now THEN NULL ELSE place END,
    updated_at_epoch = CASE WHEN :due > :now OR place IS NULL THEN :now ELSE updated_at_epoch END
WHERE rowid = :row

-- name: bring_forward
-- Changes only a message that is due later than `due`. One that was claimed before waits for its retry and is left as
-- it is.
UPDATE pending_messages SET due_at_epoch = :due, updated_at_epoch = :now
WHERE rowid = :row AND due_at_epoch > :due AND place IS NULL AND started_at_epoch IS NULL
RETURNING 1

-- name: tenant_depths
SELECT t.user_id, t.project_id, sum(t.depth) FROM json_each(:tenants) AS given
  CROSS JOIN lanes AS t ON t.user_id = given.value ->> 0 AND t.project_id = given.value ->> 1
GROUP BY 1, 2

-- name: arrival
SELECT arrival FROM arrivals WHERE scope = ?

-- name: set_arrival
INSERT INTO arrivals VALUES (?1, ?2) ON CONFLICT (scope) DO UPDATE SET arrival = excluded.arrival
