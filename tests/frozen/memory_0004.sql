-- When the queue accepted the message, by its own clock: an id that comes again after the queue has forgotten it is
-- another acceptance. NULL: written by a version that did not know. It only adds: a process of an earlier version goes
-- on beside one that knows this.
ALTER TABLE inbox ADD COLUMN submitted_at_epoch INTEGER;
-- By this index old rows are found. It takes about a second to build for each million of rows.
CREATE INDEX idx_inbox_applied ON inbox (applied_at_epoch);
