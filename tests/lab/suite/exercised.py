"""The map of what each test file exercises: `exercised.json`, made by a run that records (tests/lab/suite/recording.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
MAP: Final = Path(__file__).with_name("exercised.json")
ROOMS: Final = ("userspace_cni", "localdb", "kubevirt", "tests", "deploy")
"""Directories with modules whose functions are recorded."""

Exercised = dict[str, frozenset[str]]
"""Test file -> functions, each as `PATH:QUALIFIED.NAME`."""


def recorded(root: Path = ROOT) -> list[Path]:
    """The modules whose functions are recorded: all but the test files, which pytest compiles."""
    found = (path for room in ROOMS for path in (root / room).rglob("*.py"))
    suite = root / "tests" / "lab" / "suite"
    return sorted(
        path for path in found if not path.name.startswith("test_") and path.name != "conftest.py" and suite not in path.parents
    )


def read(path: Path = MAP) -> Exercised:
    """The map; empty where there is none yet."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    found: dict[str, set[str]] = {test: set() for test in kept["tests"]}
    groups = [
        [test for test, bit in zip(kept["tests"], reversed(f"{int(bits, 16):b}"), strict=False) if bit == "1"]
        for bits in kept["groups"]
    ]
    for module, functions in kept["functions"].items():
        for name, group in functions.items():
            for test in groups[group]:
                found[test].add(f"{module}:{name}")
    return {test: frozenset(marks) for test, marks in found.items()}


def write(path: Path, known: Mapping[str, frozenset[str]]) -> None:
    """Write the map: groups of test files as bits of a hexadecimal number,
    and per module and function the number of its group.
    """
    tests = sorted(known)
    callers: defaultdict[str, int] = defaultdict(int)
    for at, test in enumerate(tests):
        for mark in known[test]:
            callers[mark] |= 1 << at
    groups: dict[int, int] = {}
    functions: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for mark in sorted(callers):
        module, _, name = mark.partition(":")
        functions[module][name] = groups.setdefault(callers[mark], len(groups))
    kept = {"tests": tests, "groups": [f"{bits:x}" for bits in groups], "functions": functions}
    path.write_text(json.dumps(kept, indent=0) + "\n")
