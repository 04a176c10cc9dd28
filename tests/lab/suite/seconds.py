"""How long each test file takes: `seconds.json`, by which those that take longest begin first.

    python -m pytest -q -p tests.lab.suite.reports --reports=TOLD FILE…     a call of pytest tells how long its tests take
    python -m tests.lab.suite.seconds TOLD…                                 seconds.json has what such calls have told

Otherwise the last file may be a long one, with which one process is busy while the others have nothing left. Which files are the
long ones is what counts: the seconds are of some runs on one machine.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.lab.suite.exercised import ROOT

FILE: Final = Path(__file__).with_name("seconds.json")


def read(path: Path = FILE) -> dict[str, float]:
    """Test file -> seconds."""
    kept: dict[str, float] = json.loads(path.read_text())
    return kept


def longest_first(files: Iterable[str], known: Mapping[str, float]) -> tuple[str, ...]:
    """The files in the order in which they begin; a file of unknown duration comes first."""
    return tuple(sorted(files, key=lambda each: (-known.get(each, float("inf")), each)))


def spent(lines: Iterable[str]) -> dict[str, float]:
    """What reports say: set-up, tests and teardown of each file together."""
    found: Counter[str] = Counter()
    for report in map(json.loads, lines):
        if "seconds" in report:
            found[report["id"].partition("::")[0]] += report["seconds"]
    return {file: round(seconds) for file, seconds in found.items()}


if __name__ == "__main__":
    known = read() | spent(line for path in sys.argv[1:] for line in Path(path).read_text().splitlines())
    there = {file: seconds for file, seconds in sorted(known.items()) if (ROOT / file).exists()}
    FILE.write_text(json.dumps(there, indent=0) + "\n")
