"""The traps that `kubevirt/` finds in files and objects, as findings like the node's own: its image has no `base/`."""

from __future__ import annotations

from collections.abc import Iterable

from kubevirt.findings import Trap
from userspace_cni.base.findings import Finding


def findings_of(traps: Iterable[Trap]) -> list[Finding]:
    """The traps as findings."""
    return [Finding(each.name, each.severity, each.subject, each.message, each.remedy, each.path, each.why) for each in traps]
