-- When the turns of a conversation were read for facts, the last queries of a tenant, and what to extract by cube.
ALTER TABLE memory_items ADD COLUMN extracted_at_epoch INTEGER;

CREATE TABLE memory_queries (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  id TEXT NOT NULL,
  server_session_id TEXT,
  query TEXT NOT NULL,
  found TEXT NOT NULL,
  answer TEXT,
  used TEXT NOT NULL DEFAULT '[]',
  asked_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, project_id, id)
) WITHOUT ROWID;

CREATE TABLE memory_cubes (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  extraction TEXT NOT NULL,
  PRIMARY KEY (user_id, project_id)
) WITHOUT ROWID;
