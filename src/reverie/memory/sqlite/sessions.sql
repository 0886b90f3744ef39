-- name: note
-- A hook that ran later than the end of its session makes the session active again; one that ran earlier, but is noted
-- later, does not. A time never goes back.
INSERT INTO server_sessions (
  user_id, memory_session_id, project_id, status, agent, title, prompts, prompted_at_epoch, last_items, context,
  created_at_epoch, updated_at_epoch, ended_at_epoch
) VALUES (
  :user_id, :session_id, :project_id, iif(:prompt IS NULL, 'created', 'active'), :agent, :prompt,
  :prompt IS NOT NULL, iif(:prompt IS NULL, 0, :at), :items, :context, :at, :at, iif(:is_end, :at, NULL)
)
ON CONFLICT (user_id, memory_session_id) DO UPDATE SET
  status = CASE
    WHEN status IN ('completed', 'failed') AND :at > max(updated_at_epoch, coalesce(ended_at_epoch, 0))
      AND NOT :is_end THEN 'active'
    WHEN status = 'created' AND :prompt IS NOT NULL THEN 'active'
    ELSE status END,
  completed_at_epoch = iif(
    :at > max(updated_at_epoch, coalesce(ended_at_epoch, 0)) AND NOT :is_end, NULL, completed_at_epoch
  ),
  error = iif(
    :at > max(updated_at_epoch, coalesce(ended_at_epoch, 0)) AND NOT :is_end, NULL, error
  ),
  ended_at_epoch = CASE
    WHEN :is_end THEN max(:at, coalesce(ended_at_epoch, 0))
    WHEN :at > coalesce(ended_at_epoch, 0) THEN NULL
    ELSE ended_at_epoch END,
  updated_at_epoch = max(updated_at_epoch, :at),
  created_at_epoch = min(created_at_epoch, :at),
  agent = coalesce(agent, :agent),
  title = coalesce(title, :prompt),
  prompts = prompts + (:prompt IS NOT NULL AND :at > prompted_at_epoch),
  prompted_at_epoch = iif(:prompt IS NULL, prompted_at_epoch, max(prompted_at_epoch, :at)),
  context = coalesce(context, :context),
  last_items = json_patch(last_items, :items)

-- name: put
-- Writes the end of a session of the cube, unless a later hook has come meanwhile. A session that nobody has noted is new.
UPDATE server_sessions SET
  status = :status, completed_at_epoch = :now, error = :error
WHERE user_id = :user_id AND memory_session_id = :session_id AND project_id = :project_id
  AND updated_at_epoch <= :at AND status <> :status

-- name: begin
INSERT INTO server_sessions (
  user_id, memory_session_id, project_id, status, agent, created_at_epoch, updated_at_epoch
) VALUES (:user_id, :session_id, :project_id, 'created', :agent, :at, :at)
ON CONFLICT (user_id, memory_session_id) DO NOTHING

-- name: session
SELECT session_columns FROM server_sessions WHERE user_id = ? AND memory_session_id = ?

-- name: sessions
SELECT session_columns FROM server_sessions
WHERE user_id = :user_id AND (:project_id IS NULL OR project_id = :project_id) AND (:status IS NULL OR status = :status)
  AND (updated_at_epoch, memory_session_id) < (:before, :before_id)
ORDER BY updated_at_epoch DESC, memory_session_id DESC LIMIT :limit

-- name: time_out
UPDATE server_sessions SET status = 'failed', completed_at_epoch = :now, error = 'timeout'
WHERE (user_id, memory_session_id) IN (
  SELECT user_id, memory_session_id FROM server_sessions
  WHERE status IN ('created', 'active') AND updated_at_epoch < :before AND ended_at_epoch IS NULL
  ORDER BY updated_at_epoch LIMIT :limit
)
RETURNING session_columns

-- name: slow_ends
SELECT session_columns FROM server_sessions
WHERE status IN ('created', 'active') AND ended_at_epoch IS NOT NULL AND ended_at_epoch < :before
ORDER BY updated_at_epoch LIMIT :limit

-- name: forget
DELETE FROM server_sessions WHERE user_id = ? AND memory_session_id = ? RETURNING 1

-- name: aliases
-- A folder alone does not make two repositories one project: a clone may have taken the place of another one.
SELECT a.project_id FROM json_each(:keys) AS k
JOIN project_aliases AS a ON a.user_id = :user_id AND a.key = k.value
WHERE (k.value NOT GLOB 'common:*' AND k.value NOT GLOB 'folder:*')
  OR NOT EXISTS (SELECT 1 FROM json_each(:keys) WHERE value GLOB 'remote:*')
  OR NOT EXISTS (
    SELECT 1 FROM project_aliases AS o
    WHERE o.user_id = a.user_id AND o.project_id = a.project_id AND o.key GLOB 'remote:*'
  )
ORDER BY k.key LIMIT 1

-- name: add_aliases
INSERT INTO project_aliases (user_id, key, project_id)
SELECT :user_id, value, :project_id FROM json_each(:keys) WHERE true
ON CONFLICT (user_id, key) DO NOTHING

-- name: keys
SELECT key FROM project_aliases WHERE user_id = ? AND project_id = ? ORDER BY key

-- name: session_items
SELECT item_columns FROM memory_tenants AS t
  CROSS JOIN memory_sessions AS s ON s.tenant = t.tenant AND s.server_session_id = :session_id
  CROSS JOIN memory_cards AS c ON c.session = s.session
  CROSS JOIN memory_items AS i ON i.seq = c.seq
WHERE t.user_id = :user_id AND i.superseded_by IS NULL
ORDER BY i.created_at_epoch DESC, i.seq DESC LIMIT :limit

-- name: set_aside
INSERT INTO llm_hours (user_id, label, hour, tokens)
SELECT :user_id, :label, :hour, :tokens WHERE :tokens <= :limit
ON CONFLICT (user_id, label, hour) DO UPDATE SET tokens = max(0, tokens + excluded.tokens)
WHERE tokens + excluded.tokens <= :limit
RETURNING 1

-- name: forget_hours
DELETE FROM llm_hours WHERE user_id = :user_id AND label = :label AND hour < :hour
