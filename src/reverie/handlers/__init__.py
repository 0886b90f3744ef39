"""Built-in handlers. A handler reads, thinks, and returns an outcome; it does not write."""
