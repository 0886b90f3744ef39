-- What workers share about a thing they call (limiter, breaker), as JSON; a key that is fine has no row.
CREATE TABLE shared_state (
  key TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  forget_at_epoch INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_shared_state_forget ON shared_state (forget_at_epoch);
