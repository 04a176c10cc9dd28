"""What every step is: frozen data naming one thing that must be true on this node, and the traits of its type.

A step holds everything that a driver needs to make it, verify it and undo it, because DEL has only the record. Verbs, cleanup,
reconciliation and commands ask for the traits, and never which type a step is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Final, TypeVar

from userspace_cni.base.stages import Stage

T = TypeVar("T")


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
    """One thing that must be true on this node. A type is known by its `kind`, in records too, from its definition on."""

    kind: ClassVar[str]
    stage: ClassVar[Stage] = "pod"
    """What its time counts for. Of "ovs" nothing is known while the switch cannot be asked."""
    from_switch: ClassVar[bool] = False
    """Whether it is made of what the switch makes: after what earlier steps began has come to its end, and again when the switch
    was restarted."""
    holds_others: ClassVar[bool] = False
    """Whether things of other steps of its place lie in its own: it is undone after them, and not while one of them stays."""
    postponable: ClassVar[bool] = False
    """Whether DEL succeeds although what has to undo it does not answer; the record says durably what is left."""
    left_by_application: ClassVar[bool] = False
    """Whether an application that dies leaves it in its successor's way: it is looked at as soon as the connection ends."""
    may_have_lease: ClassVar[bool] = False
    """Whether it tells of an attachment that may have addresses of which it does not tell."""
    abridged: ClassVar[tuple[str, ...]] = ()
    """Fields of which people are told the length alone."""
    stored_as: ClassVar[type[Step] | None] = None
    """What stands in records for it; None for the step itself."""

    def __init_subclass__(cls) -> None:
        kind = vars(cls).get("kind")
        stored = cls.stored_as or cls
        if kind is not None and STORED_TYPES.setdefault(kind, stored) is not stored:
            raise TypeError(f"{cls.__name__} and {STORED_TYPES[kind].__name__} are both of kind {kind!r}")

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

    @property
    def makes_place(self) -> bool:
        """Whether it makes its place, which must then be no other attachment's."""
        return False

    @property
    def summary(self) -> str:
        """What it is about, in a line for people."""
        return ", ".join(f"{item.name} {getattr(self, item.name)}" for item in fields(self))


STORED_TYPES: Final[dict[str, type[Step]]] = {}
"""What stands in records, by its kind: a type itself, or what it is `stored_as`."""


def first_of(steps: Iterable[Step], kind: type[T]) -> T | None:
    """The first of the steps that is of this type."""
    return next((step for step in steps if isinstance(step, kind)), None)
