"""The table of breaks: how one is written, and what `userspace-cni why` has to say of it.

A break is a function on a node whose attachments are well; its docstring says what has happened. It may leave whatever it likes
broken: the node is thrown away, and what outlives it (the switch, processes) it registers in `node.end`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.breaking.breakable_node import BreakableNode, PodKind, RunningPod

Make = Callable[[BreakableNode, RunningPod], object]


@dataclass(frozen=True)
class Break:
    """A break of a pod of this `kind`. `finding`: the name of the cause that `why` names first; `words`: what its paragraph says.

    `asks`: the pod that is asked about, where the break makes another one. `mended`: the first command of the remedy mends it.
    """

    name: str
    kind: PodKind
    finding: str
    words: tuple[str, ...]
    make: Make
    asks: str = ""
    mended: bool = False

    @property
    def story(self) -> str:
        """What has happened."""
        return (self.make.__doc__ or "").partition("\n")[0]


BREAKS: dict[str, Break] = {}
"""Those of the modules that are imported; `every_break` imports all."""


def breaks(kind: PodKind, finding: str, *words: str, asks: str = "", mended: bool = False) -> Callable[[Make], Make]:
    """Add the decorated function to the table."""

    def add(make: Make) -> Make:
        name = make.__name__.removeprefix("break_")
        assert name not in BREAKS, f"two breaks are called {name}"
        BREAKS[name] = Break(name, kind, finding, words, make, asks, mended)
        return make

    return add
