-- How often a person had sent the message back when the row was written: a requeued message decides anew.
ALTER TABLE inbox ADD COLUMN requeues INTEGER NOT NULL DEFAULT 0;
