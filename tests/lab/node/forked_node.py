"""The program as processes that need no start, and a node whose plugin is one: most of a call's time is the interpreter's start.

A forked process has the variables, pipes, working directory and umask of a process of the launcher, and runs the same code. Only
the start differs: tests about the launcher or the interpreter use `Node`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from tests.lab.node.forked import server
from tests.lab.node.node import Node, launcher
from tests.lab.runtimes.runtime import Call, call, converse

TIMEOUT_S = 60.0
_ONE_AT_A_TIME = threading.Lock()
"""One start at a time: a start reaps all ended processes, those of other threads, too, and of two
that ask at once the second gets 255. Also, a umask is read by changing it.
"""


class ForkedNode(Node):
    """The node; a call of the launcher is forked. A program that a test has put in its place is executed."""

    def called(self, command: str, environ: Mapping[str, str], stdin: bytes) -> Call:
        """One call; its `cpu` is not known."""
        if Path(self.plugin).read_bytes() != launcher():
            return call(self.plugin, command, environ, stdin)
        began = time.monotonic()
        done = forked({**environ, "CNI_COMMAND": command}, stdin=stdin)
        return Call(self.plugin, command, stdin, done.stdout, done.stderr, done.returncode, time.monotonic() - began, 0.0)


def run_command(environ: Mapping[str, str], *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command for people, to its end; `given` is its stdin."""
    done = forked(environ, *arguments, stdin=given.encode())
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def forked(environ: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the program with these variables and arguments to its end; after a minute it gets SIGKILL."""
    until = time.monotonic() + TIMEOUT_S
    (stdin_end, to), (out, stdout_end), (err, stderr_end) = (server().Pipe(duplex=False) for _ in range(3))
    theirs = (stdin_end, stdout_end, stderr_end)
    with _ONE_AT_A_TIME:
        umask = os.umask(0)
        os.umask(umask)
        process = server().Process(target=_be_the_program, args=(theirs, dict(environ), arguments, str(Path.cwd()), umask))
        process.start()
    for each in theirs:
        each.close()
    try:
        heard = converse((to, out, err), process.sentinel, process.kill, stdin, until)
    finally:
        with _ONE_AT_A_TIME:
            if process.is_alive():
                process.kill()
            process.join()
            status = process.exitcode
            process.close()
    assert status is not None
    return subprocess.CompletedProcess(["userspace-cni", *arguments], status, heard["out"], heard["err"])


def _be_the_program(
    pipes: tuple[Connection, Connection, Connection],
    environ: dict[str, str],
    arguments: tuple[str, ...],
    directory: str,
    umask: int,
) -> None:
    """In the forked process: do what the launcher makes the interpreter do."""
    from userspace_cni.__main__ import main

    for target, each in enumerate(pipes):
        os.dup2(each.fileno(), target)
        each.close()
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(directory)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["userspace-cni", *arguments]
    sys.exit(main())
