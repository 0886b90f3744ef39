-- name: take_numbers
-- Reserves `places` places and one turn; the answer is the last of each.
UPDATE queue_counters SET place = place + :places, turn = turn + 1 RETURNING place, turn

-- name: upsert_lane
INSERT INTO lanes (user_id, project_id, message_type, level) VALUES (:user_id, :project_id, :message_type, :level)
ON CONFLICT (user_id, project_id, message_type) DO UPDATE SET level = excluded.level
RETURNING lane

-- name: insert_message
INSERT INTO pending_messages (
  user_id, id, message_type, memory_session_id, project_id, payload, created_at_epoch, updated_at_epoch,
  lane, level, place, due_at_epoch, fingerprint, task_id, trace_id, user_name, info, timestamp_epoch
) VALUES (
  :user_id, :id, :message_type, :memory_session_id, :project_id, :payload, :now, :now,
  :lane, :level, :place, :due, :fingerprint, :task_id, :trace_id, :user_name, :info, :timestamp
)
ON CONFLICT (user_id, id) DO NOTHING
RETURNING 1

-- name: fingerprint
SELECT fingerprint FROM pending_messages WHERE user_id = :user_id AND id = :id

-- name: wake_lanes
-- Gives a turn to each of these lanes that may be served and is not in the ring yet. Every change that could
-- make a lane ready ends with this one statement.
UPDATE lanes SET turn = :turn
WHERE lane IN (SELECT value FROM json_each(:lanes))
  AND turn IS NULL
  AND rest_until_epoch IS NULL
  AND (running = 0 OR NOT ordered)
  AND EXISTS (
    SELECT 1 FROM pending_messages AS m
    WHERE m.lane = lanes.lane AND m.status = 'pending' AND m.place IS NOT NULL
  )
RETURNING message_type

-- name: ready_lanes
SELECT lane FROM lanes WHERE message_type = :label AND turn IS NOT NULL ORDER BY turn, lane LIMIT :lanes

-- name: claim_messages
-- A prefix of each lane, at most `take` of it.
UPDATE pending_messages
SET status = 'processing', claim_id = :claim_id, worker = :worker, lease_until_epoch = :lease_until,
    started_at_epoch = coalesce(started_at_epoch, :now), updated_at_epoch = :now
WHERE rowid IN (
  SELECT m.rowid FROM json_each(:lanes) AS l, pending_messages AS m
  WHERE m.rowid IN (
    SELECT p.rowid FROM pending_messages AS p
    WHERE p.lane = l.value AND p.status = 'pending' AND p.place IS NOT NULL
    ORDER BY p.place LIMIT :take
  )
)
RETURNING rowid, place, level, lane,
  user_id, id, message_type, memory_session_id, project_id, payload, level, retry_count, losses,
  task_id, trace_id, user_name, info, timestamp_epoch

-- name: mark_served
-- An ordered lane leaves the ring until all it gave is settled; an unordered one goes to its end.
UPDATE lanes SET running = running + ?1, ordered = ?2, min_idle_ms = ?3, turn = NULL WHERE lane = ?4

-- name: renew
UPDATE pending_messages SET lease_until_epoch = ?1
WHERE rowid = ?2 AND user_id = ?3 AND id = ?4 AND claim_id = ?5 AND status = 'processing'
RETURNING rowid, claim_id

-- name: end_claim
-- The fence: only the holder of the claim changes anything. The rowid finds the row quickly; what it is is
-- compared all the same, because a VACUUM may have given its number to another.
UPDATE pending_messages
SET status = ?1, retry_count = retry_count + ?2, error_message = ?3, processed_at_epoch = ?4,
    expires_at_epoch = ?5, claim_id = NULL, worker = NULL, lease_until_epoch = NULL, updated_at_epoch = ?6
WHERE rowid = ?7 AND user_id = ?8 AND id = ?9 AND claim_id = ?10 AND status = 'processing'
RETURNING 1

