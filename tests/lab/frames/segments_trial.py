"""The program tests/native/segments_trial.c, which merges and cuts frames with the product's C under ASan and UBSan."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[2] / "native"
RINGS = HERE.parents[1] / "userspace_cni" / "fastpath" / "rings"
SOURCES = [str(RINGS / "merge_segments.c"), str(RINGS / "cut_segments.c")]
STRICT = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{RINGS}", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class WrittenFrame:
    """A frame for a tap, with its virtio header; of how many frames it was made, and their bytes, `counted`."""

    frames: int
    counted: int
    content: bytes


class SegmentsTrial:
    """The program, which answers one request after the other."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def merge(self, frames: list[bytes], *, headers: bool = False) -> list[WrittenFrame]:
        """The frames of a burst, merged."""
        self._ask(b"M" + struct.pack("=II", headers, len(frames)), frames)
        return [WrittenFrame(self._number(), self._number(), self._frame()) for _ in range(self._number())]

    def cut(self, frame: bytes, longest: int = 70000, capacity: int = 7) -> list[bytes] | int:
        """The frames that a frame becomes, or the error."""
        self._ask(b"C" + struct.pack("=III", longest, capacity, 1), [frame])
        result = self._number()
        frames = [self._frame() for _ in range(self._number())]
        return result - 2**32 if result else frames

    def steps(self) -> int:
        """How often a branch of the product's code was taken since the last question: the same on every machine."""
        self._ask(b"S", [])
        return self._number()

    def end(self) -> None:
        """Fails with what a sanitizer said."""
        _, errors = self._process.communicate(timeout=60)
        assert (self._process.returncode, errors) == (0, b"")

    def _ask(self, head: bytes, frames: list[bytes]) -> None:
        assert self._process.stdin
        self._process.stdin.write(head + b"".join(struct.pack("=I", len(frame)) + frame for frame in frames))
        self._process.stdin.flush()

    def _number(self) -> int:
        return int.from_bytes(self._read(4), "little")

    def _frame(self) -> bytes:
        return self._read(self._number())

    def _read(self, count: int) -> bytes:
        assert self._process.stdout
        got = self._process.stdout.read(count)
        if len(got) < count:
            self.end()
        return got


@contextmanager
def running_trial() -> Iterator[SegmentsTrial]:
    """The program, compiled; fails at the end if a sanitizer objected."""
    with TemporaryDirectory(prefix="uc-") as directory:
        path, objects = f"{directory}/trial", []
        compiler = ["gcc", *STRICT, "-fsanitize=address,undefined"]
        for source in SOURCES:
            objects.append(f"{directory}/{Path(source).stem}.o")
            subprocess.run([*compiler, "-fsanitize-coverage=trace-pc", "-c", "-o", objects[-1], source], check=True)
        subprocess.run([*compiler, "-o", path, str(HERE / "segments_trial.c"), *objects], check=True)
        trial = SegmentsTrial(path)
        yield trial
        trial.end()
