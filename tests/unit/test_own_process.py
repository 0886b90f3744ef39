"""What a process of our own is set to."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from reverie.base.own_process import set_up_process
set_up_process()
library = ctypes.CDLL(None)
together = threading.Barrier(8)
def use():
    together.wait()
    library.malloc(1000)
    together.wait()
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.malloc_stats()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="another C library than glibc")
def test_threads_share_heaps() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert 1 <= done.stderr.count("Arena ") <= 2
