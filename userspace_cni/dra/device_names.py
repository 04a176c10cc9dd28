"""The names of the driver, and of its devices in ResourceSlices: which bridge, and which of the bridge's devices. Pure.

A device has a DNS label as its name, and a bridge need not. A claim names its device for as long as it lives, over changes
of the bridges and of how many devices are offered: so a device's name follows from the bridge's name and the number alone, and no
two bridges have one name in common.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

DRIVER: Final = "userspace-cni.io"
_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?")
"""Bridges that are called as their label, with room for a number: a label has at most 63 characters."""
_NUMBERED: Final = re.compile(r"(.+)-([0-9]{1,6})")
_HASHED: Final = re.compile(r".*-x[0-9a-f]{8}")


def label_of(bridge: str) -> str:
    """The part of the devices' names that stands for the bridge. It never ends with "-" and a number."""
    if _LABEL.fullmatch(bridge) and not _NUMBERED.fullmatch(bridge) and not _HASHED.fullmatch(bridge):
        return bridge
    plain = re.sub(r"[^a-z0-9]+", "-", bridge.lower()).strip("-")[:40].strip("-")
    plain = plain if plain[:1].isalpha() else f"br-{plain}".rstrip("-")
    return f"{plain}-x{hashlib.sha256(bridge.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def device_name(bridge: str, number: int | None = None) -> str:
    """The device that is the whole bridge; with a number, from 0, one of its devices where each is allocated once."""
    return label_of(bridge) if number is None else f"{label_of(bridge)}-{number}"


def bridge_of(device: str, bridges: Iterable[str]) -> str | None:
    """Which of these bridges has the device; None for a device of none of them."""
    numbered = _NUMBERED.fullmatch(device)
    label = numbered[1] if numbered else device
    return next((bridge for bridge in bridges if label_of(bridge) == label), None)
