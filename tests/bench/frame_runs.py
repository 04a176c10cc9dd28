"""What a run of frames through a switch is, what came of it, and which of several did best. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

WINDOW_NS: Final = 1_000_000
PLATEAU: Final = 0.95
LENGTHS: Final = (64, 512, 1518)
BATCHES: Final = (32, 8, 1)


class Run(NamedTuple):
    """Frames received in each window, and per second over the whole run."""

    windows: list[int]
    rate: float

    @property
    def plateau(self) -> float:
        """Mpps."""
        return percentile(self.windows, PLATEAU) * 1e9 / WINDOW_NS / 1e6


class Case(NamedTuple):
    """Frames of `length` bytes in bursts of `batch`; `touch`: eight bytes of each received frame are compared."""

    length: int = 64
    batch: int = 32
    ways: int = 1
    touch: bool = True
    queues: int = 1


def cases_of(ways: int) -> list[Case]:
    """Each length in each batch, and what costs least without a look at what comes."""
    grid = [Case(length, batch, ways) for length in LENGTHS for batch in BATCHES]
    return [Case(ways=ways, touch=False), *grid]


QUEUE_CASES: Final = [Case(length, queues=2) for length in LENGTHS]


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which that share of the values is; ValueError without any."""
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios of runs in the same round."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def best_of(plateaus: Mapping[str, Sequence[float]]) -> str:
    """The name with the highest median."""
    return max(plateaus, key=lambda name: statistics.median(plateaus[name]))


@dataclass
class Results:
    """The runs of each case by whose they are, in the order of the rounds; `references` are those that ours are compared with."""

    references: Sequence[str]
    runs: dict[Case, dict[str, list[Run]]] = field(default_factory=dict)

    def note(self, case: Case, name: str, run: Run) -> None:
        self.runs.setdefault(case, {}).setdefault(name, []).append(run)

    def report(self) -> list[dict[str, Any]]:
        """Of each case the best reference, and a row for each name: Mpps, and the ratio to the best in the same rounds."""
        return [{**case._asdict(), **_compared(runs, self.references)} for case, runs in self.runs.items()]


def _compared(runs: Mapping[str, list[Run]], references: Iterable[str]) -> dict[str, Any]:
    best = best_of({name: [run.plateau for run in runs[name]] for name in references})
    return {
        "best": best,
        "rows": {
            name: {
                "plateau": round(statistics.median(run.plateau for run in mine), 2),
                "average": round(statistics.median(run.rate for run in mine) / 1e6, 2),
                "of best": paired([run.plateau for run in mine], [run.plateau for run in runs[best]]),
                "averages, of best": paired([run.rate for run in mine], [run.rate for run in runs[best]]),
            }
            for name, mine in runs.items()
        },
    }
