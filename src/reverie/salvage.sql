-- name: assume_version
-- The damaged file was in use, so it had the newest schema, should it not be able to say so.
INSERT OR IGNORE INTO schema_versions (room, version) VALUES (:room, :version)

-- name: assume_counters
INSERT OR IGNORE INTO queue_counters (one, place, turn) VALUES (1, 0, 0)

-- name: mend_lanes
INSERT OR IGNORE INTO lanes (lane, user_id, project_id, message_type, level)
SELECT lane, user_id, project_id, message_type, max(level) FROM pending_messages GROUP BY lane

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
-- Lanes with work take a turn; the others leave the ring.
UPDATE lanes
SET turn = CASE
  WHEN EXISTS (
    SELECT 1 FROM pending_messages AS m
    WHERE m.lane = lanes.lane AND m.status = 'pending' AND m.place IS NOT NULL
  )
  THEN coalesce(turn, (SELECT turn FROM queue_counters)) END
WHERE rest_until_epoch IS NULL AND (running = 0 OR NOT ordered)

-- name: texts
SELECT seq, text FROM memory_items

-- name: index_text
INSERT INTO memory_words (rowid, words) VALUES (:seq, :words)
