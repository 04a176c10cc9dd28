"""Ends a measurement by a signal that cannot be lost.

A handler's exception can be lost: the interpreter prints and drops one that is raised within a destructor, a weak reference's
callback or the garbage collector. So a signal is also remembered, and loops ask for it between two steps. Clean-up must not be
interrupted. Everything else is interrupted by each further signal, because the exception of an earlier one may have been lost.
"""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Self

from userspace_cni.base.signals import Signals


class MeasurementEnded(KeyboardInterrupt):
    """A signal ended the measurement."""


class EndingSignals:
    """Within this block SIGINT, SIGTERM and SIGHUP raise Ended; those that are ignored, as by nohup(1), stay so.

    For the main thread. `asked`: whether a signal came.
    """

    def __init__(self) -> None:
        self.asked = False
        self._settled = False
        self._signals = Signals(self._on_signal)

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._signals.restore()

    def listen(self) -> None:
        """Install the handler, also where another one was installed since."""
        self._signals.hear()

    def check(self) -> None:
        """Raise Ended if a signal came, even if its exception was lost."""
        if self.asked:
            raise MeasurementEnded

    def settle(self) -> None:
        """Only remember signals from here on: what follows cleans up."""
        self._settled = True

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if not self._settled and not _is_ending():
            raise MeasurementEnded


def _is_ending() -> bool:
    """Whether an Ended is being handled now: then the code that runs cleans up."""
    error = sys.exception()
    while error is not None and not isinstance(error, MeasurementEnded):
        error = error.__context__
    return error is not None
