"""A background task of one's own, in one file, with the scheduler that is ready to use.

Run it as it is: `python examples/custom_task.py`. The worker starts with the first submit, and the program
ends when what it has submitted is done. Run it again and the same ids are duplicates: nothing runs twice.
"""

import time

from reverie import ScheduleMessageItem, mem_scheduler

EXPORT = "export_notes"


def export_notes(messages: list[ScheduleMessageItem]):
    print(f"a run with {len(messages)} message(s)")
    for message in messages:
        print(f"  exporting {message.content!r} for {message.user_id} ({message.item_id})")
        time.sleep(0.1)


mem_scheduler.register_handlers({EXPORT: export_notes})

# The next run of the same user's lane starts at least five seconds after the last one has ended.
mem_scheduler.orchestrator.tasks_min_idle_ms[EXPORT] = 5000

task = ScheduleMessageItem(
    user_id="ann",
    mem_cube_id="notebook",
    label=EXPORT,
    content="chapter one",
    item_id="export-chapter-1",
)
mem_scheduler.memos_message_queue.submit_messages([task])
print("submitted, and free to do something else")
