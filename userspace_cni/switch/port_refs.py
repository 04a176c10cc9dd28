"""A port that is only ever undone: the driver of PortRef."""

from __future__ import annotations

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, PortRef
from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.ports import PortDriver


class PortRefDriver(Driver[PortRef]):
    """Ports that a record or a mark names, and no step makes."""

    def __init__(self, ports: PortDriver) -> None:
        self._ports = ports

    def apply(self, step: PortRef, deadline: Deadline) -> None:
        """It is never made."""

    def undo(self, step: PortRef, deadline: Deadline) -> None:
        self._ports.undo(step, deadline)

    def check(self, step: PortRef, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """Nothing is expected of it."""
        return []
