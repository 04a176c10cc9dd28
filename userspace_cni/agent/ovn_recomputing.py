"""Has ovn-controller compute all its flows anew at intervals (setting `ovn_recompute_s`), as kube-ovn's daemon does.

Where ovn-controller has missed a change, its flows stay wrong until then. It costs one of its rounds over the whole network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.loops import Loop

_ANSWER_S: Final = 10.0
"""Its one thread may be busy for that long."""


class OvnRecomputing(Loop):
    """The thread. `ask`: asks ovn-controller, until a deadline; `interval_s`: between two askings, and before the first."""

    failing = "ovn-controller is not asked to recompute; it is tried again: "
    back_off = BackOff(30.0, 600.0)

    def __init__(self, ask: Callable[[Deadline], None], interval_s: float) -> None:
        super().__init__("recomputing", "has ovn-controller recompute")
        self.first_s = self._interval_s = interval_s
        self._ask_controller = ask

    def _round(self) -> float:
        self._ask_controller(Deadline.after(_ANSWER_S))
        return self._interval_s
