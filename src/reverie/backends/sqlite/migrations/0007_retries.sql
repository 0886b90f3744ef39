-- `retry_count` counts failed runs only: a completed message had one run more.
UPDATE pending_messages SET retry_count = retry_count - 1 WHERE status = 'completed' AND retry_count > 0;
