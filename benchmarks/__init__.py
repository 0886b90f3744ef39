"""Measurements: `python -m benchmarks queue --backend sqlite --json`. Never part of the tests."""
