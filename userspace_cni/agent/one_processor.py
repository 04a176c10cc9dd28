"""Keeps the agent on one processor at a time, where the kernel has room.

The agent's threads share one interpreter, so a second processor gives them nothing, and costs them turns that cross from one to
the other. The nodes that it is made for have few processors beside those that poll.
"""

from __future__ import annotations

from typing import Final

from userspace_cni.base.loops import Loop
from userspace_cni.linux.thread_processors import keep_together, let_apart

LOOK_S: Final = 5.0
"""Seconds between two looks at where there is room: another program may have taken the processor for itself."""


class OneProcessor(Loop):
    """The thread. It alone may run anywhere, and the others follow it."""

    end_s = 1.0
    failing = "the threads could not be kept on one processor; they run where they were: "

    def __init__(self) -> None:
        super().__init__("processor", "keeps the agent on one processor")

    def stop(self, within_s: float = 0.0) -> None:
        """Begin no further round, and let the threads run anywhere: what is left to do is the end."""
        super().stop(within_s)
        let_apart()

    def _round(self) -> float:
        keep_together()
        return LOOK_S
