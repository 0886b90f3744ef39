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
