"""The worker in the background: its files, its processes, its log, and starting and stopping it."""
