-- name: assume_counters
INSERT OR IGNORE INTO queue_counters (one, place, turn) VALUES (1, 0, 0)

-- name: mend_lanes
INSERT OR IGNORE INTO lanes (lane, user_id, project_id, message_type, level)
SELECT lane, user_id, project_id, message_type, max(level) FROM pending_messages
WHERE status IN ('pending', 'processing') GROUP BY lane  -- that of an ended message may be another one by now

-- name: mend_counters
UPDATE queue_counters
SET place = max(place, (SELECT coalesce(max(place), 0) FROM pending_messages)),
    turn = 1 + max(turn, (SELECT coalesce(max(turn), 0) FROM lanes))

-- name: count_running
UPDATE lanes
SET running = (
  SELECT count(*) FROM pending_messages AS m WHERE m.lane = lanes.lane AND m.status = 'processing'
)

-- name: wake_lanes
-- Lanes with work get a turn; the others leave the ring.
UPDATE lanes
SET turn = CASE
  WHEN EXISTS (
    SELECT 1 FROM pending_messages AS m
    WHERE m.lane = lanes.lane AND m.status = 'pending' AND m.place IS NOT NULL
  )
  THEN coalesce(turn, (SELECT turn FROM queue_counters)) END
WHERE rest_until_epoch IS NULL AND (running = 0 OR NOT ordered)

-- name: count_parents
-- Counts the parents that have not ended. A parent that the salvage has lost does not count.
UPDATE pending_messages
SET waits_for = (
  SELECT count(*) FROM dependencies AS d JOIN pending_messages AS p ON p.user_id = d.user_id AND p.id = d.parent_id
  WHERE d.user_id = pending_messages.user_id AND d.child_id = pending_messages.id
    AND p.status IN ('pending', 'processing')
)
WHERE status = 'pending'
