"""Addresses of an attachment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from userspace_cni.attachment.steps.step import Step


@dataclass(frozen=True)
class Lease(Step):
    """Addresses leased by the delegated plugin `plugin` with the ADD's own stdin and variables.

    `granted`: what its ADD answered; None while that is not known. What was refused needs no DEL to succeed.
    """

    kind: ClassVar[str] = "lease"
    plugin: str
    stdin: str
    variables: Mapping[str, str]
    granted: bool | None = None
