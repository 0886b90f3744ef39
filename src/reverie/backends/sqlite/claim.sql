-- name: look
-- Everything that a claim must know first: since when the first ready lane of each label waits for its turn, whether a
-- deadline has passed, whether a waiting message has lost a claim before, and the counters. Paused labels and labels
-- without a ready lane are left out.
SELECT (
    SELECT json_group_array(json_array(label, since)) FROM (
      SELECT given.value AS label, (
        SELECT coalesce(ready_at_epoch, :now) FROM lanes
        WHERE message_type = given.value AND turn IS NOT NULL ORDER BY turn LIMIT 1
      ) AS since
      FROM json_each(:labels) AS given
    )
    WHERE since IS NOT NULL AND label NOT IN (SELECT label FROM paused_labels)
  ),
  EXISTS (
    SELECT 1 FROM pending_messages INDEXED BY idx_pending_messages_deadline
    WHERE status = 'pending' AND deadline_epoch IS NOT NULL AND deadline_epoch <= :now
  ),
  EXISTS (
    SELECT 1 FROM pending_messages INDEXED BY idx_pending_messages_lost
    WHERE status = 'pending' AND place IS NOT NULL AND losses > 0
  ),
  place, turn, depth
FROM queue_counters

-- name: ready_lanes
-- The ready lanes of a label in turn, with the number of their messages and how many of them run. All in one row: each
-- row that comes back to Python costs a switch of threads.
SELECT json_group_array(json_array(lane, depth, running)) FROM (
  SELECT lane, depth, running FROM lanes WHERE message_type = :label AND turn IS NOT NULL ORDER BY turn, lane LIMIT :lanes
)

-- name: still_ready
-- Those of these labels that have a ready lane.
SELECT given.value FROM json_each(:labels) AS given
WHERE EXISTS (SELECT 1 FROM lanes WHERE message_type = given.value AND turn IS NOT NULL)

-- name: running
SELECT count(*) FROM pending_messages WHERE status = 'processing'

-- name: tenant_running
SELECT sum(t.running) FROM lanes AS l JOIN lanes AS t ON t.user_id = l.user_id AND t.project_id = l.project_id
WHERE l.lane = ?

-- name: lost_messages
-- How many messages wait in each of these lanes before the first that has lost a claim. Lanes without a lost message
-- are left out.
SELECT x.lane, (
  SELECT count(*) FROM pending_messages AS p
  WHERE p.lane = x.lane AND p.status = 'pending' AND p.place IS NOT NULL AND p.place < min(x.place)
)
FROM json_each(:lanes) AS given
  CROSS JOIN pending_messages AS x INDEXED BY idx_pending_messages_lost
  ON x.lane = given.value ->> 0 AND x.status = 'pending' AND x.place IS NOT NULL AND x.losses > 0
GROUP BY x.lane

-- name: first_messages
-- The first `take` messages of each lane. CROSS JOIN makes the join begin with the lanes, whatever the statistics of
-- the file say.
SELECT json_group_array(m.rowid) FROM json_each(:lanes) AS l CROSS JOIN pending_messages AS m
WHERE m.rowid IN (
  SELECT p.rowid FROM pending_messages AS p
  WHERE p.lane = l.value AND p.status = 'pending' AND p.place IS NOT NULL
  ORDER BY p.place LIMIT :take
)

-- name: claim_messages
-- Each row gets its own claim id. The claim id alone decides whether a claim is valid, even if a VACUUM renumbers rows.
UPDATE pending_messages
SET status = 'processing', claim_id = :claim_id || rowid, worker = :worker, lease_until_epoch = :lease_until,
    started_at_epoch = coalesce(started_at_epoch, :now), claimed_at_epoch = :now, updated_at_epoch = :now,
    max_retries = :max_attempts
WHERE rowid IN (SELECT value FROM json_each(:rows))

-- name: read_messages
SELECT json_group_array(
  json_array(m.rowid, place, level, lane, created_at_epoch, updated_at_epoch, message_columns)
)
FROM (SELECT value AS number FROM json_each(:rows)) AS given CROSS JOIN pending_messages AS m
  ON m.rowid = given.number

-- name: renew
UPDATE pending_messages SET lease_until_epoch = ?1
WHERE rowid = ?2 AND user_id = ?3 AND id = ?4 AND claim_id = ?5 AND status = 'processing'
RETURNING rowid, claim_id, cancel_requested

-- name: note_worker
INSERT OR REPLACE INTO workers (worker, labels, lives_ms, alive_until_epoch) VALUES (?, ?, ?, ?)

-- name: forget_worker
DELETE FROM workers WHERE worker = ?

-- name: save_memo
INSERT INTO memos (user_id, id, step, value)
SELECT user_id, id, ?5, ?6 FROM pending_messages
WHERE rowid = ?1 AND user_id = ?2 AND id = ?3 AND claim_id = ?4 AND status = 'processing'
ON CONFLICT (user_id, id, step) DO UPDATE SET value = excluded.value
RETURNING 1

-- name: load_memos
SELECT step, value FROM memos WHERE user_id = ? AND id = ?
