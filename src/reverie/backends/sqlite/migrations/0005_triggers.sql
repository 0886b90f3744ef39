-- Triggers: the task types in force, and the tasks of their users. It only adds: a process that knows version 1 goes on
-- beside one that knows this; runs that it ends are noted when the file is opened next.
CREATE TABLE trigger_types (
  name TEXT PRIMARY KEY,
  fields TEXT NOT NULL,  -- as JSON
  enabled INTEGER NOT NULL,
  version INTEGER NOT NULL,
  -- what a person has set instead of `enabled`; NULL: nothing
  switched INTEGER,
  -- how many of its tasks stand how
  pending INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0,
  -- what has become of its runs
  runs INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  skipped INTEGER NOT NULL DEFAULT 0,
  duration_ms INTEGER NOT NULL DEFAULT 0,
  lateness_ms INTEGER NOT NULL DEFAULT 0,
  max_lateness_ms INTEGER NOT NULL DEFAULT 0,
  fired INTEGER NOT NULL DEFAULT 0,
  last_run_at_epoch INTEGER,
  last_error TEXT
) WITHOUT ROWID;

-- One trigger for one user key; '' is the key of those that belong to no user. Pages of them are read by their key.
CREATE TABLE trigger_tasks (
  task_type TEXT NOT NULL,
  user_key TEXT NOT NULL,
  -- of the activity that was last; NULL if it belongs to no user
  user_id TEXT,
  device_id TEXT,
  agent_id TEXT,
  interval_ms INTEGER,
  ttl_ms INTEGER,
  -- when its present run, or the last one, was scheduled first
  created_at_epoch INTEGER NOT NULL,
  -- when it is due next, and when that would be without jitter
  scheduled_at_epoch INTEGER,
  anchor_epoch INTEGER,
  last_activity_epoch INTEGER,
  -- whether there was activity, or someone asked for a run, since its present run was fired
  touched INTEGER NOT NULL DEFAULT 0,
  -- the message of its run that is under way, or of the last one
  item_user_id TEXT,
  item_id TEXT,
  -- set while its run is under way
  fired_at_epoch INTEGER,
  -- how its last run ended: completed or failed
  ended TEXT,
  -- when it is forgotten; set only while it is neither scheduled nor running
  expires_at_epoch INTEGER,
  retry_count INTEGER NOT NULL DEFAULT 0,
  -- when a run of it last ended well
  last_exec_epoch INTEGER,
  -- when its last run was fired
  previous_run_epoch INTEGER,
  PRIMARY KEY (task_type, user_key)
) WITHOUT ROWID;
CREATE INDEX idx_trigger_tasks_due ON trigger_tasks (task_type, scheduled_at_epoch)
  WHERE scheduled_at_epoch IS NOT NULL AND fired_at_epoch IS NULL;
CREATE INDEX idx_trigger_tasks_expiry ON trigger_tasks (expires_at_epoch) WHERE expires_at_epoch IS NOT NULL;
