"""`load` on a node in memory: its output, its exit codes, and when its figures are unreliable."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.probe.test_endpoints import NAMES, Lab, lab, swallow
from userspace_cni.fastpath.rings import generator
from userspace_cni.fastpath.rings.generator import Load, Slice
from userspace_cni.probe import cores
from userspace_cni.probe.cores import Cores, polling_cores

__all__ = ["lab"]


class Blasting:
    """Replaces the loop in C: a million frames a second are sent, and all but `lost` of each slice arrive."""

    def __init__(self, lost: int = 0, until: int = 1 << 30) -> None:
        self.lost = lost
        self.until = until
        self.asked: list[Load] = []

    def __call__(self, a: Any, b: Any, load: Load) -> Slice:
        self.asked.append(load)
        if len(self.asked) > self.until:
            self.end()
        sent = round(load.seconds * 1e6)
        return Slice(sent, sent - self.lost, load.seconds, [1000] * round(load.seconds * 1000))

    def end(self) -> None:
        """What happens after `until` slices."""
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core of its own, whatever else runs on this machine."""
    monkeypatch.setattr(cores, "polling_cores", lambda: frozenset({1}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(Cores, "busy", 1.0)
    monkeypatch.setattr(Cores, "look", lambda self: self.used.add(0))


def use(monkeypatch: pytest.MonkeyPatch, blasting: Blasting, name: str = "blast") -> Blasting:
    monkeypatch.setattr(generator, name, blasting)
    return blasting


def test_output_of_a_load(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON: sums, rates, windows, each second, and the core."""
    blasting = use(monkeypatch, Blasting(lost=2000))
    result = lab.town.cli("load", *NAMES, "--json", "--seconds", "2.5", "--size", "1000", "--batch", "8")
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert (told["size"], told["batch"], told["both"], told["seconds"]) == (1000, 8, False, 2.5)
    assert (told["sent"], told["received"], told["lost"]) == (2_500_000, 2_474_000, 26_000)
    assert told["loss"] == pytest.approx(0.0104)
    assert told["mpps"] == pytest.approx(0.9896)
    assert (told["gbps"], told["wire_gbps"]) == (pytest.approx(7.9168), pytest.approx(0.9896 * 8.192))
    assert told["windows"] == {"ns": 1_000_000, "p5": 1.0, "p50": 1.0, "p95": 1.0}
    assert [each["seconds"] for each in told["each_second"]] == [1.0, 1.0, 0.5]
    assert told["cores"] == {"used": [0], "polling": [1], "busy": 1.0}
    assert (told["warnings"], told["problem"], told["interrupted"]) == ([], "", False)
    assert {(len(load.frame), load.batch, load.window_ns) for load in blasting.asked} == {(1000, 8, 1_000_000)}
    assert lab.entered == 0


def test_a_line_for_each_second(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """People see a table that grows by a line each second, and then the figures of the whole."""
    use(monkeypatch, Blasting())
    result = lab.town.cli("load", *NAMES, "--seconds", "3")
    head, _, columns, *lines = result.stdout.splitlines()
    assert head == "default/a/net1 → default/b/net1 on br0, 64 bytes, 32 in a burst, 3 s"
    assert columns.split() == ["second", "Mpps", "Gbit/s", "lost"]
    assert [line.split() for line in lines[:3]] == [[str(second), "1.00", "0.51", "0.000%"] for second in (1, 2, 3)]
    facts = {line[:15].strip(): line[15:].strip() for line in lines[4:]}
    assert facts["rate"] == "1.00 Mpps"
    assert facts["bits"] == "0.51 Gbit/s of frames, 0.70 Gbit/s on a wire"
    assert facts["1 ms windows"] == "p5 1.00   p50 1.00   p95 1.00 Mpps"
    assert facts["sent"] == "3,000,000 frames in 3.0 s"
    assert facts["lost"] == "nothing"
    assert facts["core"] == "0, busy 100%; the switch polls on 1"


def test_a_load_of_less_than_a_second(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints no table of seconds, not even its heading."""
    use(monkeypatch, Blasting())
    assert "second" not in lab.town.cli("load", *NAMES, "--seconds", "0.3").stdout
    assert "nan is not a number" in lab.town.cli("load", *NAMES, "--seconds", "nan").stderr


def test_cores_are_looked_at_when_the_ports_are_there(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch begins to poll with its first port: before that, its cores would look free."""
    use(monkeypatch, Blasting())
    monkeypatch.setattr(cores, "polling_cores", lambda: frozenset({lab.entered}))
    told = json.loads(lab.town.cli("load", *NAMES, "--seconds", "0.2", "--json").stdout)
    assert told["cores"]["polling"] == [2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_gets_lost(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the interpreter swallows the signal's exception in a callback, the measurement still ends after that slice."""

    class Losing(Blasting):
        def end(self) -> None:
            swallow(signal.SIGTERM)

    blasting = use(monkeypatch, Losing(until=2))
    result = lab.town.cli("load", *NAMES, "--seconds", "3600")
    assert (result.exit_code, len(blasting.asked)) == (0, 3)
    assert "ended by a signal" in result.stdout


def test_both_ways(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """--both sends from B too."""
    blasting = use(monkeypatch, Blasting(), "blast_both")
    result = lab.town.cli("load", *NAMES, "--seconds", "0.4", "--both")
    assert result.exit_code == 0
    assert "default/a/net1 ↔ default/b/net1" in result.stdout
    assert len(blasting.asked) == 2


def test_the_other_end_is_not_forgotten(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one direction B sends a frame in each slice: otherwise the bridge would forget it and flood what A sends."""
    use(monkeypatch, Blasting())
    order = lab.fronts[1].pairs[0].order
    assert lab.town.cli("load", *NAMES, "--seconds", "1").exit_code == 0
    assert order.count(lab.fronts[1].pairs[0]) == 1 + 5


def test_frames_in_flight_are_not_lost(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that arrive after the last slice count; those of others do not."""

    class Late(Blasting):
        def end(self) -> None:
            lab.fronts[1].pairs[0].inbox += [*[self.asked[0].frame] * 40, b"\xff" * 64]

    use(monkeypatch, Late(lost=40, until=0))
    told = json.loads(lab.town.cli("load", *NAMES, "--seconds", "0.2", "--json").stdout)
    assert (told["sent"], told["received"], told["lost"]) == (200_000, 200_000, 0)
    assert [each["received"] for each in told["each_second"]] == [200_000]


def test_nothing_arrives_any_more(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second without a frame `load` ends with 1 and says where to look."""
    blasting = use(monkeypatch, Blasting(lost=200_000))
    result = lab.town.cli("load", *NAMES, "--seconds", "3600")
    assert (result.exit_code, len(blasting.asked)) == (1, 5)
    assert "no frame arrives any more: the way is cut" in result.stdout


def test_a_signal_shows_what_was_measured(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrived so far is shown, and that it is not all."""
    use(monkeypatch, Blasting(until=3))
    result = lab.town.cli("load", *NAMES, "--seconds", "3600")
    assert result.exit_code == 0
    assert "600,000 frames in 0.6 s, ended by a signal" in result.stdout
    assert lab.entered == 0


def test_a_port_that_is_removed(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DEL during the measurement is not delayed: the measurement ends with 1, and shows its result so far."""

    class Removing(Blasting):
        def end(self) -> None:
            lab.fronts[0].up = False

    use(monkeypatch, Removing(until=2))
    result = lab.town.cli("load", *NAMES, "--seconds", "3600", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["sent"]) == (1, 600_000)
    assert told["problem"].startswith("the switch hung up on default/a/net1")


def test_figures_of_the_scheduler(lab: Lab, seat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the switch polls on every core, or another process used the generator's core, the figures are marked as unreliable."""
    use(monkeypatch, Blasting())
    monkeypatch.setattr(cores, "polling_cores", lambda: frozenset({0, 1}))
    assert "the switch polls on every core" in lab.town.cli("load", *NAMES, "--seconds", "0.2").stderr
    monkeypatch.setattr(Cores, "busy", 0.6)
    told = json.loads(lab.town.cli("load", *NAMES, "--seconds", "0.2", "--json").stdout)
    assert "for 60% of the time" in told["warnings"][1]


def test_cores_on_which_a_switch_polls(tmp_path: Path) -> None:
    """They are recognised by the names of the switch's threads; other threads and ended ones do not matter."""
    switch = ["ovs-vswitchd-dp", "pmd-c01/id:8", "pmd-c11/id:9", "urcu3"]
    names = {"7": ("ovs-vswitchd-dp", switch), "8": ("bash", ["pmd-c05/id:1"])}
    for pid, (name, threads) in names.items():
        for number, thread in enumerate(threads):
            task = tmp_path / pid / "task" / str(number)
            task.mkdir(parents=True)
            (task / "comm").write_text(f"{thread}\n")
        (tmp_path / pid / "comm").write_text(f"{name}\n")
    (tmp_path / "9").mkdir()
    (tmp_path / "self").mkdir()
    assert polling_cores(tmp_path) == {1, 11}


def test_the_generator_stays_off_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may use every core but those that poll, and all of its own again afterwards."""
    own = os.sched_getaffinity(0)
    with cores.avoid_polling_cores() as seat:
        assert os.sched_getaffinity(0) == seat.usable
    busy = min(own)
    monkeypatch.setattr(cores, "polling_cores", lambda: frozenset({busy}))
    with cores.avoid_polling_cores() as seat:
        assert os.sched_getaffinity(0) == seat.usable == (own - {busy} or own)
    assert os.sched_getaffinity(0) == own


def test_ends_are_looked_at_as_for_ping(lab: Lab) -> None:
    """`load` refuses what `ping` refuses."""
    lab.ports.seen["c0ffee012345-net1"] = {"link_state": "up"}
    result = lab.town.cli("load", *NAMES)
    assert (result.exit_code, result.stdout, lab.touched) == (1, "", [])
    assert "is in use" in result.stderr
