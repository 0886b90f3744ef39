-- A trigger that is due and waits for another one is put aside, where a look for due triggers does not read it.
ALTER TABLE trigger_tasks ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;  -- reset when a trigger it may wait for changes
-- the types that this one depended on when its triggers were put aside, as JSON
ALTER TABLE trigger_types ADD COLUMN depends_on TEXT NOT NULL DEFAULT '[]';
DROP INDEX idx_trigger_tasks_due;
CREATE INDEX idx_trigger_tasks_due ON trigger_tasks (task_type, scheduled_at_epoch)
  WHERE scheduled_at_epoch IS NOT NULL AND fired_at_epoch IS NULL AND NOT blocked;
CREATE INDEX idx_trigger_tasks_blocked ON trigger_tasks (user_key) WHERE blocked;
