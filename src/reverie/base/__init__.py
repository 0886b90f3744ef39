"""What every room stands on: clock, services, logs, failpoints, threads, the bridge for blocking callers."""
