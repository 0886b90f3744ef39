-- How often the memories of a tenant were changed. What was computed from them is valid as long as this number is the
-- same. Accesses, and moves between the tiers that a search looks at, are no changes.
ALTER TABLE memory_tenants ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;

CREATE TRIGGER memory_item_added AFTER INSERT ON memory_items BEGIN
  UPDATE memory_tenants SET changes = changes + 1 WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER memory_item_changed AFTER UPDATE OF
  tenant, text, kind, title, tags, info, sources, importance, valid_from_epoch, valid_to_epoch, superseded_by
ON memory_items BEGIN
  UPDATE memory_tenants SET changes = changes + 1 WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER memory_item_moved AFTER UPDATE OF tier ON memory_items
WHEN (OLD.tier = 'archive') <> (NEW.tier = 'archive') BEGIN
  UPDATE memory_tenants SET changes = changes + 1 WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER memory_item_removed AFTER DELETE ON memory_items BEGIN
  UPDATE memory_tenants SET changes = changes + 1 WHERE tenant = OLD.tenant;
END;
CREATE TRIGGER memory_link_added AFTER INSERT ON memory_links BEGIN
  UPDATE memory_tenants SET changes = changes + 1 WHERE tenant = (
    SELECT tenant FROM memory_items WHERE user_id = NEW.user_id AND id = NEW.source_id
  );
END;

-- Enhanced searches that are kept for the next search with the same query. `query` is a hash of the normalised query,
-- `hits` a list of pairs: the id of a memory and its score.
CREATE TABLE memory_searches (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  query TEXT NOT NULL,
  changes INTEGER NOT NULL,
  hits TEXT NOT NULL,
  made_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, project_id, query)
) WITHOUT ROWID;

-- Items that end at a moment of their own.
CREATE INDEX idx_memory_items_expiry ON memory_items (expires_at_epoch) WHERE expires_at_epoch IS NOT NULL;

-- The number of changes when the items of a tenant were last counted for `memory_statistics`.
ALTER TABLE memory_tenants ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;

-- How many living items a tenant had on a day (UTC), if they were counted then. `counts` is a list of kind, tier, items.
CREATE TABLE memory_statistics (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  day TEXT NOT NULL,
  items INTEGER NOT NULL,
  counts TEXT NOT NULL,
  PRIMARY KEY (user_id, project_id, day)
) WITHOUT ROWID;

-- The same of all tenants together: the sum at the end of a day, if it has changed on that day.
CREATE TABLE memory_totals (
  kind TEXT NOT NULL,
  tier TEXT NOT NULL,
  day TEXT NOT NULL,
  items INTEGER NOT NULL,
  PRIMARY KEY (kind, tier, day)
) WITHOUT ROWID;
