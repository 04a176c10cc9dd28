"""A terminal of a test's own, on which a program runs as a person's: a pseudo-terminal, and pyte, which knows what it shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyte

from tests.lab.switch.switch import wait_until

SECONDS = 60.0
_READ_BYTES = 65536


class Terminal:
    """A terminal of `columns` by `lines`. `start` runs a program on it, as the leader of a session whose terminal it is."""

    def __init__(self, columns: int = 120, lines: int = 30) -> None:
        self.master, self.slave = os.openpty()
        self.received = b""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._process: subprocess.Popen[bytes] | None = None
        self.resize(columns, lines)
        self.attributes = termios.tcgetattr(self.slave)
        """How the terminal was before any program."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if error is not None and self.master >= 0:
            error.add_note("the screen:\n" + "\n".join(self.lines()))
        self.close()

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Run the program."""
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            env={**environ, "TERM": "xterm-256color"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def resize(self, columns: int, lines: int) -> None:
        """Change its size; the kernel tells the program."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type it."""
        os.write(self.master, text.encode())

    def read(self, seconds: float = 0.0) -> bytes:
        """Take in what the program has written, and wait so long for the first of it; what that was."""
        taken, poller = b"", select.poll()
        poller.register(self.master, select.POLLIN)
        while poller.poll(0 if taken else 1000 * seconds):
            try:
                data = os.read(self.master, _READ_BYTES)
            except OSError:  # no program has it open any more
                break
            taken += data
        self.received += taken
        self._stream.feed(taken)
        return taken

    def waiting(self) -> int:
        """Bytes that the program has written and that were not read."""
        return int(struct.unpack("i", fcntl.ioctl(self.master, termios.FIONREAD, b"\0" * 4))[0])

    def lines(self) -> list[str]:
        """What it shows."""
        self.read()
        return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, *texts: str) -> list[str]:
        """Wait until it shows all of these; the lines of that look: a later one may meet it while it is drawn anew."""

        def shown() -> list[str]:
            lines = self.lines()
            return lines if all(text in "\n".join(lines) for text in texts) else []

        found: list[str] = wait_until(shown, SECONDS, f"{texts} on the screen", pause=0.05)
        return found

    def wait_line(self, begin: str) -> str:
        """Wait until a line begins with this; the line."""
        found: list[str] = wait_until(
            lambda: [line for line in self.lines() if line.startswith(begin)], SECONDS, f"a line {begin!r}", pause=0.05
        )
        return found[0]

    def wait_end(self) -> int:
        """Wait until the program has ended, and take in all that it wrote; its return code."""
        wait_until(lambda: self.read() is None or self.process.poll() is not None, SECONDS, "the end of the program", pause=0.05)
        self.read()
        return self.process.wait()

    def modes(self) -> list[Any]:
        """How the terminal is now."""
        return termios.tcgetattr(self.slave)

    def close(self) -> None:
        """Close it, as a window is closed."""
        for fd in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.master = self.slave = -1

    def rest(self, seconds: float) -> bytes:
        """All that is written in this time, for what is measured."""
        until, taken = time.monotonic() + seconds, b""
        while (left := until - time.monotonic()) > 0:
            taken += self.read(left)
        return taken
