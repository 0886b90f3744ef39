"""A timed task of one's own: three keys of configuration, a function, and a line that brings them together.

Run it as it is: `python examples/three_keys.py`. However often Ann is active within a second, the task runs
once for her, a second after she was active first. In `reverie.yaml` the keys stand under `scheduler.tasks`.
"""

import threading

from reverie import Scheduler, TaskScheduler
from reverie.settings import load_settings

MY_NEW_TASK = {"enabled": True, "trigger_mode": "user_activity", "interval": 1}

scheduler = Scheduler("memory://", settings=load_settings(scheduler={"tasks": {"my_new_task": MY_NEW_TASK}}))
done = threading.Event()


def my_task_handler(user_id, device_id, agent_id):
    print(f"my_new_task runs for {user_id} on {device_id} with {agent_id}")
    done.set()
    return True  # False, or an exception, and it is tried again


TaskScheduler(scheduler).register_handler("my_new_task", my_task_handler)

with scheduler:
    for _ in range(3):
        scheduled = scheduler.schedule_user_task("my_new_task", "ann", device_id="phone")
        print("a new run was scheduled" if scheduled else "a run is scheduled already")
    done.wait(30)
