"""What a run of frames through a switch is, what came of it, and which of several did best. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
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


QUEUE_CASES: Final = [Case(length, ways=ways, queues=2) for ways in (1, 2) for length in LENGTHS]


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which that share of the values is; ValueError without any."""
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def best_of(plateaus: Mapping[str, Sequence[float]]) -> str:
    """The name with the highest median."""
    return max(plateaus, key=lambda name: statistics.median(plateaus[name]))


def report_of(found: Iterable[tuple[Case, str, Run]], references: Sequence[str]) -> list[dict[str, Any]]:
    """Of each case the best of those that ours are compared with, and a row for each name: Mpps, and the ratio to the best."""
    cases: dict[Case, dict[str, list[Run]]] = {}
    for case, name, run in found:
        cases.setdefault(case, {}).setdefault(name, []).append(run)
    return [{**case._asdict(), **_compared(runs, references)} for case, runs in cases.items()]


def _compared(runs: Mapping[str, Sequence[Run]], references: Iterable[str]) -> dict[str, Any]:
    plateaus = {name: [run.plateau for run in mine] for name, mine in runs.items()}
    averages = {name: [run.rate / 1e6 for run in mine] for name, mine in runs.items()}
    best = best_of({name: plateaus[name] for name in references if name in runs})
    rows = {
        name: {
            "runs": len(mine),
            "plateau": round(statistics.median(plateaus[name]), 2),
            "average": round(statistics.median(averages[name]), 2),
            "of best": ratio(plateaus[name], plateaus[best]),
            "averages, of best": ratio(averages[name], averages[best]),
        }
        for name, mine in runs.items()
    }
    return {"best": best, "rows": rows}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the medians."""
    return round(statistics.median(ours) / statistics.median(theirs), 3)
