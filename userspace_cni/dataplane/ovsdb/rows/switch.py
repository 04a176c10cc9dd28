"""What the Open_vSwitch row says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SwitchFacts:
    """What the switch is set to, and what it made of it: Open_vSwitch.other_config, and Interface.mtu by name of the port."""

    other_config: Mapping[str, str]
    mtus: Mapping[str, int]
