"""How a command writes rows of OVN's northbound database, or shows what it would write."""

from __future__ import annotations

from dataclasses import dataclass

from userspace_cni.base.deadline import Deadline
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.northbound import NorthboundClient
from userspace_cni.ovn.row_writing import RowPlan, preview, write_rows


@dataclass(frozen=True)
class WriteMode:
    """How it is done. `dry_run`: nothing is written. `adopt`: rows of a desired name that are not ours become ours."""

    deadline: Deadline
    dry_run: bool = False
    adopt: bool = False


def write_plan(client: NorthboundClient, plan: RowPlan, mode: WriteMode) -> Changes:
    """Write what the plan wants, or show what would be written. Raises Unavailable, RowsRefused, NameTaken, and the plan's."""
    if not mode.dry_run:
        return write_rows(client, plan, mode.deadline)
    changes = preview(client, plan, mode.deadline)
    if changes.refused:
        raise changes.refused[0]
    return changes
