"""The driver's rings under ASan, UBSan and TSan, against a device's side written for the purpose (ring_trial.c)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).resolve().parent
FASTPATH = HERE.parents[1] / "userspace_cni" / "fastpath"
SOURCES = (HERE / "ring_trial.c", FASTPATH / "queue.c", FASTPATH / "driver.c", FASTPATH / "events.c")
STRICT = ("gcc", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{FASTPATH}", f"-I{HERE}")
BUILDS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread", "-Wno-tsan"),  # fences are unknown to it, and none of what it is to see hangs on them
}
TRIALS = {
    "lengths": "frames of 14 to 9018 bytes arrive bit-identical, in one buffer or many",
    "wrap": "indices wrap at 65536, rings of 2 to 32768 descriptors",
    "full": "a full ring takes what fits; lengths that can not be are refused",
    "oversize": "a frame longer than the stride is dropped and counted, its neighbours arrive",
    "hostile": "each lie in a used ring is named, and mended by a new attachment",
    "fuzz": "random events and lies lead out of no buffer",
    "threads": "senders and sleeping receivers share queues that are stopped, started, closed",
    "waits": "frames, time, hang-up, wake and close end a wait",
}


@pytest.fixture(scope="module")
def built() -> Iterator[Callable[[str], str]]:
    """Compiles the trials once per kind of build; their path."""
    with TemporaryDirectory(prefix="uc-") as directory:

        @cache
        def make(kind: str) -> str:
            subprocess.run([*STRICT, *BUILDS[kind], "-o", f"{directory}/{kind}", *map(str, SOURCES)], check=True)
            return f"{directory}/{kind}"

        yield make


@pytest.mark.parametrize("name", TRIALS)
def test_memory(built: Callable[[str], str], name: str) -> None:
    """What the trial claims holds, and no byte outside of a buffer is touched."""
    _passes(built("address"), name)


@pytest.mark.parametrize("name", ["threads", "waits"])
def test_races(built: Callable[[str], str], name: str) -> None:
    """The same without a data race."""
    _passes("setarch", "-R", built("thread"), name)  # its shadow memory has a fixed place, which a randomized one may be in


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_fuzz(built: Callable[[str], str], seed: int) -> None:
    """Other random events and lies do no harm either."""
    _passes(built("address"), "fuzz", str(seed))


def _passes(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), command
