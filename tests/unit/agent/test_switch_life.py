"""What the agent knows of ovs-vswitchd between two looks, and its log lines about that daemon's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.node.memory_switch import Alive
from tests.lab.node.world import World
from userspace_cni.agent.switch_life import SwitchLife

DIES, RUNS, BACK = "ovs-vswitchd has ended", "ovs-vswitchd was restarted", "ovs-vswitchd answers"
SILENT, NONE = "ovs-vswitchd does not answer", "ovs-vswitchd does not run"
UNKNOWN = "whether ovs-vswitchd lives cannot be known"


@pytest.mark.parametrize(
    ("looks", "lines", "alive"),
    [
        ("1", [], True),
        ("1 1", [], True),
        ("1 dead dead", [DIES], False),
        ("1 dead dead 2", [DIES, RUNS], True),
        ("1 2", [DIES, RUNS], True),
        ("1 silent silent 1", [SILENT, BACK], True),
        ("1 silent dead 2", [SILENT, DIES, RUNS], True),
        ("dead dead", [NONE], False),
        ("dead 1 dead", [NONE, BACK, DIES], False),
        ("1 unknown unknown", [UNKNOWN], None),
        ("unknown unknown", [], None),
    ],
)
def test_each_change_is_one_line(
    looks: str, lines: list[str], alive: bool | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the cases digits are looks at a living process of that number, words other states.

    The end is logged, not only the return.
    """
    world = World(tmp_path, resident=True)
    life = SwitchLife(world.ports)
    assert life.is_alive is None
    for each in looks.split():
        world.ports.alive = Alive(pid=int(each)) if each.isdigit() else Alive(each, "as the test says")
        assert bool(life.look()) == each.isdigit()
    told = [line for line in capfd.readouterr().err.splitlines() if "ovs-vswitchd" in line]
    assert [next(text for text in lines if text in line) for line in told] == lines
    assert life.is_alive is alive
