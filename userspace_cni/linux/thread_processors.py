"""Keeps the threads of a process on one processor, and lets the programs that it starts run on any.

Threads of Python take turns. When two of them are on two processors, each turn wakes the other processor, and that is half of
what a burst of calls takes: 40 claims took the agent 4.7 ms of processor time each on two processors, and 2.3 on either one.
"""
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

_TASKS: Final = "/proc/self/task"
_MINE: Final = "/proc/thread-self/stat"
_PROCESSOR: Final = 36  # field 39 of proc_pid_stat(5), from field 3 on
_allowed: frozenset[int] = frozenset()
"""Where the process may run, while its threads are kept together; empty otherwise."""


def keep_together() -> None:
    """Have all other threads of this process run where the kernel runs this one now, which stays free to run anywhere.

    The kernel wakes a free thread where there is room, so a call now and then follows that. Threads inherit the place of the one
    that starts them. With one processor nothing is done; a kernel that refuses leaves the threads as they are.
    """
    global _allowed  # noqa: PLW0603 - it is the process's, as the threads are
    allowed = frozenset(os.sched_getaffinity(0))
    if len(allowed) < 2:
        _allowed = frozenset()
        return
    _allowed = allowed
    with open(_MINE, encoding="utf-8", errors="replace") as file:
        here = int(file.read().rpartition(")")[2].split()[_PROCESSOR])
    for each in _threads() - {threading.get_native_id()}:
        _place(each, {here})


def let_apart() -> None:
    """Have all threads of this process run anywhere again."""
    global _allowed
    allowed, _allowed = _allowed, frozenset()
    for each in _threads() if allowed else ():
        _place(each, allowed)


@contextmanager
def anywhere() -> Iterator[None]:
    """Within the block this thread, and so a program that it starts, may run on each processor that the process has."""
    before = os.sched_getaffinity(0) if _allowed else set()
    if not _allowed or before == _allowed:
        yield
        return
    _place(0, _allowed)
    try:
        yield
    finally:
        _place(0, before)


def _threads() -> set[int]:
    return {int(each) for each in os.listdir(_TASKS)}


def _place(thread: int, processors: Collection[int]) -> None:
    with suppress(OSError):  # it has ended, or a processor was taken from us
        os.sched_setaffinity(thread, processors)