-- name: end_claims
-- The same for many that end alike, without coming back to Python for each: ?7 is [[rowid, user_id, id, claim_id],
-- …]. If it has changed fewer rows than it was given, some are stale.
UPDATE pending_messages
SET status = ?1, retry_count = retry_count + ?2, error_message = ?3, processed_at_epoch = ?4,
    expires_at_epoch = ?5, claim_id = NULL, worker = NULL, lease_until_epoch = NULL, updated_at_epoch = ?6
WHERE rowid IN (
  SELECT m.rowid FROM json_each(?7) AS given CROSS JOIN pending_messages AS m
  WHERE m.rowid = given.value ->> 0 AND m.user_id = given.value ->> 1 AND m.id = given.value ->> 2
    AND m.claim_id = given.value ->> 3 AND +m.status = 'processing'
)

-- name: postpone
-- A message that must wait lets the others of an unordered lane pass; in an ordered lane it keeps its place
-- and the lane rests.
UPDATE pending_messages SET place = NULL, due_at_epoch = :due
WHERE rowid = :row AND NOT (SELECT ordered FROM lanes WHERE lanes.lane = pending_messages.lane)

-- name: release_lane
-- After `count` claims of a lane have ended: it rests for `delay_ms`, and for its `min_idle_ms` at least.
UPDATE lanes
SET running = running - ?1,
    rest_until_epoch = CASE
      WHEN max(min_idle_ms, ?2 * ordered) > 0
      THEN max(coalesce(rest_until_epoch, 0), ?3 + max(min_idle_ms, ?2 * ordered))
      ELSE rest_until_epoch END
WHERE lane = ?4
RETURNING rest_until_epoch

-- name: stage
UPDATE pending_messages SET place = :place, due_at_epoch = NULL, updated_at_epoch = :now
WHERE rowid = :row
RETURNING lane

-- name: due_messages
SELECT rowid FROM pending_messages
WHERE status = 'pending' AND place IS NULL AND due_at_epoch <= :now
ORDER BY due_at_epoch, rowid LIMIT :limit

-- name: end_rests
UPDATE lanes SET rest_until_epoch = NULL
WHERE lane IN (
  SELECT lane FROM lanes WHERE rest_until_epoch IS NOT NULL AND rest_until_epoch <= :now
  ORDER BY rest_until_epoch LIMIT :limit
)
RETURNING lane

-- name: reap
-- A claim that ended without an outcome is one loss; after too many its message is buried.
UPDATE pending_messages
SET losses = losses + 1,
    status = CASE WHEN losses + 1 >= :max_losses THEN 'failed' ELSE 'pending' END,
    error_message = CASE WHEN losses + 1 >= :max_losses THEN 'killed_worker' ELSE error_message END,
    processed_at_epoch = CASE WHEN losses + 1 >= :max_losses THEN :now END,
    claim_id = NULL, worker = NULL, lease_until_epoch = NULL, updated_at_epoch = :now
WHERE rowid IN (
  SELECT rowid FROM pending_messages WHERE status = 'processing' AND lease_until_epoch <= :now
  ORDER BY lease_until_epoch LIMIT :limit
)
RETURNING lane

-- name: expire
DELETE FROM pending_messages
WHERE rowid IN (
  SELECT rowid FROM pending_messages WHERE expires_at_epoch IS NOT NULL AND expires_at_epoch <= :now
  ORDER BY expires_at_epoch LIMIT :limit
)
RETURNING 1

-- name: next_due
SELECT min(moment) FROM (
  SELECT min(due_at_epoch) AS moment FROM pending_messages WHERE status = 'pending' AND place IS NULL
  UNION ALL
  SELECT min(rest_until_epoch) FROM lanes WHERE rest_until_epoch IS NOT NULL
  UNION ALL
  SELECT min(lease_until_epoch) FROM pending_messages WHERE status = 'processing'
  UNION ALL
  SELECT min(expires_at_epoch) FROM pending_messages WHERE expires_at_epoch IS NOT NULL
)

-- name: read_item
SELECT * FROM queue_items WHERE user_id = :user_id AND item_id = :item_id LIMIT :limit

-- name: read_task
SELECT * FROM queue_items WHERE user_id = :user_id AND task_id = :task_id ORDER BY seq LIMIT :limit

-- name: read_user
SELECT * FROM queue_items WHERE user_id = :user_id ORDER BY seq LIMIT :limit
