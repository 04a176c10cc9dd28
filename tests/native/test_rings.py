"""The driver's rings under ASan, UBSan and TSan, against a device's side written for these tests (ring_*.c)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).resolve().parent
RINGS = HERE.parents[1] / "userspace_cni" / "fastpath" / "rings"
SOURCES = [str(RINGS / name) for name in ("queue.c", "driver.c", "driver_receive.c", "driver_transmit.c", "events.c")]
SOURCES += [str(RINGS / f"packed_driver_{way}.c") for way in ("receive", "transmit")]
STRICT = ("gcc", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{RINGS}", f"-I{HERE}")
CLANG = shutil.which("clang-14") or "clang"
BUILDS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread", "-Wno-tsan"),  # fences are unknown to it, and none of what it is to see hangs on them
}
TRIALS = {
    "lengths": "frames of 14 to 9018 bytes arrive bit-identical, in one buffer or many",
    "wrap": "indices wrap at 65536, rings of 2 to 32768 descriptors",
    "full": "a full ring takes what fits; impossible lengths are refused",
    "oversize": "a frame longer than the stride is dropped and counted, its neighbours arrive",
    "heads": "of frames that are taken by their heads only these are copied, and the lengths are whole",
    "stream": "after a full burst the next one is awaited as a whole, for a moment",
    "hostile": "each lie in a used ring is named, and mended by a new attachment",
}
THREADS = {
    "threads": "senders and sleeping receivers share queues that are stopped, started, closed",
    "waits": "frames, time, hang-up, wake and close end a wait",
    "looks": "a wait looks for frames before it sleeps while that finds some, and more seldom while it does not",
}


@pytest.fixture(scope="module")
def built() -> Iterator[Callable[[str, str], str]]:
    """Compile a program once per kind of build, and return its path."""
    with TemporaryDirectory(prefix="uc-") as directory:

        @cache
        def make(name: str, kind: str) -> str:
            path = f"{directory}/{name}-{kind}"
            subprocess.run([*STRICT, *BUILDS[kind], "-o", path, str(HERE / f"{name}.c"), *SOURCES], check=True)
            return path

        yield make


@pytest.mark.parametrize("name", TRIALS)
def test_memory(built: Callable[[str, str], str], name: str) -> None:
    """The trial's claim holds, and no byte outside a buffer is touched."""
    _passes(built("ring_trial", "address"), name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_places(built: Callable[[str, str], str], seed: int) -> None:
    """Frames that are sent in order lie one behind the other, and none is written to while the other side has it."""
    _passes(built("places_trial", "address"), str(seed))


@pytest.mark.parametrize("name", THREADS)
def test_threads(built: Callable[[str, str], str], name: str) -> None:
    """The same with several threads."""
    _passes(built("ring_threads", "address"), name)


@pytest.mark.parametrize("name", THREADS)
def test_races(built: Callable[[str, str], str], name: str) -> None:
    """There is no data race."""
    _passes("setarch", "-R", built("ring_threads", "thread"), name)  # the sanitizer wants its memory in a fixed place


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fuzz(built: Callable[[str, str], str], seed: int) -> None:
    """Random events and lies lead out of no buffer."""
    _passes(built("ring_fuzz", "address"), str(seed))


def test_guided_fuzz(tmp_path: Path) -> None:
    """Events and lies that libFuzzer prefers because they reach new code lead out of no buffer."""
    options = ("-DLIBFUZZER", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
    path = str(tmp_path / "guided")
    subprocess.run([CLANG, *STRICT[1:], *options, "-o", path, str(HERE / "ring_fuzz.c"), *SOURCES], check=True)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    limits = ("-seed=1", "-runs=20000", "-max_len=1024", "-len_control=0", f"-artifact_prefix={tmp_path}/")
    done = subprocess.run([path, *limits, str(corpus)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def _passes(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), command
