"""Storage that rooms share: one SQLite writer for queue and memory."""
