"""What the room of the switch asks of the kernel's links where ovs-vswitchd opens its ports, and the taps that are made there for
it; `node` passes in who answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class KernelLink(Protocol):
    """A link. The kernel gives its index to no other one as long as it lives."""

    @property
    def index(self) -> int:
        """Its number, from 1."""
        ...

    @property
    def mac(self) -> str: ...

    @property
    def mtu(self) -> int: ...


class NamedLink(Protocol):
    """A link that has a name, or has it as an alternative one."""

    @property
    def index(self) -> int:
        """Its number, from 1."""
        ...

    @property
    def ours(self) -> bool:
        """Whether `KernelLinks.take` made it."""
        ...

    @property
    def in_use(self) -> bool:
        """Whether a process has it open; of what is no tap, whether frames get anywhere."""
        ...


class KernelLinks(Protocol):
    """The links. Equal ones share a look (`SharedReads.once`). All raise Unavailable."""

    def __call__(self) -> Mapping[str, KernelLink]: ...

    def index(self, name: str) -> int:
        """The index of the link of that name, 0 if there is none."""
        ...

    def find(self, name: str) -> NamedLink | None: ...

    def take(self, name: str) -> bool:
        """Make a tap of this name, which ovs-vswitchd is to open; False where a link has the name. Where taps cannot be made at
        all, none is."""
        ...

    def let_go(self, name: str, opened: int = 0) -> bool:
        """Delete such a tap, unless a process has it open; whether it was deleted. So with the tap of the index `opened`, which
        ovs-vswitchd had opened for a row of ours."""
        ...

    def mark(self, name: str, opened: int) -> None:
        """Mark the tap of this index as ours: ovs-vswitchd has opened it for a row of ours."""
        ...

    def set_up(self, name: str) -> None:
        """Set the link up if it is there and down."""
        ...

    def polices(self, name: str) -> bool:
        """Whether the link has an ingress filter, which OVS makes for policing."""
        ...


class Nics(KernelLinks, Protocol):
    """The links, of which some are NICs. What is asked of a link that is not there does nothing."""

    def offloads(self, name: str) -> tuple[str, ...]:
        """Those of gro and lro that are on."""
        ...

    def set_offloads(self, name: str, offloads: Iterable[str], *, on: bool) -> None:
        """Turn these of gro and lro on, or off."""
        ...

    def set_mtu(self, name: str, mtu: int) -> None: ...


class NoLinks:
    """For a switch without kernel ports of ours."""

    def __call__(self) -> Mapping[str, KernelLink]:
        return {}

    def index(self, name: str) -> int:  # noqa: ARG002 - the interface
        return 0

    def find(self, name: str) -> NamedLink | None:  # noqa: ARG002 - the interface
        return None

    def take(self, name: str) -> bool:  # noqa: ARG002 - the interface
        return True

    def let_go(self, name: str, opened: int = 0) -> bool:  # noqa: ARG002 - the interface
        return False

    def mark(self, name: str, opened: int) -> None: ...

    def set_up(self, name: str) -> None: ...

    def polices(self, name: str) -> bool:  # noqa: ARG002 - the interface
        return False
