-- Items with all that is known of them, and the index of DESIGN: words and vectors by tenant. It only adds: rows that
-- are there get their index from the indexer, batch by batch. Until then the old index `memory_words` finds them.
ALTER TABLE memory_items ADD COLUMN tenant INTEGER;
ALTER TABLE memory_items ADD COLUMN type TEXT;
ALTER TABLE memory_items ADD COLUMN title TEXT;
ALTER TABLE memory_items ADD COLUMN narrative TEXT;
ALTER TABLE memory_items ADD COLUMN facts TEXT;
ALTER TABLE memory_items ADD COLUMN concepts TEXT;
ALTER TABLE memory_items ADD COLUMN device_id TEXT;
ALTER TABLE memory_items ADD COLUMN agent_id TEXT;
ALTER TABLE memory_items ADD COLUMN domain TEXT;
ALTER TABLE memory_items ADD COLUMN importance REAL NOT NULL DEFAULT 0.5;
-- When it held. When it was learned is `created_at_epoch`.
ALTER TABLE memory_items ADD COLUMN valid_from_epoch INTEGER;
ALTER TABLE memory_items ADD COLUMN valid_to_epoch INTEGER;
ALTER TABLE memory_items ADD COLUMN expires_at_epoch INTEGER;
-- When it was last used, later by importance: the lowest is evicted first. NULL: not indexed yet.
ALTER TABLE memory_items ADD COLUMN worth_epoch INTEGER;
CREATE INDEX idx_memory_items_kind ON memory_items (tenant, kind);
CREATE INDEX idx_memory_items_worth ON memory_items (tenant, tier, worth_epoch);

CREATE TABLE memory_tenants (
  tenant INTEGER PRIMARY KEY,
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  UNIQUE (user_id, project_id)
);

-- How many items a tenant has in each tier.
CREATE TABLE memory_tiers (
  tenant INTEGER NOT NULL,
  tier TEXT NOT NULL,
  items INTEGER NOT NULL,
  PRIMARY KEY (tenant, tier)
) WITHOUT ROWID;

-- A shelf is one half of a tenant's index: 2 * tenant for what is searched by default, and 2 * tenant + 1 for items
-- that are superseded or archived. A search costs what its shelf has, and words are weighed by the shelf's own counts.
CREATE TABLE memory_shelves (
  shelf INTEGER PRIMARY KEY,
  items INTEGER NOT NULL,
  words INTEGER NOT NULL
);

-- The conversations of a tenant, and how many places were given in each.
CREATE TABLE memory_sessions (
  session INTEGER PRIMARY KEY,
  tenant INTEGER NOT NULL,
  server_session_id TEXT NOT NULL,
  places INTEGER NOT NULL,
  UNIQUE (tenant, server_session_id)
);

-- The speakers of a tenant's conversations.
CREATE TABLE memory_names (
  tenant INTEGER NOT NULL,
  name TEXT NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- The tokenizers and embedders that entries of the index were made by.
CREATE TABLE memory_models (
  model INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);

-- One card for each indexed item: what ranking needs to know of it, its words and its vector (int8).
CREATE TABLE memory_cards (
  seq INTEGER PRIMARY KEY,
  shelf INTEGER NOT NULL,
  session INTEGER,
  place INTEGER,
  speaker TEXT,
  kind TEXT NOT NULL,
  held_at_epoch INTEGER NOT NULL,
  importance REAL NOT NULL,
  uses INTEGER NOT NULL DEFAULT 0,
  -- whether the text is a question
  asks INTEGER NOT NULL,
  tokenizer INTEGER NOT NULL,
  embedder INTEGER,
  -- how many words the text has
  length INTEGER NOT NULL,
  words TEXT NOT NULL,
  vector BLOB,
  -- where `memory_bits` has the bits of the vector
  block INTEGER
);
CREATE INDEX idx_memory_cards_place ON memory_cards (session, place) WHERE session IS NOT NULL;

-- Which items have which word.
CREATE TABLE memory_postings (
  shelf INTEGER NOT NULL,
  word TEXT NOT NULL,
  seq INTEGER NOT NULL,
  times INTEGER NOT NULL,
  length INTEGER NOT NULL,
  PRIMARY KEY (shelf, word, seq)
) WITHOUT ROWID;

-- The sign of each number of each vector: by these the nearest hundred are found. A block has up to 24 items: their
-- numbers (8 bytes each, little-endian), and in the same order their bits.
CREATE TABLE memory_bits (
  shelf INTEGER NOT NULL,
  embedder INTEGER NOT NULL,
  block INTEGER NOT NULL,
  seqs BLOB NOT NULL,
  bits BLOB NOT NULL,
  PRIMARY KEY (shelf, embedder, block)
) WITHOUT ROWID;

-- Items whose index is not complete.
CREATE TABLE memory_unindexed (seq INTEGER PRIMARY KEY);

-- Items as they were before their changes.
CREATE TABLE memory_versions (
  user_id TEXT NOT NULL,
  id TEXT NOT NULL,
  version INTEGER NOT NULL,
  text TEXT NOT NULL,
  kind TEXT NOT NULL,
  tier TEXT NOT NULL,
  change TEXT NOT NULL,
  changed_at_epoch INTEGER NOT NULL,
  PRIMARY KEY (user_id, id, version)
) WITHOUT ROWID;

-- What the indexer knows: for which tokenizer and embedder all is indexed, and how far it has come.
CREATE TABLE memory_state (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO memory_state VALUES ('old_index', 'memory_words');
