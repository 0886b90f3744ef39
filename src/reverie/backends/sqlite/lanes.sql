-- name: read_counters
SELECT place, turn, depth FROM queue_counters

-- name: write_counters
UPDATE queue_counters
SET place = ?1, turn = ?2, depth = ?3, counted_turn = counted_turn + ?2 - turn,
    last_completed_epoch = coalesce(?4, last_completed_epoch)

-- name: write_lanes
-- Writes one change to several lanes; every change of a lane ends here. `depth` and `running` are differences.
-- `delay_ms` is how long a lane rests (NULL if no claim has ended). `ordered` and `min_idle_ms` are NULL unless the
-- lane was served. A lane is in the ring (has a turn) exactly while it may be served.
UPDATE lanes
SET depth = new.depth, running = new.running, ordered = new.ordered, min_idle_ms = new.min_idle_ms,
    rest_until_epoch = new.rest_until_epoch,
    ready_at_epoch = CASE WHEN new.ready AND (:ordered IS NOT NULL OR lanes.turn IS NULL) THEN :now
      ELSE ready_at_epoch END,
    turn = CASE WHEN new.ready THEN iif(:ordered IS NOT NULL, :turn, coalesce(lanes.turn, :turn)) END
FROM (
  SELECT *, rest_until_epoch IS NULL AND (running = 0 OR NOT ordered)
    AND (:most_running IS NULL
      OR (SELECT sum(t.running) FROM lanes AS t WHERE t.user_id = state.user_id AND t.project_id = state.project_id)
        < :most_running)
    AND EXISTS (
      SELECT 1 FROM pending_messages AS m
      WHERE m.lane = state.lane AND m.status = 'pending' AND m.place IS NOT NULL
    ) AS ready
  FROM (
    SELECT l.lane, l.user_id, l.project_id, l.depth + :depth AS depth, l.running + :running AS running,
      coalesce(:ordered, l.ordered) AS ordered, coalesce(:min_idle_ms, l.min_idle_ms) AS min_idle_ms,
      CASE WHEN max(l.min_idle_ms, :delay_ms * l.ordered) > 0
        THEN max(coalesce(l.rest_until_epoch, 0), :now + max(l.min_idle_ms, :delay_ms * l.ordered))
        ELSE l.rest_until_epoch END AS rest_until_epoch
    FROM json_each(:lanes) AS given CROSS JOIN lanes AS l ON l.lane = given.value
  ) AS state
) AS new
WHERE lanes.lane = new.lane

-- name: look_at_lanes
-- The labels of which a lane has just got a turn, and the earliest end of a rest. All in one row: each row that comes
-- back to Python costs a switch of threads.
SELECT json_group_array(DISTINCT CASE WHEN turn = :turn THEN message_type END), min(rest_until_epoch)
FROM json_each(:lanes) AS given CROSS JOIN lanes ON lanes.lane = given.value

-- name: lanes_of_tenants
-- All lanes of the tenants that these lanes belong to.
SELECT t.lane FROM lanes AS t JOIN (
  SELECT DISTINCT user_id, project_id FROM lanes WHERE lane IN (SELECT value FROM json_each(:lanes))
) AS l ON t.user_id = l.user_id AND t.project_id = l.project_id

-- name: ready
SELECT DISTINCT message_type FROM lanes WHERE turn IS NOT NULL

-- name: any_dependants
SELECT EXISTS (SELECT 1 FROM dependencies), EXISTS (SELECT 1 FROM memos)

-- name: dependants
-- The messages that wait for ended ones, in the order of their submission. `ended` is [[user_id, id, status], …].
SELECT m.rowid, m.user_id, m.id, m.lane, m.waits_for, m.due_at_epoch, m.extra, given.value ->> 1, given.value ->> 2
FROM json_each(:ended) AS given
  CROSS JOIN dependencies AS d ON d.user_id = given.value ->> 0 AND d.parent_id = given.value ->> 1
  CROSS JOIN pending_messages AS m ON m.user_id = d.user_id AND m.id = d.child_id
WHERE m.status = 'pending' AND m.waits_for > 0
ORDER BY m.rowid, given.key

-- name: drop_dependencies
DELETE FROM dependencies
WHERE (user_id, parent_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:ended))

-- name: free_dependant
UPDATE pending_messages
SET waits_for = ?2, place = ?3, due_at_epoch = CASE WHEN ?3 IS NULL THEN due_at_epoch END, updated_at_epoch = ?4
WHERE rowid = ?1

-- name: end_waiting
-- Ends a message that waits. A dead letter is kept without limit, a cancelled message until it expires.
UPDATE pending_messages
SET status = 'failed', error_message = ?2, processed_at_epoch = ?3, expires_at_epoch = ?4, waits_for = 0,
    place = NULL, due_at_epoch = NULL, updated_at_epoch = ?3
WHERE rowid = ?1
RETURNING message_type, extra ->> '$.user_key', retry_count

-- name: drop_memos
DELETE FROM memos
WHERE (user_id, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:ended) WHERE value ->> 2 <> 'failed')
