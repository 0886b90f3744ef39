-- The buffer zone: content that waits to become memories. `lease_until`, `created_at` and `updated_at` are epoch
-- milliseconds. The long column comes last, so that reading the others does not read it.
CREATE TABLE buffer_zone (
  user_id TEXT NOT NULL,
  buffer_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  blob_type TEXT NOT NULL,
  blob_id TEXT NOT NULL,
  -- the order of the rows in their buffer: rows of one message have the same time
  place INTEGER NOT NULL,
  buffer_size INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('idle', 'processing', 'done', 'failed')),
  lease_token TEXT,
  lease_holder TEXT,
  lease_until INTEGER,
  failures INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  metadata TEXT NOT NULL,
  -- empty in a row that is done
  content TEXT NOT NULL,
  PRIMARY KEY (user_id, buffer_id)
);
CREATE INDEX idx_buffer_zone_place ON buffer_zone (user_id, project_id, blob_type, place);
-- All that is asked of rows which are not done, except their content, is in this index.
CREATE INDEX idx_buffer_zone_open ON buffer_zone (
  user_id, project_id, blob_type, place, status, lease_until, lease_holder, buffer_size, created_at
) WHERE status <> 'done';
CREATE INDEX idx_buffer_zone_done ON buffer_zone (updated_at) WHERE status = 'done';
CREATE INDEX idx_buffer_zone_blob ON buffer_zone (user_id, blob_id);
