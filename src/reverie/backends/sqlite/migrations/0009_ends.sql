-- `retry_count` counts failed runs only: a completed message had one run more.
UPDATE pending_messages SET retry_count = retry_count - 1 WHERE status = 'completed' AND retry_count > 0;

-- Dead letters by the time of their end: `queue.dead_retention_s` removes them that long after it.
CREATE INDEX idx_pending_messages_dead ON pending_messages (processed_at_epoch)
  WHERE status = 'failed' AND error_message IS NOT 'cancelled';
