"""The rings of a guest that does anything, under sanitizers: see device_guest.h, whose memory has no byte to spare."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

FASTPATH = Path(__file__).parents[2] / "userspace_cni" / "fastpath"
RINGS, MEMORY = FASTPATH / "rings", FASTPATH / "memory"
DEVICE = [RINGS / f"{kind}{part}.c" for kind in ("device", "packed_device") for part in ("", "_receive", "_transmit")]
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", f"-I{RINGS}"]
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ALL_BUT_MEMORY = 0b111_1110
"""Bits of enum fp_fault from FP_INDEX_JUMP to FP_BAD_FLAGS."""
ALL_BUT_INDEX = ALL_BUT_MEMORY & ~0b10
"""A packed ring has no index that could jump."""
MEMORY_GONE = 1 << 7


TRUSTED = [RINGS / "queue.c", RINGS / "events.c", MEMORY / "guard.c", MEMORY / "lent.c"]
TRIALS = {"split": "device_trial.c", "packed": "packed_device_trial.c"}
CLANG = shutil.which("clang-14") or "clang"
Build = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build the trial of a kind of ring, with every access and shift checked or as fast as it runs.

    Only the device's code reports which parts of it were reached.
    """

    @cache
    def compiled(how: str) -> tuple[Path, ...]:
        place = tmp_path_factory.mktemp(how)
        for source in DEVICE:
            subprocess.run([*_compiler(how), "-fsanitize-coverage=trace-pc", "-c", source], check=True, cwd=place)
        return tuple(place / f"{source.stem}.o" for source in DEVICE)

    @cache
    def make(kind: str, how: str) -> Path:
        trial = compiled(how)[0].with_name(kind)
        own = Path(__file__).with_name(TRIALS[kind])
        subprocess.run([*_compiler(how), own, *TRUSTED, *compiled(how), "-o", trial, "-pthread"], check=True)
        return trial

    return make


def _compiler(how: str) -> list[str]:
    return ["gcc", *STRICT, *(SANITIZED if how == "sanitized" else ["-O2"])]


def _run(trial: Path, mode: str, rounds: int) -> int:
    """Run the trial, and return the faults that it met, as bits."""
    done = subprocess.run([trial, mode, "1", str(rounds)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"faults (0x[0-9a-f]+|0)", done.stdout)
    assert found, done.stdout
    return int(found[1], 16)


@pytest.mark.parametrize(("kind", "expected"), [("split", ALL_BUT_MEMORY), ("packed", ALL_BUT_INDEX)])
def test_guests_made_of_bytes(built: Build, kind: str, expected: int) -> None:
    """Guests that are bred to reach new code end in every kind of fault, and never in one of ours."""
    assert _run(built(kind, "sanitized"), "explore", 20000) & ALL_BUT_MEMORY == expected


@pytest.mark.parametrize("kind", TRIALS)
def test_guests_that_a_fuzzer_makes(kind: str, tmp_path: Path) -> None:
    """libFuzzer, which sees each comparison, makes no guest that leads out of a buffer or out of its own memory."""
    fuzzer, corpus = tmp_path / "fuzzer", tmp_path / "corpus"
    corpus.mkdir()
    options = ["-O1", "-DLIBFUZZER", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    own = Path(__file__).with_name(TRIALS[kind])
    subprocess.run([CLANG, *STRICT, *options, own, *TRUSTED, *DEVICE, "-o", fuzzer, "-pthread"], check=True)
    limits = ["-seed=1", "-runs=20000", "-max_len=1024", "-len_control=0", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([fuzzer, *limits, corpus], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("kind", TRIALS)
@pytest.mark.parametrize("how", ["sanitized", "plain"])
def test_rings_written_while_they_are_read(built: Build, kind: str, how: str) -> None:
    """Another thread writes into descriptors and indexes all the time: the values that were checked are those that are used."""
    assert _run(built(kind, how), "scribble", 300) & ALL_BUT_MEMORY


@pytest.mark.parametrize("kind", TRIALS)
@pytest.mark.parametrize("how", ["sanitized", "plain"])
def test_memory_shrunk_while_it_is_used(built: Build, kind: str, how: str) -> None:
    """Another thread truncates the memory at any moment: each time the burst ends with that fault, and with no other."""
    assert _run(built(kind, how), "shrink", 150) == MEMORY_GONE


def test_eventfd_full_and_blocking(built: Build) -> None:
    """Another thread keeps the eventfd full and makes it blocking whenever it can: notifying it returns without blocking."""
    assert _run(built("split", "plain"), "brim", 300000) == 0
