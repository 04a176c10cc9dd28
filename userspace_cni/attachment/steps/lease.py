"""Addresses of an attachment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.stages import Stage


@dataclass(frozen=True)
class Lease(Step):
    """Addresses leased by the delegated plugin `plugin` with the ADD's own stdin and variables.

    `granted`: what its ADD answered; None while that is not known. After a refusal its DEL may fail.
    """

    kind: ClassVar[str] = "lease"
    stage: ClassVar[Stage] = "ipam"
    abridged: ClassVar[tuple[str, ...]] = ("stdin",)
    plugin: str
    stdin: str
    variables: Mapping[str, str]
    granted: bool | None = None

    @property
    def subnet(self) -> str:
        """The Subnet object that its network named, which is in `stdin` as it was read at ADD; "" for none."""
        return str(self.configuration.get("subnet") or "") if '"subnet"' in self.stdin else ""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The network's configuration that the plugin was given."""
        return cast("Mapping[str, Any]", json.loads(self.stdin))

    @property
    def summary(self) -> str:
        """The plugin, and whether it granted the addresses."""
        granted = {True: "granted", False: "refused", None: "not known whether granted"}[self.granted]
        return f"addresses of {self.plugin}, {granted}"
