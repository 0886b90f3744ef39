"""The queue on Redis or Valkey, beside what the server can do and beside other queues on the same server."""
