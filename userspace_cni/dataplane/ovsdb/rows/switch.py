"""The settings in the Open_vSwitch row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SwitchFacts:
    """The settings Open_vSwitch.other_config, and the resulting Interface.mtu by name of the port."""

    other_config: Mapping[str, str]
    mtus: Mapping[str, int]
