"""tcpdump, where it is installed: it compiles filters, and shows frames to a person. It reads no link itself, and needs no right.

It gets the frames by a pipe, in a session of its own: Ctrl-C is for us, and it ends when we have given it all.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.site import CommandRefused
from userspace_cni.probe import pcap
from userspace_cni.probe.packet_filter import BadProgram, PacketFilter

PROGRAM: Final = "tcpdump"
_COMPILE_S: Final = 10.0
_LEAVE_S: Final = 5.0


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def compile_filter(expression: str) -> PacketFilter:
    """The filter that a pcap-filter(7) expression means. Raises Refused for a mistake in it, and without tcpdump."""
    if not is_installed():
        raise CommandRefused(
            f"a filter needs {PROGRAM}, which compiles it, and it is not installed here; capture without one", FOUND
        )
    argv = [PROGRAM, "-ddd", "-r", "-", "--", expression]
    try:
        done = subprocess.run(argv, input=pcap.header(), capture_output=True, timeout=_COMPILE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandRefused(f"{PROGRAM} cannot compile the filter: {error}", FOUND) from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandRefused(f"filter {expression!r}: {told[-1] if told else f'{PROGRAM} ended with {done.returncode}'}", USAGE)
    try:
        return PacketFilter.parse(done.stdout.decode(errors="replace"))
    except BadProgram as error:
        raise CommandRefused(f"filter {expression!r}: {error}", FOUND) from error


@contextmanager
def printing() -> Iterator[int]:
    """The descriptor for a pcap stream; tcpdump prints its frames on stdout at once.

    Raises Refused where it failed.
    """
    argv = [PROGRAM, "-l", "-n", "-r", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdin is not None  # noqa: S101 - for mypy
        try:
            yield process.stdin.fileno()
        finally:
            process.stdin.close()
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    if process.returncode > 0:
        raise CommandRefused(
            f"{PROGRAM} ended with {process.returncode}; | {PROGRAM} -r - shows why, --write FILE needs none", FOUND
        )
