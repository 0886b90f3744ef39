"""Compare the queue on SQLite with raw SQLite and with other queues on SQLite."""
