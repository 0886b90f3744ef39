-- Sessions of agents. `last_items` maps a label to the last message of the session with that label.
CREATE TABLE server_sessions (
  user_id TEXT NOT NULL,
  memory_session_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('created', 'active', 'completed', 'failed')),
  agent TEXT,
  title TEXT,
  prompts INTEGER NOT NULL DEFAULT 0,
  prompted_at_epoch INTEGER NOT NULL DEFAULT 0,
  last_items TEXT NOT NULL DEFAULT '{}',
  context TEXT,
  error TEXT,
  created_at_epoch INTEGER NOT NULL,
  updated_at_epoch INTEGER NOT NULL,
  ended_at_epoch INTEGER,
  completed_at_epoch INTEGER,
  PRIMARY KEY (user_id, memory_session_id)
) WITHOUT ROWID;
CREATE INDEX idx_server_sessions_updated ON server_sessions (user_id, updated_at_epoch);
CREATE INDEX idx_server_sessions_living ON server_sessions (updated_at_epoch) WHERE status IN ('created', 'active');

-- The keys that identify a project: its repository's address, its folders. Several keys mean one project.
CREATE TABLE project_aliases (
  user_id TEXT NOT NULL,
  key TEXT NOT NULL,
  project_id TEXT NOT NULL,
  PRIMARY KEY (user_id, key)
) WITHOUT ROWID;
CREATE INDEX idx_project_aliases_project ON project_aliases (user_id, project_id);

-- Tokens that labels with an hourly budget have spent. `hour` is like 2026-05-07T13.
CREATE TABLE llm_hours (
  user_id TEXT NOT NULL,
  label TEXT NOT NULL,
  hour TEXT NOT NULL,
  tokens INTEGER NOT NULL,
  PRIMARY KEY (user_id, label, hour)
) WITHOUT ROWID;
