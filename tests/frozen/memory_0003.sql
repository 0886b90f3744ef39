-- What effects change: the version of an item, what has taken its place, how often it was read.
ALTER TABLE memory_items ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE memory_items ADD COLUMN superseded_by TEXT;
ALTER TABLE memory_items ADD COLUMN access_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory_items ADD COLUMN accessed_at_epoch INTEGER;

CREATE TABLE memory_links (
  user_id TEXT NOT NULL,
  source_id TEXT NOT NULL,
  relation TEXT NOT NULL,
  target_id TEXT NOT NULL,
  created_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, source_id, relation, target_id)
) WITHOUT ROWID;
CREATE INDEX idx_memory_links_target ON memory_links (user_id, target_id);

-- Ids of deleted items: they are never written again.
CREATE TABLE memory_tombstones (
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  deleted_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, id)
) WITHOUT ROWID;
