"""The terminal of `top`: what is written to it, and that it is left as it was."""

from __future__ import annotations

import os
import signal
import socket
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyte
import pytest

from tests.lab.screens.made_node import made_picture, made_rows
from tests.lab.screens.terminal import Terminal
from userspace_cni.cli.top.top_figures import Line, Piece
from userspace_cni.cli.top.top_layout import draw_screen
from userspace_cni.cli.top.top_rows import TopRow
from userspace_cni.cli.top.top_screen import Screen, TerminalGone
from userspace_cni.cli.top.top_state import TopState

COLUMNS, LINES = 100, 20
HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Written:
    """What a screen wrote: each write by itself, as a socket keeps them apart, and what it shows."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.shown = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.shown)

    def take(self) -> list[bytes]:
        """The writes since the last call."""
        writes = []
        while True:
            try:
                writes.append(self._end.recv(1 << 20))
            except BlockingIOError:
                break
            self._stream.feed(writes[-1])
        return writes


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(COLUMNS, LINES) as made:
        yield made


@pytest.fixture
def ends() -> Iterator[tuple[int, Written]]:
    """The descriptor for a screen, and what comes out of it."""
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        theirs.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield ours.fileno(), Written(theirs)


def lines(*texts: str) -> list[Line]:
    found: list[Line] = [(Piece(text),) for text in texts]
    return found + [()] * (LINES - len(found))


def test_a_refresh_is_one_write_of_what_changed(terminal: Terminal, ends: tuple[int, Written]) -> None:
    """Each refresh is one write; it has the lines that changed and no other; without a change nothing is written."""
    target, written = ends
    with Screen(terminal.slave, target) as screen:
        written.take()
        screen.show(lines("one", "two", "three"), COLUMNS)
        assert len(written.take()) == 1
        assert [line.rstrip() for line in written.shown.display[:3]] == ["one", "two", "three"]
        assert screen.show(lines("one", "2", "three"), COLUMNS) > 0
        [only] = written.take()
        assert b"\x1b[2H2\x1b[K" in only
        assert b"one" not in only
        assert [line.rstrip() for line in written.shown.display[:3]] == ["one", "2", "three"]
        assert screen.show(lines("one", "2", "three"), COLUMNS) == 0
        assert written.take() == []
        screen.forget()
        screen.show(lines("one", "2", "three"), COLUMNS)
        assert b"three" in written.take()[0]


def test_the_last_column_is_shown(terminal: Terminal, ends: tuple[int, Written]) -> None:
    """A line as wide as the terminal is whole, and the line below it is not touched; a shorter one leaves nothing of it."""
    target, written = ends
    with Screen(terminal.slave, target) as screen:
        screen.show(lines("x" * COLUMNS, "below"), COLUMNS)
        written.take()
        assert written.shown.display[:2] == ["x" * COLUMNS, "below".ljust(COLUMNS)]
        screen.show(lines("short", "below"), COLUMNS)
        written.take()
        assert written.shown.display[0].rstrip() == "short"


def test_four_hundred_rows(terminal: Terminal, ends: tuple[int, Written]) -> None:
    """Of 400 attachments a refresh writes the lines that are on the screen, in one write of a size that is theirs."""
    target, written = ends
    rows = [TopRow(f"default/pod-{number:03}/net1", rates=made_rows()[0].rates) for number in range(400)]
    with Screen(terminal.slave, target) as screen:
        written.take()
        drawn, page = draw_screen(made_picture(rows=rows), TopState(), (COLUMNS, LINES))
        screen.show(drawn, COLUMNS)
        [whole] = written.take()
        assert len(whole) < 10 * COLUMNS * LINES
        assert sum("default/pod-" in line for line in written.shown.display) == page
        assert [line.rstrip() for line in written.shown.display] == [
            "".join(each.text for each in line).rstrip() for line in drawn
        ]


def test_looks(terminal: Terminal, ends: tuple[int, Written]) -> None:
    """Colours are left out where they are not wanted, bold is not; signs that cannot be shown have another in their place."""
    line: Line = (Piece("a", "bold red"), Piece("█░▼ "), Piece("  ", "head"))
    assert Screen(terminal.slave, ends[0]).paint(line) == "\x1b[1;31ma\x1b[0m█░▼ \x1b[7m  \x1b[0m"
    assert Screen(terminal.slave, ends[0], colours=False, unicode=False).paint(line) == "\x1b[1ma\x1b[0m#.v \x1b[7m  \x1b[0m"


@pytest.mark.parametrize("fails", [False, True])
def test_the_terminal_is_left_as_it_was(terminal: Terminal, ends: tuple[int, Written], fails: bool) -> None:
    """Its modes and the handlers of signals are the former ones after the block, also when it ends with an exception."""
    target, written = ends
    handlers = [signal.getsignal(number) for number in HANDLED]
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    try:
        with Screen(terminal.slave, target) as screen:
            assert not terminal.modes()[3] & (termios.ECHO | termios.ICANON)
            assert terminal.modes()[3] & termios.ISIG
            screen.show(lines("one"), COLUMNS)
            if fails:
                raise ValueError("a fault")
    except ValueError:
        assert fails
    assert terminal.modes() == terminal.attributes
    assert [signal.getsignal(number) for number in HANDLED] == handlers
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert written.take()[-1] == b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


def test_what_ends_a_wait(terminal: Terminal, ends: tuple[int, Written]) -> None:
    """A key, another thread and a signal end a wait at once; a signal that ends the process is kept for its end."""
    with Screen(terminal.slave, ends[0]) as screen:
        terminal.type("q")
        assert screen.wait(60) == b"q"
        thread = threading.Thread(target=screen.wake)
        thread.start()
        assert screen.wait(600) == b""
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
        assert screen.wait(600) == b""
        assert screen.ended_by == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert screen.wait(600) == b""
        assert screen.interrupted
        assert screen.wait(0.01) == b""


def test_a_closed_terminal() -> None:
    """A terminal that was closed ends the block without an error of its own; reading and writing say that it is gone."""
    terminal = Terminal(COLUMNS, LINES)
    slave = os.dup(terminal.slave)
    try:
        with Screen(slave, slave) as screen:
            terminal.close()
            with pytest.raises(TerminalGone):
                screen.wait(60)
            with pytest.raises(TerminalGone):
                screen.show(lines("one"), COLUMNS)
    finally:
        os.close(slave)
