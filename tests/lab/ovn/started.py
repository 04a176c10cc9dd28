"""Objects that a `with` block starts, and that are stopped whatever happens, also when the start fails; and how they run
programs."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from typing import Self

from tests.lab.switch.switch import CTL_SECONDS


class Started(ABC):
    """`with` starts it, gives the object itself, and stops it at the end of the block."""

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def begin(self) -> None:
        """Start it, and wait until it serves."""

    @abstractmethod
    def stop(self) -> None:
        """End what was started. May be called again."""


class Server(Started):
    """One process, which is killed at the end; its sockets vanish with it."""

    _process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(CTL_SECONDS)
            self._process = None


def run_program(*argv: str) -> str:
    """Its output, without the last newline; RuntimeError has its stderr."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * CTL_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
