"""What the driver asks of its node, and what passes between the kubelet's calls and the node. Only types are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from userspace_cni.base.errors import UserspaceError


@dataclass(frozen=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class PreparedDevice:
    """One device of a claim, ready for its container. `request`: the request's name, with its subrequest as "request/subrequest".

    `cdi_ids`: what the runtime is to put into the containers that use the request.
    """

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What became of one claim: its devices, or why it could not be prepared."""

    devices: tuple[PreparedDevice, ...] = ()
    error: UserspaceError | None = None


class DraNode(Protocol):
    """What the node does for the driver. Calls for different claims may come at the same time, on different threads."""

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        """Make the ports of these claims, unless they are there, and what their containers need; by UID, each of them. A claim
        that fails leaves nothing, and the others are prepared."""
        ...

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, UserspaceError | None]:
        """Undo all that there is of these claims, also of unknown ones; by UID, each of them, with why something stays."""
        ...
