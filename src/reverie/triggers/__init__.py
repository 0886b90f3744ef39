"""Time and activity become messages.

`settings.py` says which task types may be configured, `types.py` which are in force, `user_keys.py` for whom
they run, `schedule.py` when; `plan.py` decides what becomes of a task that is due, `clock.py` does it at the
moment; `tasks.py` is what the rest of the house calls.
"""
