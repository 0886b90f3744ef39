-- The lanes: who has work, and whose turn it is.
CREATE TABLE lanes (
  lane INTEGER PRIMARY KEY,
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  message_type TEXT NOT NULL,
  level INTEGER NOT NULL,
  -- its place in the ring of lanes that may be served; NULL while it has nothing, is served, or rests
  turn INTEGER,
  -- claimed from it and not yet settled
  running INTEGER NOT NULL DEFAULT 0,
  ordered INTEGER NOT NULL DEFAULT 1,
  min_idle_ms INTEGER NOT NULL DEFAULT 0,
  -- not served before this; NULL when it does not rest
  rest_until_epoch INTEGER,
  UNIQUE (user_id, project_id, message_type)
);
CREATE INDEX idx_lanes_ready ON lanes (message_type, turn) WHERE turn IS NOT NULL;
CREATE INDEX idx_lanes_resting ON lanes (rest_until_epoch) WHERE rest_until_epoch IS NOT NULL;

-- The messages, from accept until their status expires. The *_epoch columns are milliseconds.
CREATE TABLE pending_messages (
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  message_type TEXT NOT NULL,
  memory_session_id TEXT,
  project_id TEXT NOT NULL,
  payload TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'pending'
    CHECK (status IN ('pending', 'processing', 'completed', 'failed')),
  retry_count INTEGER NOT NULL DEFAULT 0,
  max_retries INTEGER NOT NULL DEFAULT 3,
  created_at_epoch INTEGER NOT NULL,
  updated_at_epoch INTEGER NOT NULL,
  processed_at_epoch INTEGER,
  error_message TEXT,

  lane INTEGER NOT NULL,
  level INTEGER NOT NULL,
  -- its place in the lane, taken when it becomes eligible; NULL before that
  place INTEGER,
  due_at_epoch INTEGER,
  started_at_epoch INTEGER,
  losses INTEGER NOT NULL DEFAULT 0,
  claim_id TEXT,
  worker TEXT,
  lease_until_epoch INTEGER,
  -- when its status is forgotten; NULL while it is not ended, and for dead letters
  expires_at_epoch INTEGER,

  fingerprint TEXT NOT NULL,
  task_id TEXT,
  trace_id TEXT,
  user_name TEXT,
  info TEXT,
  timestamp_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, id)
);
CREATE INDEX idx_pending_messages_status ON pending_messages (status);
CREATE INDEX idx_pending_messages_session ON pending_messages (memory_session_id);
CREATE INDEX idx_pending_messages_created ON pending_messages (created_at_epoch);
CREATE INDEX idx_pending_messages_place ON pending_messages (lane, place)
  WHERE status = 'pending' AND place IS NOT NULL;
CREATE INDEX idx_pending_messages_due ON pending_messages (due_at_epoch)
  WHERE status = 'pending' AND place IS NULL;
CREATE INDEX idx_pending_messages_lease ON pending_messages (lease_until_epoch) WHERE status = 'processing';
CREATE INDEX idx_pending_messages_expiry ON pending_messages (expires_at_epoch)
  WHERE expires_at_epoch IS NOT NULL;
CREATE INDEX idx_pending_messages_task ON pending_messages (user_id, task_id) WHERE task_id IS NOT NULL;

-- One row: the last place given in any lane, and the last turn given to any lane.
CREATE TABLE queue_counters (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  place INTEGER NOT NULL,
  turn INTEGER NOT NULL
);
INSERT INTO queue_counters VALUES (1, 0, 0);

-- How a message stands, and (the last fourteen columns) the message itself.
CREATE VIEW queue_items AS
SELECT rowid AS seq, id AS item_id, user_id, project_id, message_type, status, created_at_epoch, task_id,
  started_at_epoch, processed_at_epoch, error_message, retry_count, losses,
  user_id AS u, id AS i, message_type AS t, memory_session_id, project_id AS p, payload, level, retry_count AS r,
  losses AS l, task_id AS k, trace_id, user_name, info, timestamp_epoch
FROM pending_messages;
