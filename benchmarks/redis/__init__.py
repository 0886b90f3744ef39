"""Compare the queue on Redis or Valkey with the server's raw limit and with other queues on it."""
