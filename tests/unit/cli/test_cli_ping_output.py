"""`ping` on a node in memory: its output and its exit codes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.unit.probe.test_endpoints import NAMES, Lab, lab, swallow
from userspace_cni.fastpath.fastpath_errors import Disconnected
from userspace_cni.fastpath.rings import generator
from userspace_cni.fastpath.rings.generator import Echoes

__all__ = ["lab"]


class Bouncing:
    """Replaces the loop in C: each round trip takes one of `times` nanoseconds in turn, 0 for one that is lost."""

    def __init__(self, *times: int, until: int = 1 << 30) -> None:
        self.times = times
        self.until = until
        self.done = 0
        self.asked: list[dict[str, Any]] = []

    def __call__(self, a: object, b: object, count: int, **how: Any) -> Echoes:
        self.asked.append({"count": count, **how})
        if self.done >= self.until:
            self.end()
        found = [self.times[(self.done + number) % len(self.times)] for number in range(count)]
        self.done += count
        return Echoes([time for time in found if time], found.count(0))

    def end(self) -> None:
        """What happens when `until` was reached."""
        os.kill(os.getpid(), signal.SIGINT)


def use(monkeypatch: pytest.MonkeyPatch, bouncing: Bouncing) -> Bouncing:
    monkeypatch.setattr(generator, "bounce", bouncing)
    return bouncing


def test_output_of_round_trips(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has both ends, percentiles and buckets of all requested round trips; no port is left."""
    bouncing = use(monkeypatch, Bouncing(1600, 1700, 1800, 2500))
    result = lab.town.cli("ping", *NAMES, "--json", "--size", "128")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["a"]["name"], told["b"]["name"], told["a"]["bridge"]) == ("default/a/net1", "default/b/net1", "br0")
    assert (told["size"], told["mode"], told["count"], told["received"], told["lost"]) == (128, "poll", 1000, 1000, 0)
    assert told["nanoseconds"] == {"min": 1600, "p50": 1700, "p90": 2500, "p99": 2500, "max": 2500, "mean": 1900.0}
    assert sum(each["count"] for each in told["buckets"]) == 1000
    assert (told["interrupted"], told["problem"]) == (False, "")
    assert sum(each["count"] for each in bouncing.asked) == 1000
    assert {(len(each["frame"]), each["sleep"]) for each in bouncing.asked} == {(128, False)}
    assert lab.entered == 0


def test_a_histogram_for_people(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each bucket, the figures below, and nothing on stderr."""
    use(monkeypatch, Bouncing(1600, 1700))
    result = lab.town.cli("ping", *NAMES, "--count", "10", "--sleep")
    head, _, *bars, _, figures, sums = result.stdout.splitlines()
    assert head == "default/a/net1 ↔ default/b/net1 on br0, 64 bytes, sleeping until they came"
    assert [bar.split()[0] for bar in bars] == ["1.60-1.70", "1.70-1.80"]
    assert bars[0].split()[-2:] == ["5", "50.0%"]
    assert figures.split() == [
        "min",
        "1.60",
        "µs",
        "p50",
        "1.60",
        "µs",
        "p90",
        "1.70",
        "µs",
        "p99",
        "1.70",
        "µs",
        "max",
        "1.70",
        "µs",
    ]
    assert (sums.strip(), result.stderr) == ("10 round trips, 0 lost", "")


def test_some_are_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as frames come back the exit code is 0, and the lost ones are counted."""
    use(monkeypatch, Bouncing(1600, 1700, 0, 1800))
    result = lab.town.cli("ping", *NAMES, "--count", "100")
    assert result.exit_code == 0
    assert "75 round trips, 25 lost, 25.00%" in result.stdout


def test_all_are_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ping` does not wait for all: after some losses in a row it ends with 1 and says where to look."""
    bouncing = use(monkeypatch, Bouncing(0))
    result = lab.town.cli("ping", *NAMES, "--count", "100000")
    assert result.exit_code == 1
    assert bouncing.done < 100
    assert "frames in a row were lost: the way is cut" in result.stdout
    assert "ovs-ofctl dump-flows unix:/var/run/openvswitch/br0.mgmt" in result.stdout


def test_ctrl_c_shows_what_was_measured(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came back so far is shown, and that it is not all."""
    use(monkeypatch, Bouncing(1600, until=100))
    result = lab.town.cli("ping", *NAMES, "--count", "100000")
    assert result.exit_code == 0
    assert "0 lost; ended by a signal before 100000" in result.stdout
    assert lab.entered == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_gets_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the interpreter swallows the signal's exception in a callback, the measurement still ends, with its result so far."""

    class Losing(Bouncing):
        def end(self) -> None:
            swallow(signal.SIGINT)

    bouncing = use(monkeypatch, Losing(1600, until=100))
    result = lab.town.cli("ping", *NAMES, "--count", "100000")
    assert (result.exit_code, lab.entered) == (0, 0)
    assert "ended by a signal before 100000" in result.stdout
    assert bouncing.done < 1000


def test_one_frame_of_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single foreign frame is reported in the singular."""

    def bounce(a: object, b: object, count: int, **how: Any) -> Echoes:
        return Echoes([1600] * count, 0, 1)

    monkeypatch.setattr(generator, "bounce", bounce)
    assert "1 round trip, 0 lost, 1 frame of others" in lab.town.cli("ping", *NAMES, "--count", "1").stdout


def test_ctrl_c_before_anything_was_measured(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shown, and nothing is left."""
    use(monkeypatch, Bouncing(1600, until=0))
    result = lab.town.cli("ping", *NAMES)
    assert (result.exit_code, result.stdout, lab.entered) == (130, "", 0)


def test_a_port_that_is_removed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DEL during the measurement is not delayed: the measurement ends with 1, and shows its result so far."""

    class Removing(Bouncing):
        def end(self) -> None:
            lab.fronts[1].up = False

    use(monkeypatch, Removing(1600, until=50))
    result = lab.town.cli("ping", *NAMES, "--count", "100000", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["received"] > 50) == (1, True)
    assert told["problem"].startswith("the switch hung up on default/b/net1")


def test_a_connection_that_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the fast path ends it, with its words."""

    class Failing(Bouncing):
        def end(self) -> None:
            raise Disconnected("echo", "the other side has closed the connection")

    use(monkeypatch, Failing(1600, until=50))
    result = lab.town.cli("ping", *NAMES, "--count", "100000")
    assert result.exit_code == 1
    assert "echo: the other side has closed the connection" in result.stdout


def test_one_after_the_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an interval each round trip is a call of its own."""
    bouncing = use(monkeypatch, Bouncing(1600))
    assert lab.town.cli("ping", *NAMES, "--count", "3", "--interval", "0.001").exit_code == 0
    assert [each["count"] for each in bouncing.asked] == [1, 1, 1]
