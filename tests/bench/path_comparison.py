"""Our front-ends in turns with each of DPDK's ten paths, through the same two ports of one switch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tests.bench.dpdk_paths import DPDK_PATHS, DpdkLoop, DpdkPath, looping
from tests.bench.frame_runs import LENGTHS, Case, Run, report_of
from tests.bench.loss_free import TRIAL_S, Trial, loss_free_rate
from tests.bench.our_loads import RINGS, OurLoop, python_bursts, python_frames
from tests.bench.placement import Turn, comparable, trips_of
from tests.bench.switch_pair import SwitchPair
from userspace_cni.fastpath.vhost.front_end import FrontEndOptions

FILLED_ONCE: Final = "ours, buffers filled once"
PYTHON: Final = {"Python, by bursts": python_bursts, "Python, by frames": python_frames}
_ABOVE: Final = 1.05
"""The highest rate that is tried, as a multiple of the plateau."""
_TRIES: Final = 5
MORE_TURNS: Final = 24


class Loop(Protocol):
    """What a turn measures."""

    def run(self, case: Case, seconds: float) -> Run: ...

    def trial(self, case: Case, seconds: float, rate: float) -> Trial: ...

    def round_trip(self) -> float: ...


class Plan(NamedTuple):
    """How much is measured: rounds, seconds of each run, which of DPDK's paths, and at most how many more turns.

    More turns are for those that had none while the processors were as they mostly are.
    """

    rounds: int
    seconds: float
    paths: Sequence[DpdkPath] = DPDK_PATHS
    more_turns: int = MORE_TURNS


class Comparison:
    """One switch, and the loop of DPDK at it; `say` is told what begins."""

    def __init__(self, pair: SwitchPair, program: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self._pair = pair
        self._program = program
        self._plan = plan
        self._say = say
        self.taken: dict[str, dict[str, str]] = {}
        """Path -> the functions that DPDK took, and in what they are not what was asked for."""
        self.turns: list[dict[str, Any]] = []
        """Of each measure how many turns there were, and the round trips of those that are compared."""

    def throughput(self, cases: Sequence[Case], queues: int = 1) -> list[dict[str, Any]]:
        """Each case with each path and each of our rings."""
        turns = self._compared("rates", self._plan.rounds, queues, lambda name, loop: list(self._rates(name, loop, cases)))
        return report_of((each for turn in turns for each in turn.found), [path.name for path in self._plan.paths])

    def loss_free(self) -> list[dict[str, Any]]:
        """The fastest rate without loss, Mpps, of each path and each of our rings, and the plateau beside it."""
        turns = self._compared(
            "rates without loss", 1, 1, lambda _, loop: {length: self._search(Case(length), loop) for length in LENGTHS}
        )
        found = {turn.whose: turn.found for turn in turns}
        return [self._best_rate(length, {name: rates[length] for name, rates in found.items()}) for length in LENGTHS]

    def _best_rate(self, length: int, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        best = max((path.name for path in self._plan.paths if path.name in rates), key=lambda name: rates[name]["loss-free"])
        most = rates[best]["loss-free"]
        rows = {name: {**row, "of best": round(row["loss-free"] / most, 3) if most else None} for name, row in rates.items()}
        return {"length": length, "best": best, "rows": rows}

    def _search(self, case: Case, loop: Loop) -> dict[str, float]:
        plateau = _carried(partial(loop.run, case, self._plan.seconds)).plateau
        rate = loss_free_rate(lambda rate: loop.trial(case, TRIAL_S, rate), plateau * 1e6 * _ABOVE) / 1e6
        return {"loss-free": round(rate, 2), "plateau": round(plateau, 2)}

    def _compared(self, what: str, rounds: int, queues: int, measure: Callable[[str, Loop], Any]) -> list[Turn]:
        """The turns of all, of which the order changes from round to round, that can be compared; each has one if possible."""
        begin = self._begin(queues)
        order = [name for number in range(rounds) for name in [*begin][:: -1 if number % 2 else 1]]
        turns: list[Turn] = []
        while order:
            name = order.pop(0)
            self._say(f"{what}: {name if name in RINGS else f'DPDK, {name}'}; {len(order)} more")
            with begin[name]() as loop:
                before = loop.round_trip()
                found = measure(name, loop)
                turns.append(Turn(name, before, loop.round_trip(), found))
            self._say(f"    round trips of {before} and {turns[-1].after} µs")
            if not order and len(turns) < rounds * len(begin) + self._plan.more_turns:
                order = [name for name in begin if name not in {turn.whose for turn in comparable(turns)}]
        kept = comparable(turns)
        self.turns.append({"of": what, "all": len(turns), "compared": len(kept), "round trips": trips_of(kept)})
        return kept

    def _begin(self, queues: int) -> dict[str, Callable[[], AbstractContextManager[Loop]]]:
        """What begins a turn of each."""
        theirs = {path.name: partial(self._of_path, path, queues) for path in self._plan.paths}
        ours = {name: partial(self._of_ring, replace(options, queue_pairs=queues)) for name, options in RINGS.items()}
        return {**theirs, **ours}

    @contextmanager
    def _of_path(self, path: DpdkPath, queues: int) -> Iterator[DpdkLoop]:
        with looping(self._program, path, self._pair.sockets, self._pair.core, queues) as loop:
            self.taken[path.name] = loop.taken._asdict()
            yield loop

    @contextmanager
    def _of_ring(self, options: FrontEndOptions) -> Iterator[OurLoop]:
        with self._pair.attached(options) as ends:
            yield OurLoop(ends)

    def _rates(self, name: str, loop: Loop, cases: Sequence[Case]) -> Iterator[tuple[Case, str, Run]]:
        seconds = self._plan.seconds
        for case in cases:
            yield case, name, _carried(partial(loop.run, case, seconds))
            if isinstance(loop, OurLoop) and not case.touch and case.ways == 1 and name == next(iter(RINGS)):
                yield case, FILLED_ONCE, _carried(partial(loop.run, case, seconds, copy=False))
                for whose, measure in PYTHON.items():
                    yield case, whose, _carried(partial(measure, loop.ends, case, seconds))


def _carried(load: Callable[[], Run]) -> Run:
    """A run in which frames came: on a busy machine the switch's thread may not run for as long as that."""
    for _ in range(_TRIES):
        if (found := load()).plateau:
            return found
    raise RuntimeError(f"no frame came through the switch in {_TRIES} runs: is its polling thread on a core of its own?")
