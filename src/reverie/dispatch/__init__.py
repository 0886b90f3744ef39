"""Claim, batch, run, retry, settle: the worker, as one small service for each duty.

A message walks through `producer.py` → `executor.py` → `settlements.py` → `settler.py`; `renewer.py` keeps
its claim meanwhile, `timekeeper.py` does what time asks for, `worker.py` wires them.
"""
