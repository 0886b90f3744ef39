-- name: assume_version
-- Used if the version in the damaged file cannot be read: the file was in use, so its schema was the newest.
INSERT OR IGNORE INTO schema_versions (room, version) VALUES (:room, :version)
