-- What is remembered. The *_epoch columns are milliseconds.
CREATE TABLE memory_items (
  -- what the text index knows it by; a rowid without a name would change with VACUUM
  seq INTEGER PRIMARY KEY,
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  server_session_id TEXT,
  kind TEXT NOT NULL,
  tier TEXT NOT NULL,
  text TEXT NOT NULL,
  tags TEXT NOT NULL,
  info TEXT,
  sources TEXT NOT NULL,
  created_at_epoch INTEGER NOT NULL,
  updated_at_epoch INTEGER NOT NULL,
  UNIQUE (user_id, id)
);
CREATE INDEX idx_memory_items_project ON memory_items (user_id, project_id, created_at_epoch);

-- The text index: only words, found again by the item's seq.
CREATE VIRTUAL TABLE memory_words USING fts5 (
  words, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);

-- Which messages have had their effects applied, when the queue lives in another database.
CREATE TABLE inbox (
  user_id TEXT NOT NULL,
  item_id TEXT NOT NULL,
  -- which message it was: an id may come again after the queue has forgotten it
  fingerprint TEXT NOT NULL,
  closed INTEGER NOT NULL,
  -- how often the message had been lost when this was written: a later claim has lost it more often
  losses INTEGER NOT NULL,
  follow_ups TEXT NOT NULL,
  applied_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, item_id)
) WITHOUT ROWID;
