"""Where `capture` puts frames: a pcap stream for a program or a file, lines for a person."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.measure import tcpdump
from userspace_cni.cli.site import CommandRefused
from userspace_cni.probe import pcap
from userspace_cni.probe.capture import SLICE_S, ReaderGone, Sink
from userspace_cni.probe.frame_line import frame_line
from userspace_cni.probe.pcap import Frame

STDOUT: Final = "-"
_MODE: Final = 0o600
"""Of a file: it may have secrets of pods."""
_PIPE_BYTES: Final = 4096
"""A pipe that is writable takes as many without waiting (pipe(7), PIPE_BUF)."""


class PcapOutput:
    """Writes a pcap stream to a descriptor. `stopped`: whether a signal came: then a reader that rests is not awaited."""

    def __init__(self, fd: int, snaplen: int, stopped: Callable[[], bool]) -> None:
        self._fd = fd
        self._stopped = stopped
        self._at_once = stat.S_ISREG(os.fstat(fd).st_mode)
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)
        self._write(pcap.header(min(snaplen, pcap.SNAPLEN_MAX)))

    def put(self, frames: Sequence[Frame]) -> None:
        """Write them. Raises ReaderGone, Refused."""
        self._write(pcap.records(frames))

    def check(self) -> None:
        """Raise ReaderGone if a pipe's reader has closed it."""
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in self._poller.poll(0)):
            raise ReaderGone

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if not self._poller.poll(int(SLICE_S * 1000)):
                if self._stopped():
                    raise ReaderGone
                continue
            try:
                left = left[os.write(self._fd, left if self._at_once else left[:_PIPE_BYTES]) :]
            except BrokenPipeError as error:
                raise ReaderGone from error
            except OSError as error:
                raise CommandRefused(f"writing the frames: {error.strerror}", FOUND) from error


class LineOutput:
    """Prints a line for each frame."""

    def put(self, frames: Sequence[Frame]) -> None:
        try:
            click.echo("\n".join(map(frame_line, frames)))
        except BrokenPipeError as error:
            raise ReaderGone from error

    def check(self) -> None:
        """A terminal has no reader that ends alone."""


@contextmanager
def open_output(path: str | None, snaplen: int, stopped: Callable[[], bool]) -> Iterator[Sink]:
    """The output for `--write path`: a file, "-" for stdout; None for stdout, as lines where it is a terminal. Raises Refused."""
    if path is None and sys.stdout.isatty():
        if not tcpdump.is_installed():
            yield LineOutput()
            return
        with tcpdump.printing() as fd:
            yield PcapOutput(fd, snaplen, stopped)
        return
    if path in (None, STDOUT):
        yield PcapOutput(sys.stdout.fileno(), snaplen, stopped)
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOCTTY, _MODE)
    except OSError as error:
        raise CommandRefused(f"--write {path}: {error.strerror}", FOUND) from error
    try:
        yield PcapOutput(fd, snaplen, stopped)
    finally:
        os.close(fd)


def require_possible(path: str | None) -> None:
    """Refuse what would fill a terminal with bytes."""
    if path == STDOUT and sys.stdout.isatty():
        raise CommandRefused("--write -: stdout is a terminal; name a file, or a program that reads it: | tcpdump -r -", USAGE)
