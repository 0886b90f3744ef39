"""Time and activity become messages.

`settings.py` says which trigger types may be configured, `types.py` which are in force, `user_keys.py` for
whom they run, `schedule.py` when. `plan.py` decides what becomes of a due trigger, and `clock.py` does it at
the due time. The rest of the house calls `service.py`.
"""
