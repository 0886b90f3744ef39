-- Deadlines, dependencies, unique keys, cancellation, requeueing, pauses, memos, live workers, limits. It only
-- adds: a process that knows version 1 goes on beside one that knows this.
ALTER TABLE lanes ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;  -- messages of it that have not ended
ALTER TABLE lanes ADD COLUMN ready_at_epoch INTEGER;  -- when it got its turn
UPDATE lanes SET depth = (
  SELECT count(*) FROM pending_messages AS m WHERE m.lane = lanes.lane AND m.status IN ('pending', 'processing')
);

ALTER TABLE queue_counters ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;  -- the same of all lanes
UPDATE queue_counters SET depth = (SELECT coalesce(sum(depth), 0) FROM lanes);

ALTER TABLE pending_messages ADD COLUMN deadline_epoch INTEGER;
ALTER TABLE pending_messages ADD COLUMN waits_for INTEGER NOT NULL DEFAULT 0;  -- parents that have not ended
ALTER TABLE pending_messages ADD COLUMN unique_key TEXT;
ALTER TABLE pending_messages ADD COLUMN unique_until_epoch INTEGER;
ALTER TABLE pending_messages ADD COLUMN cancel_requested INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pending_messages ADD COLUMN requeues INTEGER NOT NULL DEFAULT 0;
-- the rarer fields of the message, as JSON
ALTER TABLE pending_messages ADD COLUMN extra TEXT;
CREATE INDEX idx_pending_messages_deadline ON pending_messages (deadline_epoch)
  WHERE status = 'pending' AND deadline_epoch IS NOT NULL;
CREATE INDEX idx_pending_messages_unique ON pending_messages (user_id, project_id, message_type, unique_key)
  WHERE unique_key IS NOT NULL;
CREATE INDEX idx_pending_messages_lost ON pending_messages (lane, place)
  WHERE status = 'pending' AND place IS NOT NULL AND losses > 0;

-- Who waits for whom; a row is gone when the parent has ended.
CREATE TABLE dependencies (
  user_id TEXT NOT NULL,
  parent_id TEXT NOT NULL,
  child_id TEXT NOT NULL,
  PRIMARY KEY (user_id, parent_id, child_id)
) WITHOUT ROWID;
CREATE INDEX idx_dependencies_child ON dependencies (user_id, child_id);

-- Results of finished steps of a run, for the next run of the same message.
CREATE TABLE memos (
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  step TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (user_id, id, step)
) WITHOUT ROWID;

CREATE TABLE paused_labels (
  label TEXT PRIMARY KEY,
  reason TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE workers (
  worker TEXT PRIMARY KEY,
  labels TEXT NOT NULL,
  lives_ms INTEGER NOT NULL,
  alive_until_epoch INTEGER NOT NULL
) WITHOUT ROWID;

-- For limited rates: when all that a scope has submitted so far fits its rate. '' is everyone together.
CREATE TABLE arrivals (
  scope TEXT PRIMARY KEY,
  arrival REAL NOT NULL
) WITHOUT ROWID;
