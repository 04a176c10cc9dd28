"""What every step is: frozen data naming one thing that must be true on this node.

A step holds everything that a driver needs to make it, verify it and undo it, because DEL has only the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Resource:
    """Something on the node that several attachments may need: it exists once and lists its holders.

    `place` is the directory to which it belongs: all things of one directory have one lock and one list. `key` names the thing.
    `exclusive`: a second holder is refused instead of added.
    """

    place: str
    key: str
    exclusive: bool = False


@dataclass(frozen=True)
class Step:
    """One thing that must be true on this node."""

    kind: ClassVar[str]
    after_rest: ClassVar[bool] = False
    """Whether it can only be applied when what earlier steps began has come to its end."""
    holds_others: ClassVar[bool] = False
    """Whether things of other steps of its place lie in its own: it is undone after them, and not while one of them stays."""

    stored_as: ClassVar[type[Step] | None] = None
    """What stands in records for it; None for the step itself."""

    @property
    def resource(self) -> Resource | None:
        """The shared thing behind this step; None when it is this attachment's alone."""
        return None

    def stored(self) -> Step:
        """The `stored_as` of this step."""
        return self

    def restored(self) -> Step:
        """The step for which this stands in records."""
        return self
