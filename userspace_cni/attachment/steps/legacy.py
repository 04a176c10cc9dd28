"""What the plugin that this one replaces left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Step


@dataclass(frozen=True)
class LegacyRecord(Step):
    """A record of the plugin that this one replaces: `local-<cid12>-<ifname>.json`. Only ever undone."""

    kind: ClassVar[str] = "legacy-record"
    path: str
