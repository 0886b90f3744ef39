-- Upkeep: when it last succeeded, what its passes have changed, and what it has looked at already. It only adds.

-- Whether `valid_to_epoch` was empty when the item was superseded: then it is empty again when the item comes back.
ALTER TABLE memory_items ADD COLUMN was_open INTEGER;

CREATE TABLE memory_upkeep (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  label TEXT NOT NULL,
  -- until when a pass of this label has looked at all changes
  succeeded_epoch INTEGER,
  -- how many items were written since
  fresh INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (user_id, project_id, label)
) WITHOUT ROWID;
CREATE INDEX idx_memory_upkeep_fresh ON memory_upkeep (label, fresh);

CREATE TABLE memory_passes (
  pass INTEGER PRIMARY KEY,
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  id TEXT NOT NULL,
  label TEXT NOT NULL,
  began_epoch INTEGER NOT NULL,
  undone_epoch INTEGER,
  UNIQUE (user_id, project_id, id)
);

-- Ids only: no text of an item is kept here.
CREATE TABLE memory_pass_changes (
  pass INTEGER NOT NULL,
  number INTEGER NOT NULL,
  -- created, superseded, moved or linked
  change TEXT NOT NULL,
  id TEXT NOT NULL,
  -- the successor, the tier before, or the other end of the link
  other TEXT,
  relation TEXT,
  PRIMARY KEY (pass, number)
) WITHOUT ROWID;

-- Groups of items that were decided upon, as hashes of their ids and texts.
CREATE TABLE memory_judged (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  key TEXT NOT NULL,
  PRIMARY KEY (user_id, project_id, key)
) WITHOUT ROWID;
