"""What ran on each lane, with its result: `record.json`, which `tests/run.sh lane NAME` writes and a page shows."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from tests.lab.lanes.callers import cnitool_version
from tests.lab.lanes.programs import Programs
from tests.lab.suite.table import Row

FILE: Final = Path(__file__).with_name("record.json")
RECORDINGS: Final = "recordings"
"""The kind of tests that replay what real callers sent."""
DEBIAN: Final = "Debian"
_VSWITCHD: Final = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
_TOLD: Final = {
    "Open vSwitch": (_VSWITCHD, r"\(Open vSwitch\)"),
    "DPDK": (_VSWITCHD, "DPDK"),
    "OVN": ("usr/bin/ovn-northd", "ovn-northd"),
    "containerd": ("containerd", r"containerd/containerd\S*"),
    "runc": ("runc", "runc version"),
}
"""Part -> the program that prints its version, at its path or in PATH, and the words before the version."""


@dataclass(frozen=True)
class Ran:
    """Part -> version, as the lane's programs print it; kind -> how many tests of it ran; and which of these failed."""

    versions: Mapping[str, str]
    tests: Mapping[str, int]
    failed: tuple[str, ...] = ()

    @classmethod
    def of(cls, programs: Programs, rows: Sequence[Row]) -> Self:
        """The result of these groups with these programs."""
        tests: Counter[str] = Counter()
        for file, count in (each for row in rows for each in row.result.files.items()):
            tests[kind_of(file)] += count
        failed = tuple(sorted(test for row in rows for test in row.failed))
        versions = versions_of(programs.tree, programs.callers) | {"cnitool": cnitool_version(programs.callers)}
        return cls(versions, dict(sorted(tests.items())), failed)


@dataclass(frozen=True)
class Record:
    """Lane -> the result of its last run; and part -> version of the machine's own programs in the last run."""

    own: Mapping[str, str] = field(default_factory=dict)
    lanes: Mapping[str, Ran] = field(default_factory=dict)


def kind_of(file: str) -> str:
    """The name under which a test file counts: RECORDINGS, or its directory."""
    return RECORDINGS if RECORDINGS in Path(file).stem else Path(file).parent.name


def versions_of(tree: Path = Path("/"), callers: Path | None = None) -> dict[str, str]:
    """Part -> version, as the programs in these directories print it themselves. ValueError: one prints none."""
    versions: dict[str, str] = {}
    for part, (program, before) in _TOLD.items():
        place = tree / program if "/" in program else shutil.which(program, path=callers and str(callers))
        done = subprocess.run([str(place), "--version"], capture_output=True, text=True, check=True)
        if not (found := re.search(rf"{before} v?([0-9.]+)", " ".join(done.stdout.split()))):
            raise ValueError(f"{place} --version does not tell a version after '{before}': {done.stdout}")
        versions[part] = found[1]
    return versions


def own_versions() -> dict[str, str]:
    """The same of this machine's own programs, with that of its DEBIAN."""
    return {DEBIAN: platform.freedesktop_os_release().get("VERSION_ID", "testing")} | versions_of()


def read(path: Path = FILE) -> Record:
    kept = json.loads(path.read_text())
    lanes = {lane: Ran(**(ran | {"failed": tuple(ran["failed"])})) for lane, ran in kept["lanes"].items()}
    return Record(kept["own"], lanes)


def keep(lane: str, ran: Ran, own: Mapping[str, str], path: Path = FILE) -> None:
    """Replace what was recorded of the lane, and of the machine."""
    known = read(path)
    made = replace(known, own=own, lanes=dict(sorted({**known.lanes, lane: ran}.items())))
    path.write_text(json.dumps(asdict(made), indent=1) + "\n")
