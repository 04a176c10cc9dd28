"""The records that the plugin which this one replaces left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.stages import Stage


@dataclass(frozen=True)
class LegacyRecord(Step):
    """A record of the plugin that this one replaces: `local-<cid12>-<ifname>.json`. Only ever undone."""

    kind: ClassVar[str] = "legacy-record"
    stage: ClassVar[Stage] = "ovs"
    postponable: ClassVar[bool] = True
    may_have_lease: ClassVar[bool] = True
    path: str

    @property
    def summary(self) -> str:
        return self.path
