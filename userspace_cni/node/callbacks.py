"""Whom a node that lives on tells of what happens on it meanwhile. None of them may wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.changes import Listeners


@dataclass(frozen=True)
class Callbacks:
    """`group` gets the number of ports of each transaction; `disconnect` the name of a port whose application has disconnected;
    `change` the name of a bridge that came, went or is another, or the external_ids of a row of a port that has changed; `untold`
    the number of notices that no pod was told; `pod` namespace and name of a pod that has changed; `claims` the namespace of
    a pod that has come, and the names of the ResourceClaims that it names itself; `lost` is called when the session with
    OVSDB is lost."""

    group: Callable[[int], None] = lambda _: None
    disconnect: Callable[[str], None] = lambda _: None
    change: Callable[[str, Mapping[str, str]], None] = lambda *_: None
    untold: Callable[[int], None] = lambda _: None
    pod: Callable[[str, str], None] = lambda *_: None
    claims: Callable[[str, Collection[str]], None] = lambda *_: None
    lost: Callable[[], None] = lambda: None

    def listeners(self) -> Listeners:
        from userspace_cni.switch.ovsdb.changes import Listeners

        return Listeners(self.disconnect, self.change, self.lost)
