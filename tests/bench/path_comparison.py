"""Our front-ends in turns with each of DPDK's ten paths, through the same two ports of one switch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from tests.bench.dpdk_paths import DPDK_PATHS, DpdkPath, looping
from tests.bench.frame_runs import LENGTHS, Case, Results, Run, percentile
from tests.bench.loss_free import TRIAL_S, Trial, loss_free_rate
from tests.bench.our_loads import RINGS, frame_of, python_bursts, python_frames, run, trial
from tests.bench.switch_pair import SwitchPair
from userspace_cni.fastpath.rings.generator import bounce
from userspace_cni.fastpath.vhost.front_end import FrontEndOptions

FILLED_ONCE: Final = "ours, buffers filled once"
PYTHON: Final = {"Python, by bursts": python_bursts, "Python, by frames": python_frames}
_ABOVE: Final = 1.05
"""The highest rate that is tried, as a multiple of the plateau."""
_TRIES: Final = 5
_ECHOES: Final = 2000
_Found: TypeAlias = tuple[Case, str, Run]
"""A run, with its case and whose it is."""


class Plan(NamedTuple):
    """How much is measured: rounds, seconds of each run, and which of DPDK's paths."""

    rounds: int
    seconds: float
    paths: Sequence[DpdkPath] = DPDK_PATHS


class Comparison:
    """One switch, and the loop of DPDK at it; `say` is told what begins."""

    def __init__(self, pair: SwitchPair, program: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self._pair = pair
        self._program = program
        self._plan = plan
        self._say = say
        self.taken: dict[str, dict[str, str]] = {}
        """Path -> the functions that DPDK took, and in what they are not what was asked for."""

    def throughput(self, cases: Sequence[Case], queues: int = 1) -> list[dict[str, Any]]:
        """Each case with each path and each of our rings; the order changes from round to round."""
        results = Results([path.name for path in self._plan.paths])
        for number in range(self._plan.rounds):
            step = -1 if number % 2 else 1
            for name, measure in [*self._turns(cases, queues)][::step]:
                self._say(f"round {number + 1} of {self._plan.rounds}: {name}")
                for case, whose, found in measure():
                    results.note(case, whose, found)
        return results.report()

    def round_trip(self) -> float:
        """Microseconds there and back, polling: a third where both processors share a core, where all rates differ, too."""
        with self._pair.attached(next(iter(RINGS.values()))) as ends:
            times = bounce(ends.a[0], ends.b[0], _ECHOES, frame=frame_of(64)).nanoseconds
        return round(percentile(times, 0.5) / 1000, 2)

    def loss_free(self) -> list[dict[str, Any]]:
        """The fastest rate without loss, Mpps, of each path and each of our rings."""
        found: dict[str, dict[int, float]] = {}
        for path in self._plan.paths:
            self._say(f"rates without loss: DPDK, {path.name}")
            with looping(self._program, path, self._pair.sockets, self._pair.core) as loop:
                found[path.name] = {length: self._search(length, loop.run, loop.trial) for length in LENGTHS}
        for name, options in RINGS.items():
            self._say(f"rates without loss: {name}")
            with self._pair.attached(options) as ends:
                load, attempt = partial(run, ends), partial(trial, ends)
                found[name] = {length: self._search(length, load, attempt) for length in LENGTHS}
        return [self._compared_rates(length, found) for length in LENGTHS]

    def _compared_rates(self, length: int, found: dict[str, dict[int, float]]) -> dict[str, Any]:
        best = max((path.name for path in self._plan.paths), key=lambda name: found[name][length])
        most = found[best][length]
        rows = {
            name: {"loss-free": rates[length], "of best": round(rates[length] / most, 3) if most else None}
            for name, rates in found.items()
        }
        return {"length": length, "best": best, "rows": rows}

    def _search(
        self,
        length: int,
        load: Callable[[Case, float], Run],
        attempt: Callable[[Case, float, float], Trial],
    ) -> float:
        case = Case(length)
        most = _carried(partial(load, case, self._plan.seconds)).plateau * 1e6 * _ABOVE
        return round(loss_free_rate(lambda rate: attempt(case, TRIAL_S, rate), most) / 1e6, 2)

    def _turns(self, cases: Sequence[Case], queues: int) -> Iterator[tuple[str, Callable[[], Iterator[_Found]]]]:
        for path in self._plan.paths:
            yield f"DPDK, {path.name}", partial(self._of_path, path, cases, queues)
        for name, options in RINGS.items():
            yield name, partial(self._of_ring, name, replace(options, queue_pairs=queues), cases)

    def _of_path(self, path: DpdkPath, cases: Sequence[Case], queues: int) -> Iterator[_Found]:
        with looping(self._program, path, self._pair.sockets, self._pair.core, queues) as loop:
            self.taken[path.name] = loop.taken._asdict()
            for case in cases:
                yield case, path.name, _carried(partial(loop.run, case, self._plan.seconds))

    def _of_ring(self, name: str, options: FrontEndOptions, cases: Sequence[Case]) -> Iterator[_Found]:
        with self._pair.attached(options) as ends:
            for case in cases:
                yield case, name, _carried(partial(run, ends, case, self._plan.seconds))
                if not case.touch and case.ways == 1 and name == next(iter(RINGS)):
                    yield case, FILLED_ONCE, _carried(partial(run, ends, case, self._plan.seconds, copy=False))
                    for whose, measure in PYTHON.items():
                        yield case, whose, _carried(partial(measure, ends, case, self._plan.seconds))


def _carried(load: Callable[[], Run]) -> Run:
    """A run in which frames came: on a busy machine the switch's thread may not run for as long as that."""
    for _ in range(_TRIES):
        if (found := load()).plateau:
            return found
    raise RuntimeError(f"no frame came through the switch in {_TRIES} runs: is its polling thread on a core of its own?")
