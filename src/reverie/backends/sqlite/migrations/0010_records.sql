-- What people set up (API keys, webhooks …), as JSON, and who changed what. It only adds.
CREATE TABLE records (
  kind TEXT NOT NULL,
  id TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (kind, id)
) WITHOUT ROWID;

CREATE TABLE audit_log (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at_epoch INTEGER NOT NULL,
  who TEXT NOT NULL,
  action TEXT NOT NULL,
  target TEXT NOT NULL,
  user_id TEXT,
  trace_id TEXT
);
CREATE INDEX idx_audit_log_user ON audit_log (user_id, number);
