"""What a port's Interface row says to OVN, and what ovn-controller says there: keys of external_ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from userspace_cni.attachment.steps import LogicalPort

IFACE_ID: Final = "iface-id"
"""The logical port whose interface it is."""
IFACE_ID_VER: Final = "iface-id-ver"
"""Whose port it is, of several that had this logical port: OVN binds only the one that its options:iface-id-ver names."""
INSTALLED: Final = "ovn-installed"
"""What ovn-controller says of a port whose flows ovs-vswitchd has."""
SAID_OF_BINDING: Final = (INSTALLED, "ovn-installed-ts")
"""The keys that ovn-controller writes of one binding; they say nothing of another one."""


def logical_ids(logical: LogicalPort | None) -> dict[str, str | None]:
    """The keys to write; none where the port is not OVN's: then another program may have written them."""
    if logical is None:
        return {}
    return {**logical.ids, IFACE_ID: logical.name, IFACE_ID_VER: logical.version or None}


def without_former_word(logical: LogicalPort, found: Mapping[str, str]) -> dict[str, None]:
    """The keys to remove of a row with the external_ids `found`: what ovn-controller has said of another logical port.

    They go in the transaction that writes the name, so that whatever is there afterwards is said of this one.
    """
    is_same = found.get(IFACE_ID) == logical.name and found.get(IFACE_ID_VER, "") == logical.version
    return {} if is_same else dict.fromkeys(SAID_OF_BINDING)


def installed_port(found: Mapping[str, str]) -> str:
    """The logical port that is installed at a row with the external_ids `found`; "" for none."""
    return found.get(IFACE_ID, "") if found.get(INSTALLED) == "true" else ""


def is_installed(logical: LogicalPort, found: Mapping[str, str]) -> bool:
    """Whether a row with the external_ids `found` is this logical port's, and installed."""
    return installed_port(found) == logical.name
