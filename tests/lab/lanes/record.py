"""What ran on each lane and what came of it: `record.json`, which `tests/run.sh lane NAME` writes, and of which a page tells."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from tests.lab.lanes.programs import Programs
from tests.lab.suite.table import Row

FILE: Final = Path(__file__).with_name("record.json")
_VSWITCHD: Final = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
_NORTHD: Final = "usr/bin/ovn-northd"
_TOLD: Final = {"open_vswitch": (_VSWITCHD, r"\(Open vSwitch\)"), "dpdk": (_VSWITCHD, "DPDK"), "ovn": (_NORTHD, "ovn-northd")}
"""Whose version -> the program that tells it, and the words before it."""


@dataclass(frozen=True)
class Ran:
    """The versions of a lane's programs as they tell them, how many tests ran, the demo among them, and which of these failed."""

    open_vswitch: str
    dpdk: str
    ovn: str
    tests: int
    failed: tuple[str, ...] = ()

    @classmethod
    def of(cls, programs: Programs, rows: Sequence[Row]) -> Self:
        """What came of these groups on these programs."""
        versions: dict[str, str] = {}
        for whose, (program, before) in _TOLD.items():
            told = programs.version(program)
            if not (found := re.search(rf"{before} ([0-9.]+)", told)):
                raise ValueError(f"{program} --version does not tell a version after '{before}': {told}")
            versions[whose] = found[1]
        failed = tuple(sorted(test for row in rows for test in row.failed))
        return cls(**versions, tests=sum(row.result.tests for row in rows), failed=failed)


def read(path: Path = FILE) -> dict[str, Ran]:
    """Lane -> what came of its last run."""
    kept = json.loads(path.read_text())
    return {lane: Ran(**(ran | {"failed": tuple(ran["failed"])})) for lane, ran in kept.items()}


def keep(lane: str, ran: Ran, path: Path = FILE) -> None:
    """Keep it in the place of what was known of the lane."""
    known = read(path) | {lane: ran}
    path.write_text(json.dumps({name: asdict(each) for name, each in sorted(known.items())}, indent=1) + "\n")
