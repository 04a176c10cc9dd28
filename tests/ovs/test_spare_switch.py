"""The switch that tests stop and kill is lent again if it is unchanged, and ended if anything differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.lab.node.links import inside
from tests.lab.switch.spare import SpareSwitch
from tests.lab.switch.switch import Switch


@pytest.fixture
def spare() -> Iterator[SpareSwitch]:
    """A spare switch that no other test has used."""
    made = SpareSwitch()
    yield made
    made.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda switch: switch.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=500"),
        lambda switch: switch.listen_tcp(),
        lambda switch: inside(switch.netns, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
        lambda switch: switch.kill_vswitchd(),
        lambda switch: switch.pause_ovsdb(),
    ],
    ids=["setting", "remote", "link", "dead", "stopped"],
)
def test_one_that_differs(spare: SpareSwitch, spoil: Callable[[Switch], object]) -> None:
    """A changed switch is ended, and its directory removed."""
    first = spare.take()
    spoil(first)
    spare.give_back()
    assert not first.dir.exists()
