"""Measurements, never part of the tests: `python -m benchmarks queue --json`; see `docs/benchmarks.md`."""
