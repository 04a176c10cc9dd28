"""The base class of steps: frozen data that names one thing which must be true on this node, and the traits of its type.

A step holds everything that a driver needs to make it, check it and undo it, because DEL has only the record. Verbs, cleanup,
reconciliation and commands read the traits, and never ask which type a step is: a new type answers for itself. What is asked of
an attachment and not of a step, as which port it has, `parts` answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.stages import Stage


@dataclass(frozen=True)
class SharedResource:
    """A thing on the node that several attachments may need: it exists once and has a list of holders.

    `place` is the thing's directory: all things of one directory have one lock and one list. `key` names the thing.
    `exclusive`: a second holder is refused instead of added. `lent`: another attachment makes and removes it, its holders never.
    """

    place: str
    key: str
    exclusive: bool = False
    lent: bool = False


@dataclass(frozen=True)
class Step:
    """One thing that must be true on this node. Defining a type with a `kind` registers it: records name the type by its kind."""

    kind: ClassVar[str]
    stage: ClassVar[Stage] = "pod"
    """The stage for which its time counts. A step of stage "ovs" cannot be checked while the switch cannot be asked."""
    from_switch: ClassVar[bool] = False
    """Whether it needs something that the switch makes: it is applied after all earlier steps have ended, and repaired after
    the others."""
    holds_others: ClassVar[bool] = False
    """Whether its thing contains things of other steps of the same place: it is undone after them, and not while one of them
    stays."""
    keeps_earlier: ClassVar[bool] = False
    """Whether earlier steps must stay while it cannot be undone, because something that cannot be made again would be lost with
    them."""
    postponable: ClassVar[bool] = False
    """Whether DEL succeeds although OVS does not answer to undo it; the record says durably what is left."""
    left_by_application: ClassVar[bool] = False
    """Whether an application that dies leaves it, and its successor cannot start: it is looked at when the connection ends."""
    leaves_dead_switch: ClassVar[bool] = False
    """Whether it must not stay while ovs-vswitchd is gone, or serves no bridge: it leads frames that the node needs to a switch
    that carries none."""
    takes_nic: ClassVar[bool] = False
    """Whether the frames of the node's NIC reach ovs-vswitchd alone, as long as that lives: addresses that went back to the NIC
    would hear nothing."""
    may_have_lease: ClassVar[bool] = False
    """Whether its attachment may have addresses that are not recorded."""
    abridged: ClassVar[tuple[str, ...]] = ()
    """Fields of which commands show only the length."""

    def __init_subclass__(cls) -> None:
        kind = vars(cls).get("kind")
        if kind is not None and STEP_TYPES.setdefault(kind, cls) is not cls:
            raise TypeError(f"{cls.__name__} and {STEP_TYPES[kind].__name__} are both of kind {kind!r}")

    @property
    def resource(self) -> SharedResource | None:
        """The shared thing of this step; None when it is this attachment's alone."""
        return None

    @property
    def thing(self) -> str:
        """Which thing of its kind it is about: of two steps of one kind and thing the later replaces the earlier."""
        return ""

    @property
    def makes_place(self) -> bool:
        """Whether it makes its place, which must not be within another attachment's."""
        return False

    @property
    def links(self) -> tuple[str, ...]:
        """The links in the switch's network namespace that it needs as it has made or found them."""
        return ()

    @property
    def limits(self) -> Limits:
        """What it limits of the attachment's frames."""
        return UNLIMITED

    @property
    def reported(self) -> Mapping[str, Any]:
        """What it says of the attachment in the API: of `interface`, `bridge`, `mtu` and `vlans`. Of several, the first tells."""
        return {}

    def in_boot(self, boot_id: str) -> Step:  # noqa: ARG002 - most say nothing of a boot
        """The step as it is made anew in that boot."""
        return self

    @property
    def summary(self) -> str:
        """One line about it, for people."""
        return ", ".join(f"{item.name} {getattr(self, item.name)}" for item in fields(self))


STEP_TYPES: Final[dict[str, type[Step]]] = {}
"""The types of steps, by kind."""
