"""A terminal for a program that fills it: entered, written, left, whatever ends the program.

By hand, with a dozen escape sequences (ECMA-48, and xterm's for the second screen) that every terminal of today knows:
rich.live draws everything anew at each refresh, and curses refuses terminals whose terminfo the node lacks, as new ones in a
container. Each refresh is one write of the lines that have changed. It must leave the terminal as it found it: also when it is
stopped (SIGTSTP), when a signal ends the process, and after an exception.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from userspace_cni.cli.top.top_figures import ASCII, Line, width_of_line

LOOKS: Final = {
    "bold": "1",
    "dim": "2",
    "head": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
"""The number of each look in SGR."""
_COLOURS: Final = frozenset({"red", "green", "yellow", "cyan"})
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The second screen, without a cursor; a line that is too long does not go on in the next one."""
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN: Final = "\x1b[?2026h"
_END: Final = "\x1b[?2026l"
"""A terminal that knows these shows all that is between them at once."""
_ERASE: Final = "\x1b[K"
"""All from the cursor to the end of its line."""
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_READ_BYTES: Final = 1024
_LEAVE_S: Final = 0.2
_SIZE: Final = (80, 24)


class TerminalGone(Exception):
    """The terminal was closed."""


class Screen:
    """The terminal on `source` and `target`, descriptors, within its block. For the main thread, which gets signals.

    A signal that ends the process sets `ended_by`: who uses the screen looks at it after `wait`, leaves the block, and has `die`
    end the process as the signal would have. Ctrl-C sets `interrupted`.
    """

    def __init__(self, source: int, target: int, *, colours: bool = True, unicode: bool = True) -> None:
        self._source = source
        self._target = target
        self._colours = colours
        self._unicode = unicode
        self._attributes: list[Any] | None = None
        self._former: dict[int, Any] = {}
        self._former_wake = -1
        self._woken, self._wake = -1, -1
        self._shown: list[str] = []
        self._size = (0, 0)
        self._stop_asked = False
        self._continued = False
        self._writing = False
        self.ended_by = 0
        self.interrupted = False

    def __enter__(self) -> Self:
        self._attributes = termios.tcgetattr(self._source)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._former_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(_ENDING, self._on_end),
            signal.SIGINT: self._on_interrupt,
            signal.SIGTSTP: self._on_stop,
            signal.SIGCONT: self._on_continue,
            signal.SIGWINCH: self._on_nothing,
        }
        try:
            for number, handler in handlers.items():
                self._former[number] = signal.signal(number, handler)
            self._take()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        try:
            columns, lines = os.get_terminal_size(self._target)
        except OSError:
            return _SIZE
        return (columns, lines) if columns > 0 and lines > 0 else _SIZE

    def wake(self) -> None:
        """Have `wait` return; for other threads."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def wait(self, seconds: float) -> bytes:
        """What was typed within this time, b"" for nothing; a signal and `wake` end it, too. Raises TerminalGone."""
        ready, _, _ = select.select([self._source, self._woken], [], [], max(0.0, seconds))
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._woken, _READ_BYTES):
                    pass
        if self._stop_asked:
            self._stop()
        elif self._continued:
            self._take()
        if self._source not in ready:
            return b""
        try:
            data = os.read(self._source, _READ_BYTES)
        except OSError as error:
            raise TerminalGone from error
        if not data:
            raise TerminalGone
        return data

    def show(self, lines: Sequence[Line], columns: int) -> int:
        """Write the lines that differ from what is shown, none wider than the terminal; how many bytes that were.

        Raises TerminalGone.
        """
        # at the last column the cursor stays on the character there, which would be erased
        painted = [self.paint(line) + (_ERASE if width_of_line(line) < columns else "") for line in lines]
        size = columns, len(lines)
        changed = [
            f"\x1b[{number}H{line}"
            for number, line in enumerate(painted, 1)
            if size != self._size or line != self._shown[number - 1]
        ]
        if size != self._size:
            changed.insert(0, "\x1b[2J")
        self._shown, self._size = painted, size
        if not changed:
            return 0
        data = (_BEGIN + "".join(changed) + _END).encode(errors="replace")
        self._write(data)
        return len(data)

    def forget(self) -> None:
        """Have the next `show` write every line."""
        self._size = (0, 0)

    def paint(self, line: Line) -> str:
        """The line with its escape sequences. Blanks at its end that have no look are left out."""
        parts: list[str] = []
        for text, look in line:
            words = [word for word in look.split() if self._colours or word not in _COLOURS] if look else []
            if words and text:
                parts.append(f"\x1b[{';'.join(LOOKS[word] for word in words)}m{text}\x1b[0m")
            else:
                parts.append(text)
        painted = "".join(parts).rstrip(" ")
        return painted if self._unicode else painted.translate(ASCII)

    def die(self) -> None:
        """End the process by the signal that came, as if it had not been handled."""
        if self.ended_by:
            signal.signal(self.ended_by, signal.SIG_DFL)
            os.kill(os.getpid(), self.ended_by)

    def _take(self) -> None:
        """Make the terminal ours: keys come at once and are not echoed, Ctrl-S stops nothing; Ctrl-C and Ctrl-Z stay signals."""
        attributes = termios.tcgetattr(self._source)
        attributes[0] &= ~termios.IXON
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._source, termios.TCSADRAIN, attributes)
        self._write(_ENTER.encode())
        self._size, self._continued = (0, 0), False

    def _give_back(self) -> None:
        """Make the terminal as it was. It never waits for one that takes nothing, and one that is gone needs nothing."""
        with contextlib.suppress(OSError, TerminalGone):
            if select.select([], [self._target], [], _LEAVE_S)[1]:
                self._write(_LEAVE.encode())
        if self._attributes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._source, termios.TCSANOW, self._attributes)

    def _restore(self) -> None:
        self._give_back()
        signal.set_wakeup_fd(self._former_wake, warn_on_full_buffer=False)
        while self._former:
            number, former = self._former.popitem()
            signal.signal(number, former if former is not None else signal.SIG_DFL)
        for fd in (self._woken, self._wake):
            os.close(fd)

    def _stop(self) -> None:
        """Stop the process as Ctrl-Z does, with the terminal as the shell had it; go on where SIGCONT comes."""
        self._stop_asked = False
        self._give_back()
        former = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, former)
        self._attributes = termios.tcgetattr(self._source)
        self._take()

    def _write(self, data: bytes) -> None:
        left, self._writing = memoryview(data), True
        try:
            while left:
                try:
                    left = left[os.write(self._target, left) :]
                except BlockingIOError:
                    select.select([], [self._target], [], 1.0)
        except OSError as error:
            raise TerminalGone from error
        finally:
            self._writing = False

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number
        if self._writing:  # to a terminal that takes nothing
            raise TerminalGone

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked = True

    def _on_continue(self, _number: int, _frame: FrameType | None) -> None:
        """After SIGSTOP, too, which cannot be handled: the shell has used the terminal meanwhile."""
        self._continued = True

    def _on_nothing(self, _number: int, _frame: FrameType | None) -> None:
        """A new size: that `wait` returns is enough."""
