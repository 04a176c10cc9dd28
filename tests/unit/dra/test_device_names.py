"""Names of devices in ResourceSlices lead to one bridge each."""

from __future__ import annotations

import re

import pytest

from userspace_cni.dra.device_names import bridge_of, device_name, label_of

BRIDGES = ("br1", "br1-0", "br1-0-0", "BR1", "br_1", "br.1", "1br", "_", "-", "b" * 60, "br-1-x0a1b2c3d", "brücke", "br1-")


def test_one_bridge_for_each_device() -> None:
    """No two bridges have a device of one name, whether each device is the bridge or one of several."""
    names = [device_name(bridge, number) for bridge in BRIDGES for number in (None, 0, 1, 999)]
    assert len(set(names)) == len(names)
    for bridge in BRIDGES:
        for number in (None, 0, 1, 999):
            assert bridge_of(device_name(bridge, number), BRIDGES) == bridge


def test_labels() -> None:
    """Every name is a DNS label of at most 63 characters."""
    for bridge in BRIDGES:
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", device_name(bridge, 999_999)), bridge


@pytest.mark.parametrize("bridge", ["br1", "br-physnet", "ovsbr0"])
def test_usual_bridges(bridge: str) -> None:
    """A bridge whose name is a label is called by it."""
    assert label_of(bridge) == bridge
    assert device_name(bridge, 3) == f"{bridge}-3"


def test_unknown_device() -> None:
    """A device of no bridge that is there has none."""
    assert bridge_of("br2-0", BRIDGES) is None
    assert bridge_of("br1x", BRIDGES) is None
