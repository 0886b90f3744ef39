"""`mem_scheduler`: no set-up, a lazy start, and an exit that waits for this process's own submissions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.places import Place

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_task.py"
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def run(place: Place, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=place.environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@SQLITE
def test_the_custom_task_runs_once_however_often_it_is_submitted(place: Place) -> None:
    program = EXAMPLE.read_text(encoding="utf-8")
    first, second = run(place, program), run(place, program)
    assert (first.returncode, first.stderr) == (0, "")
    for line in (  # printed by two threads, so their ends may mix
        "  exporting 'chapter one' for ann (export-chapter-1)",
        "a run with 1 message(s)",
        "submitted, and free to do something else",
    ):
        assert line in first.stdout
    assert second.stdout.splitlines() == ["submitted, and free to do something else"]
    with place.scheduler() as scheduler:
        (item,) = scheduler.status("ann")
        assert (item.status, item.attempts, item.mem_cube_id) == ("completed", 1, "notebook")


@SQLITE
def test_the_exit_waits_for_what_was_submitted_also_with_thread_pools(place: Place) -> None:
    shown = run(
        place,
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from reverie import ScheduleMessageItem, mem_scheduler

        pool = ThreadPoolExecutor(2)
        ends = threading.Event()

        def slow(messages):
            for message in messages:
                ends.wait()
                pool.submit(print, message.content, flush=True).result()

        mem_scheduler.register_handlers({"slow": slow})
        items = [ScheduleMessageItem(user_id="ann", label="slow", content=str(n)) for n in range(15)]
        mem_scheduler.memos_message_queue.submit_messages(items)
        threading._register_atexit(ends.set)  # the last hook is the first to run
        """,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.split() == [str(n) for n in range(15)]


@SQLITE
def test_the_exit_does_not_wait_for_labels_that_this_process_does_not_handle(place: Place) -> None:
    shown = run(
        place,
        """
        from reverie import mem_scheduler
        mem_scheduler.submit("of_another_process", user_id="ann", item_id="1")
        """,
    )
    told = [line for line in shown.stderr.splitlines() if "'unhandled'" not in line]  # an alert
    assert (shown.returncode, told) == (0, [])
    with place.scheduler() as scheduler:
        assert scheduler.status("ann", "1")[0].status == "waiting"


@SQLITE
def test_a_program_that_fails_still_waits(place: Place) -> None:
    shown = run(
        place,
        """
        from reverie import mem_scheduler
        mem_scheduler.memory.add("kept although it fails", user_id="ann", item_id="1")
        raise SystemExit(3)
        """,
    )
    assert shown.returncode == 3
    with place.scheduler() as scheduler:
        assert scheduler.status("ann", "1")[0].status == "completed"


@SQLITE
def test_nothing_is_started_or_written_until_it_is_used(place: Place) -> None:
    shown = run(
        place,
        """
        import threading
        from reverie import mem_scheduler
        mem_scheduler.register_handlers({"work": print})
        assert [t.name for t in threading.enumerate()] == ["MainThread"]
        """,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert not list(place.folder.iterdir())
