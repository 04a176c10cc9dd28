"""What is known of this boot: its id, and the time since it began."""
# ruff: noqa: PTH123

from __future__ import annotations

import time


def boot_id() -> str:
    """The id of this boot (random(4))."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boottime_ns() -> int:
    """Nanoseconds since this boot, with the time in suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
