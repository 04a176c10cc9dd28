"""The agent's threads are kept on one processor."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tests.agent.living import LiveNode
from tests.lab.switch.switch import wait_until


def processors(pid: int) -> Counter[tuple[int, ...]]:
    """Where its threads may run: how many may run on each set of processors."""
    found: Counter[tuple[int, ...]] = Counter()
    for each in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[tuple(sorted(os.sched_getaffinity(int(each.name))))] += 1
        except ProcessLookupError:
            continue
    return found


def test_threads_share_a_processor(live: LiveNode) -> None:
    """Those that serve are on one, which is one of the agent's; the thread that looks for room may run on all of these."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    live.start()

    def is_so() -> bool:
        found = processors(live.pid)
        alone = [place for place in found if len(place) == 1]
        return len(alone) == 1 and set(alone[0]) <= set(allowed) and found.keys() - set(alone) == {allowed} - set(alone)

    wait_until(is_so, what="the agent's threads on one processor")
    if len(allowed) > 1:
        wait_until(lambda: processors(live.pid)[allowed] == 1, what="one thread that may run anywhere")
