"""Events on Routes of which something can never be: what `kubectl describe route` shows, beside the status.

Who writes the status tells of it: the one controller that acts, when the server took the status. So it is told once, and again
when the text is another one, whichever controller acts then; what the former status said is in the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from userspace_cni.base.notices import ROUTE_REFUSED, Notice, Recipient
from userspace_cni.controller.cluster import tables, text
from userspace_cni.controller.writes import Summary
from userspace_cni.kube.resources import ROUTES

COMPONENT: Final = "userspace-cni-controller"
"""Who makes these Events."""


def told(send: Callable[[Recipient, Sequence[Notice]], None]) -> Callable[[Summary], None]:
    """What tells of a status that was written, by `send`, which must not wait."""

    def tell(write: Summary) -> None:
        if write.resource != ROUTES:
            return
        said = refused(write.status)
        if said and said != refused(write.before):
            recipient = Recipient("", write.name, write.uid, "", ROUTES.kind, ROUTES.api_version)
            send(recipient, [Notice(ROUTE_REFUSED, said)])

    return tell


def refused(status: Mapping[str, Any]) -> str:
    """What of a Route with this status can never be; "" for nothing."""
    valid = next((each for each in tables(status, "conditions") if text(each, "type") == "Valid"), {})
    if text(valid, "status") != "False":
        return ""
    whole = "nothing of it is applied: " if text(status, "status") == "Invalid" else ""
    return f"{whole}{text(valid, 'message')}"
