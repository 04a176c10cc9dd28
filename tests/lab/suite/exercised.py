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
"""Where modules are whose functions are recorded."""

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
    known = json.loads(path.read_text())
    tests = known["tests"]
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, functions in known["functions"].items():
        for name, bits in functions.items():
            number = int(bits, 16)
            for at, test in enumerate(tests):
                if number >> at & 1:
                    found[test].add(f"{module}:{name}")
    return {test: frozenset(found[test]) for test in tests}


def write(path: Path, known: Mapping[str, frozenset[str]]) -> None:
    """Keep the map: per module and function the test files, as bits of a hexadecimal number."""
    tests = sorted(known)
    functions: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for at, test in enumerate(tests):
        for mark in known[test]:
            module, _, name = mark.partition(":")
            functions[module][name] = functions[module].get(name, 0) | 1 << at
    rows = {module: {name: f"{bits:x}" for name, bits in sorted(names.items())} for module, names in sorted(functions.items())}
    path.write_text(json.dumps({"tests": tests, "functions": rows}, indent=0) + "\n")
