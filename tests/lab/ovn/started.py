"""Objects that a `with` block starts, and that are stopped whatever happens, also when the start fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


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
