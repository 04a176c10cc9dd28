"""The pump's C under ASan and UBSan, with a socket pair in place of the tap and a mirror in place of the rings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).resolve().parent
RINGS = HERE.parents[1] / "userspace_cni" / "fastpath" / "rings"
PARTS = ("pump", "pump_ways", "queue", "net_header", "cut_segments", "merge_segments")
SOURCES = (HERE / "pump_trial.c", *(RINGS / f"{name}.c" for name in PARTS))
STRICT = ("gcc", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")
SANITIZED = (*STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TRIALS = {
    "lengths": "frames of every length come back as they went, in order",
    "misfits": "frames too long or too short are dropped, counted, and hurt no other",
    "oversize": "frames that the queue drops as too long are counted",
    "full": "a full ring costs frames after a while and never blocks",
    "narrow": "the rest of a burst follows when the ring takes it",
    "deaf": "a tap that takes nothing costs frames and never blocks",
    "ends": "a stop, a close, a hang-up and a deleted tap end a run at once",
    "idle": "with nothing to do it sleeps",
    "stopped": "a stopped queue is waited for",
    "fault": "a fault of the ring is its error",
}


@pytest.fixture(scope="module")
def program() -> Iterator[str]:
    with TemporaryDirectory(prefix="uc-") as directory:
        path = f"{directory}/trial"
        subprocess.run([*SANITIZED, f"-I{RINGS}", "-o", path, *SOURCES], check=True)
        yield path


@pytest.mark.parametrize("name", TRIALS, ids=TRIALS.keys())
def test_trial(program: str, name: str) -> None:
    """The claim in the trial's comment holds, and no sanitizer objects."""
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), TRIALS[name]


def test_frames_with_headers(tmp_path: Path) -> None:
    """Whatever headers come from either side, only those that agree with their frame go out, in each mode of the pump."""
    program = str(tmp_path / "headers")
    sources = [HERE / "pump_headers_trial.c", *SOURCES[1:]]
    subprocess.run([*SANITIZED, f"-I{RINGS}", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
