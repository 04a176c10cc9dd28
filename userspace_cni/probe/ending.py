"""How a signal ends a measurement: once, and so that it is not forgotten.

A handler's exception can be lost: raised within a destructor, a weak reference's callback or the garbage collector it is printed
and swallowed by the interpreter. So a signal is remembered too, and what loops asks between two steps. What cleans up is not
interrupted; anything else is, by each further signal, for the one before may have been lost.
"""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Self

from userspace_cni.base.signals import Signals


class Ended(KeyboardInterrupt):
    """A signal ended what was being done."""


class Ending:
    """While it is entered, SIGINT, SIGTERM and SIGHUP become Ended; those that are ignored, as nohup(1) has it, stay so.

    For the main thread. `asked`: whether one of them came.
    """

    def __init__(self) -> None:
        self.asked = False
        self._settled = False
        self._signals = Signals(self._hear)

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._signals.restore()

    def listen(self) -> None:
        """Hear signals, also where something else was entered since that wants them for itself."""
        self._signals.hear()

    def check(self) -> None:
        """Raise Ended if a signal came, whatever became of its exception."""
        if self.asked:
            raise Ended

    def settle(self) -> None:
        """What follows cleans up: from here on signals are only remembered."""
        self._settled = True

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if not self._settled and not _is_ending():
            raise Ended


def _is_ending() -> bool:
    """Whether what runs now was reached by an Ended that is still on its way: then it cleans up."""
    error = sys.exception()
    while error is not None and not isinstance(error, Ended):
        error = error.__context__
    return error is not None
