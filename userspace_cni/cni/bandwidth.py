"""Limits as networks, runtimes and pods write them: which of them holds, and in which unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from userspace_cni.base.limits import UNLIMITED, Limits


@dataclass(frozen=True)
class Bandwidth:
    """Limits by who says them: `runtime` (runtimeConfig.bandwidth) before a pod's annotations before `network`, by direction."""

    runtime: Limits = UNLIMITED
    network: Limits = UNLIMITED
