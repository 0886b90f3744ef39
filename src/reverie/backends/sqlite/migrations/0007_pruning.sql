-- By which `queue.retention_s` the statuses in this file were dated at most, in milliseconds; NULL: nobody knows. It
-- only adds: a process of an earlier version goes on beside one that knows this.
ALTER TABLE queue_counters ADD COLUMN retention_ms INTEGER;
