-- Counts of each label, what became of each run, and how old the work is. It only adds: a process that knows version 1
-- or 3 goes on beside one that knows this, and what it moves is counted when the file is opened next.
CREATE TABLE label_counts (
  label TEXT PRIMARY KEY,
  waiting INTEGER NOT NULL DEFAULT 0,
  in_progress INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  completed_ever INTEGER NOT NULL DEFAULT 0,
  failed_ever INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO label_counts
SELECT message_type, sum(status = 'pending'), sum(status = 'processing'), sum(status = 'completed'),
  sum(status = 'failed' AND error_message IS NOT 'cancelled'), sum(status = 'failed' AND error_message IS 'cancelled'),
  sum(status = 'completed'), sum(status = 'failed' AND error_message IS NOT 'cancelled')
FROM pending_messages GROUP BY 1;

-- The turn until which everything was counted. It falls behind when a process moves something that does not count.
ALTER TABLE queue_counters ADD COLUMN counted_turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_counters ADD COLUMN last_completed_epoch INTEGER;
UPDATE queue_counters
SET counted_turn = turn,
    last_completed_epoch = (SELECT max(processed_at_epoch) FROM pending_messages WHERE status = 'completed');

ALTER TABLE pending_messages ADD COLUMN claimed_at_epoch INTEGER;  -- when it was claimed last

-- Runs that did not complete, and ends without a run; a completion is told by the message itself.
CREATE TABLE attempts (
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  -- its number, modulo how many are kept: a new one takes the room of the oldest
  slot INTEGER NOT NULL,
  number INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  started_at_epoch INTEGER,
  ended_at_epoch INTEGER NOT NULL,
  worker TEXT,
  error TEXT,
  -- of its message: another one may have the same id later
  created_at_epoch INTEGER,
  PRIMARY KEY (user_id, id, slot)
) WITHOUT ROWID;
