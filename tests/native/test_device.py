"""The rings of a guest that does anything, under sanitizers: see device_trial.c, whose memory has no byte to spare."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FASTPATH = Path(__file__).parents[2] / "userspace_cni" / "fastpath"
RINGS, MEMORY = FASTPATH / "rings", FASTPATH / "memory"
DEVICE = [RINGS / name for name in ("device.c", "device_receive.c", "device_transmit.c")]
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", f"-I{RINGS}"]
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ALL_BUT_MEMORY = 0b111_1110
"""Bits of enum fp_fault from FP_INDEX_JUMP to FP_BAD_FLAGS."""
MEMORY_GONE = 1 << 7


def _build(place: Path, *flags: str) -> Path:
    """Build the trial; only the device's code reports which parts of it were reached."""
    trial = place / "trial"
    devices = []
    compiler = ["gcc", *STRICT, *flags]
    for source in DEVICE:
        devices.append(place / f"{source.stem}.o")
        subprocess.run([*compiler, "-fsanitize-coverage=trace-pc", "-c", source, "-o", devices[-1]], check=True)
    trusted = [RINGS / "queue.c", RINGS / "events.c", MEMORY / "guard.c", MEMORY / "lent.c"]
    own = [Path(__file__).with_name("device_trial.c"), *trusted]
    subprocess.run([*compiler, *own, *devices, "-o", trial, "-pthread"], check=True)
    return trial


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trial with every access and every shift checked."""
    return _build(tmp_path_factory.mktemp("device"), *SANITIZED)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trial without checks, as fast as it runs."""
    return _build(tmp_path_factory.mktemp("device"), "-O2")


def _run(trial: Path, mode: str, rounds: int) -> int:
    """Run the trial, and return the faults that it met, as bits."""
    done = subprocess.run([trial, mode, "1", str(rounds)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"faults (0x[0-9a-f]+|0)", done.stdout)
    assert found, done.stdout
    return int(found[1], 16)


def test_guests_made_of_bytes(sanitized: Path) -> None:
    """Guests that are bred to reach new code end in every kind of fault, and never in one of ours."""
    assert _run(sanitized, "explore", 20000) & ALL_BUT_MEMORY == ALL_BUT_MEMORY


@pytest.mark.parametrize("build", ["sanitized", "plain"])
def test_rings_written_while_they_are_read(request: pytest.FixtureRequest, build: str) -> None:
    """Another thread writes into descriptors and indexes all the time: the values that were checked are those that are used."""
    assert _run(request.getfixturevalue(build), "scribble", 300) & ALL_BUT_MEMORY


@pytest.mark.parametrize("build", ["sanitized", "plain"])
def test_memory_shrunk_while_it_is_used(request: pytest.FixtureRequest, build: str) -> None:
    """Another thread truncates the memory at any moment: each time the burst ends with that fault, and with no other."""
    assert _run(request.getfixturevalue(build), "shrink", 150) == MEMORY_GONE


def test_eventfd_full_and_blocking(plain: Path) -> None:
    """Another thread keeps the eventfd full and makes it blocking whenever it can: notifying it returns without blocking."""
    assert _run(plain, "brim", 300000) == 0
