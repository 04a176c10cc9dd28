"""Interactive shells on a terminal of their own, into which a test types, and whose screen it reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

PROMPT = "READY> "
TAB = "\t"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?<>=]*[A-Za-z]|\][^\x07]*\x07|[=>()][0-9A-B]?)|[\x08\x0f]")
_PATIENCE_S = 30.0


class Shell:
    """A shell that has shown its prompt."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environ), start_new_session=True
        )
        os.close(theirs)
        self._screen = ""
        self.see(PROMPT)

    def type(self, text: str) -> None:
        """Type it, after all that is on the screen was read."""
        self._screen = ""
        os.write(self._ours, text.encode())

    def see(self, *texts: str) -> str:
        """The screen since the last typing, once all these texts are on it."""
        until = time.monotonic() + _PATIENCE_S
        while not all(text in self._screen for text in texts):
            readable, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise AssertionError(f"the shell did not show {texts}: {self._screen!r}")
            self._screen += _ESCAPES.sub("", os.read(self._ours, 65536).decode(errors="replace"))
        return self._screen

    def run(self, line: str) -> None:
        """Type a line, and wait for the next prompt."""
        self.type(f"{line}\n")
        self.see(PROMPT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            os.close(self._ours)


@contextmanager
def shell(name: str, environ: Mapping[str, str]) -> Iterator[Shell]:
    """A bash or zsh without a user's own settings."""
    argv = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}[name]
    opened = Shell(argv, {**environ, "TERM": "xterm", "PS1": PROMPT, "LC_ALL": "C.UTF-8"})
    try:
        yield opened
    finally:
        opened.close()
