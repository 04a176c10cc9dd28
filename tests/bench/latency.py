"""One ADD or DEL at a time, and many at once, beside what the same ports cost without a plugin.

`bare` is one transaction of ovsdbapp on a session that is open already, awaited: what its users pay at least. `by hand`
is the same without any library (`floor`). Those by hand come in turns with ours; those of the library before and after them, for
a replica of its own would take part of the one processor that all share.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.attach import BRIDGE, Bare
from tests.bench.calls import Seconds, Shim, Spent, difference, milliseconds, stages_of
from tests.bench.floor import Floor
from tests.lab.node.node import Node

REST_S = 0.08
"""The pause before each call of the resting case: long enough for every
process to sleep, and for its caches to be used by others.
"""
CALM_S = 12.0
WARM = 2
"""Rounds that do not count."""


@dataclass
class _Ours:
    walls: list[float] = field(default_factory=list)
    stages: list[Seconds] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class _Turns:
    """Calls in turns with bare ones, each after ovs-vswitchd has done what the one before asked for."""

    def __init__(self, shim: Shim, spent: Spent, floor: Floor, *, rest: bool) -> None:
        self._shim = shim
        self._spent = spent
        self._floor = floor
        self._rest = rest
        self.bares: dict[str, list[float]] = {"ADD": [], "DEL": []}
        self.ours = {"ADD": _Ours(), "DEL": _Ours()}

    def bare(self, number: int) -> None:
        """One port comes and goes."""
        for verb, work in (("ADD", self._floor.add), ("DEL", self._floor.delete)):
            self._pause()
            self.bares[verb].append(work([f"bare{number}"]))

    def through(self, number: int) -> None:
        """One attachment comes and goes."""
        self._shim.prepare(range(number, number + 1))
        for verb, found in self.ours.items():
            before = self._spent.seconds(verb) if self._rest else {}
            self._pause()
            used = self._spent.processor_s()
            found.walls.append(self._shim.call(verb, number)[0])
            self._floor.settle()  # what the agent hears of it afterwards is part of its cost
            found.cpu.append(self._spent.processor_s() - used)
            if self._rest:
                found.stages.append(difference(before, self._spent.seconds(verb, before["count"] + 1)))

    def _pause(self) -> None:
        self._floor.settle()
        if self._rest:
            threading.Event().wait(REST_S)


def single(node: Node, shim: Shim, spent: Spent, rounds: int, *, rest: bool) -> dict[str, Any]:
    """ADD and DEL in turns with the bare ones, whose order changes from round to round.

    With `rest` nothing happens for REST_S before each, and stages are read after each call; without it they are means of all
    calls, so that nothing but calls is going on.
    """
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    turns = _Turns(shim, spent, floor, rest=rest)
    library = _library(node, floor, rounds // 2, rest=rest)
    shim.call("ADD", 1_000_000)  # the directories that all share
    begun: dict[str, Seconds] = {}
    for number in range(-WARM, rounds):
        if number == 0:
            turns = _Turns(shim, spent, floor, rest=rest)
            begun = {verb: spent.seconds(verb) for verb in turns.ours}
        for work in (turns.bare, turns.through) if number % 2 else (turns.through, turns.bare):
            work(number + WARM)
    for verb, found in turns.ours.items() if not rest else ():
        found.stages = [difference(begun[verb], spent.seconds(verb, begun[verb]["count"] + rounds))]
    shim.call("DEL", 1_000_000)
    for verb, walls in _library(node, floor, rounds // 2, rest=rest).items():
        library[verb] += walls
    floor.close()
    return {
        verb: {
            "bare": milliseconds(library[verb]),
            "ours": milliseconds(found.walls),
            "ratio": _ratio(found.walls, library[verb]),
            "by hand": milliseconds(turns.bares[verb]),
            "agent cpu": milliseconds(found.cpu),
            "stages": stages_of(found.stages, found.walls if rest else [statistics.fmean(found.walls)]),
        }
        for verb, found in turns.ours.items()
    }


def _library(node: Node, floor: Floor, rounds: int, *, rest: bool) -> dict[str, list[float]]:
    """Wall seconds of ADDs and DELs by ovsdbapp."""
    assert node.switch
    bare = Bare(node.switch.ovsdb, node.directory)
    found: dict[str, list[float]] = {"ADD": [], "DEL": []}
    for number in range(-WARM, max(1, rounds)):
        for verb, work in (("ADD", bare.add), ("DEL", bare.delete)):
            floor.settle()
            if rest:
                threading.Event().wait(REST_S)
            began = time.perf_counter()
            work(number + WARM)
            if number >= 0:
                found[verb].append(time.perf_counter() - began)
    bare.close()
    return found


def _library_together(node: Node, floor: Floor, count: int, rounds: int) -> list[float]:
    """Wall seconds of so many ports in one transaction by ovsdbapp."""
    assert node.switch
    bare = Bare(node.switch.ovsdb, node.directory)
    found = []
    for number in range(-1, rounds):
        calm(floor, node.switch.vswitchd_pid)
        began = time.perf_counter()
        bare.together(range(count))
        if number >= 0:
            found.append(time.perf_counter() - began)
        bare.clear(range(count))
    bare.close()
    return found


def burst(node: Node, shim: Shim, spent: Spent, count: int, rounds: int) -> dict[str, Any]:
    """So many ADDs at once, in turns with one transaction of as many ports; each after ovs-vswitchd has come to rest."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    library = _library_together(node, floor, count, max(2, rounds // 2))
    bares: list[float] = []
    ours = _Ours()
    binaries: list[float] = []
    names = [f"bare{number}" for number in range(count)]
    for number in range(-1, rounds):
        calm(floor, node.switch.vswitchd_pid)
        bare = floor.add(names)
        floor.delete(names)
        calm(floor, node.switch.vswitchd_pid)
        before, used = spent.seconds("ADD"), spent.processor_s()
        wall, cpu = shim.burst("ADD", range(count))
        used = spent.processor_s() - used
        after = spent.seconds("ADD", before["count"] + count)
        shim.burst("DEL", range(count))
        if number >= 0:
            bares.append(bare)
            ours.walls.append(wall)
            ours.cpu.append(used / count)
            ours.stages.append(difference(before, after))
            binaries.append(cpu / count)
    library += _library_together(node, floor, count, max(2, rounds // 2))
    floor.close()
    return {
        "bare": milliseconds(library),
        "ours": milliseconds(ours.walls),
        "ratio": _ratio(ours.walls, library),
        "by hand": milliseconds(bares),
        "agent cpu": milliseconds(ours.cpu),
        "binary cpu": milliseconds(binaries),
        "stages": stages_of(ours.stages, [each["total"] for each in ours.stages]),
    }


def of_one_pod(node: Node, shim: Shim, count: int, rounds: int) -> dict[str, Any]:
    """So many interfaces of one pod at once, beside one, and as many pods with one each; in turns."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    shim.interfaces = count
    cases = {"one": range(1), "of one pod": range(count), "of as many pods": range(0, count * count, count)}
    walls: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(-1, rounds):
        for case, numbers in cases.items():
            calm(floor, node.switch.vswitchd_pid)
            wall, _ = shim.burst("ADD", numbers)
            shim.burst("DEL", numbers)
            if number >= 0:
                walls[case].append(wall)
    shim.interfaces = 1
    floor.close()
    found: dict[str, Any] = {case: milliseconds(taken) for case, taken in walls.items()}
    return found | {"of one pod / one": _ratio(walls["of one pod"], walls["one"])}


def calm(floor: Floor, vswitchd: int) -> None:
    """Wait until ovs-vswitchd's main thread has nothing more to do: after many deletions it is busy for seconds."""
    floor.settle()
    stat = Path(f"/proc/{vswitchd}/task/{vswitchd}/schedstat")
    end, before = time.monotonic() + CALM_S, int(stat.read_text().split()[0])
    while time.monotonic() < end:
        threading.Event().wait(0.25)
        now = int(stat.read_text().split()[0])
        if now - before <= 10_000_000:
            return
        before = now


def _ratio(ours: list[float], bares: list[float]) -> float:
    return round(milliseconds(ours)["p50"] / milliseconds(bares)["p50"], 2)
