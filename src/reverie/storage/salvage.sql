-- name: assume_version
-- The damaged file was in use, so it had the newest schema, should it not be able to say so.
INSERT OR IGNORE INTO schema_versions (room, version) VALUES (:room, :version)
