"""Threads that are kept together, and programs that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json, os, subprocess, sys, threading
from userspace_cni.linux.thread_processors import anywhere, keep_together, let_apart

ends = threading.Event()
waiting = [threading.Thread(target=ends.wait) for _ in range(3)]
for each in waiting:
    each.start()
free = threading.Thread(target=keep_together)
free.start()
free.join()
asking = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
with anywhere():
    started = json.loads(subprocess.check_output(asking))
threads = [sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")]
let_apart()
apart = [sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")]
print(json.dumps({"threads": threads, "started": started, "apart": apart}))
ends.set()
"""


def told(allowed: set[int]) -> dict[str, list[list[int]] | list[int]]:
    """What a process says that may run on these processors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    found: dict[str, list[list[int]] | list[int]] = json.loads(done.stdout)
    return found


def test_threads_share_a_processor() -> None:
    """All threads have the same one, of those that the process may have; a program that they start has all of these, and so have
    the threads afterwards."""
    allowed = os.sched_getaffinity(0)
    found = told(allowed)
    first, *others = found["threads"]
    assert len(others) == 3
    assert all(each == first for each in others)
    assert isinstance(first, list)
    assert len(first) == 1
    assert set(first) <= allowed
    assert found["started"] == sorted(allowed)
    assert found["apart"] == [sorted(allowed)] * 4


def test_a_process_with_one_processor() -> None:
    """Nothing is changed."""
    chosen = max(os.sched_getaffinity(0))
    assert told({chosen}) == {"threads": [[chosen]] * 4, "started": [chosen], "apart": [[chosen]] * 4}
