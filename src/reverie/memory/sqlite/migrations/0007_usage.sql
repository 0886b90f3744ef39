-- What calls of the language model have cost, by tenant, day and label. It only adds.
CREATE TABLE llm_usage (
  user_id TEXT NOT NULL,
  project_id TEXT NOT NULL,
  day TEXT NOT NULL,
  label TEXT NOT NULL,
  calls INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  -- The price in millionths of the currency of `llm.prices`.
  micros INTEGER NOT NULL,
  PRIMARY KEY (user_id, project_id, day, label)
) WITHOUT ROWID;
CREATE INDEX idx_llm_usage_day ON llm_usage (day);

-- The calls of the last days, each counted once in `llm_usage`.
CREATE TABLE llm_calls (
  key TEXT PRIMARY KEY,
  day TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_llm_calls_day ON llm_calls (day);
