"""What parts of a controller that keep rows have in common: what they see of objects is told to these by Events."""

from __future__ import annotations

from collections.abc import Sequence

from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import Recipient
from userspace_cni.base.supervisor import Supervisor
from userspace_cni.kube.events import Events


class RowKeeper(Supervisor):
    """The threads of such a part. It tells nothing before `tell_by`."""

    def __init__(self) -> None:
        super().__init__()
        self._events: Events | None = None

    def tell_by(self, events: Events) -> None:
        """Have objects told by these Events of what is wrong with their rows."""
        self._events = events

    def _tell(self, recipient: Recipient, findings: Sequence[Finding]) -> None:
        if self._events is not None:
            self._events.tell(recipient, findings)
