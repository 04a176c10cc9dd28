"""When a controller may take it that a logical port of its own is no pod's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from userspace_cni.controller.port_rounds import PortSources

KNOWN = {"synced": True, "confirmed": True, "tried": True, "problem": ""}


@pytest.mark.parametrize(
    ("pods", "networks", "certain"),
    [
        ({}, {}, True),
        ({"confirmed": False}, {}, False),
        ({}, {"confirmed": False}, False),
        ({}, {"synced": False, "confirmed": False, "problem": "refused (403)"}, False),
        ({}, {"synced": False, "confirmed": False, "tried": False, "problem": "watching has not begun"}, False),
        ({}, {"synced": False, "confirmed": False}, True),
    ],
)
def test_ports_go_when_pods_and_networks_are_known(pods: dict[str, Any], networks: dict[str, Any], certain: bool) -> None:
    """Definitions that the server does not give out now are not gone; a server that has no such resource has none."""
    watches = (SimpleNamespace(**{**KNOWN, **each}) for each in (pods, {}, networks))
    assert PortSources(*(cast("Any", each) for each in watches)).certain is certain
