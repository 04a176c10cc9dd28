"""The store: records, and DELs that were called while no agent answered, with boot and time, by which they are ordered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.attachment.spool import Spool


@dataclass(frozen=True)
class AttachmentStore:
    """`boot_id` gives the kernel's random id of this boot, `boottime_ns` CLOCK_BOOTTIME now, in nanoseconds."""

    journal: Journal
    spool: Spool
    boot_id: Callable[[], str]
    boottime_ns: Callable[[], int]
