"""The queue on SQLite, beside raw SQLite and beside other queues on SQLite."""
