-- Conflicts are counted. It only adds: a process that knows version 1 goes on beside one that knows this.
ALTER TABLE pending_messages ADD COLUMN conflicts INTEGER NOT NULL DEFAULT 0;  -- in a row
