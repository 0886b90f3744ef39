"""Claim, batch, run, retry, settle: the worker, as one small service for each duty.

A message passes through `producer.py` → `placement.py` → `settlements.py` → `settler.py`. Meanwhile
`renewer.py` keeps its claim. `timekeeper.py` moves messages that are due, and `worker.py` wires the services.
"""
