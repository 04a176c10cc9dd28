"""`userspace-cni load` on real ports: frames arrive through the switch, and nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.lab.frames.idle import SECONDS, Pods, pods_on
from tests.lab.node.node import Node
from tests.lab.switch.switch import Switch, wait_until

LOAD = ("load", "--seconds", "0.5")


@pytest.fixture
def pods(warm: None, node: Node, switch: Switch, sandbox: str) -> Iterator[Pods]:
    with pods_on(node, switch, sandbox) as made:
        yield made


@pytest.mark.parametrize("way", ["one", "--both"])
def test_frames_between_pods(pods: Pods, way: str) -> None:
    """Frames from one or both pods arrive by the bridge's own flows; ports and sockets are as before."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    told = pods.told(*LOAD, *([way] if way == "--both" else []), a.name, b.name)
    assert told["sent"] >= told["received"] > max(1000, told["sent"] / 2), told
    assert (told["both"], told["problem"], told["interrupted"]) == (way == "--both", "", False)
    assert told["cores"]["polling"] != []
    assert 0 <= told["windows"]["p5"] <= told["windows"]["p50"] <= told["windows"]["p95"]
    assert told["each_second"][0]["sent"] == told["sent"]
    assert sum(each["received"] for each in told["each_second"]) == told["received"]
    wait_until(pods.at_rest, what="ports down, and no socket of ours")


def test_an_interrupted_load_on_temporary_ports(pods: Pods, switch: Switch) -> None:
    """Ctrl-C prints what was measured so far, and the temporary bridge is removed."""
    with pods.running("load", "--seconds", "3600") as process:
        assert process.stdout
        head = process.stdout.readline()
        wait_until(lambda: ups(switch) == 2, SECONDS, "both ports")
        assert process.stdout.readline() == "\n"
        assert process.stdout.readline().split()[:2] == ["second", "Mpps"]
        assert process.stdout.readline().split()[0] == "1"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (stdout, stderr)
    assert "port A → port B on probe-" in head
    assert "ended by a signal" in stdout
    assert switch.bridges() == []


def ups(switch: Switch) -> int:
    return sum(row["link_state"] == "up" for row in switch.rows("Interface", "type=dpdkvhostuserclient"))
