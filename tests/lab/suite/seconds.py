"""How long each test file takes: `seconds.json`, by which those that take longest begin first.

    python -m tests.lab.suite.seconds       seconds.json has what the last run of `tests/run.sh` here took

Otherwise the last file may be a long one, with which one process is busy while the others have nothing left. Which files are the
long ones is what counts: the seconds are of some runs on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.lab.suite.exercised import ROOT

FILE: Final = Path(__file__).with_name("seconds.json")
NOTED: Final = ROOT / ".venv" / "seconds.json"
"""What the last run took."""


def read(path: Path = FILE) -> dict[str, float]:
    """Test file -> seconds."""
    kept: dict[str, float] = json.loads(path.read_text())
    return kept


def longest_first(files: Iterable[str], known: Mapping[str, float]) -> tuple[str, ...]:
    """The files in the order in which they begin; a file of unknown duration comes first."""
    return tuple(sorted(files, key=lambda each: (-known.get(each, float("inf")), each)))


def note(taken: Mapping[str, float], path: Path = NOTED) -> None:
    """Keep what the files of a run took, until it is written to `seconds.json` or the next run has ended."""
    path.write_text(json.dumps(taken))


def renew(noted: Path = NOTED, path: Path = FILE) -> int:
    """Write to `seconds.json` what was noted, and leave out files that are gone; how many were noted."""
    taken = read(noted)
    known = read(path) | {file: round(seconds) for file, seconds in taken.items()}
    there = {file: seconds for file, seconds in sorted(known.items()) if (ROOT / file).exists()}
    path.write_text(json.dumps(there, indent=0) + "\n")
    return len(taken)


if __name__ == "__main__":
    print(f"{renew()} test files timed")
