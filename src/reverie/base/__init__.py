"""The base of all rooms: clock, services, logs, failpoints, threads, the bridge for blocking callers."""
