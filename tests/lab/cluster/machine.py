"""Namespaces for a part of a cluster: processes, mounts and network of its own, which end with its first process.

That process ends when its stdin does, so that nothing of a cluster outlives the tests, even when they are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_ENTER_CGROUPS = """\
while IFS=: read -r _ names path; do
    procs=/sys/fs/cgroup/${names#name=}$path/cgroup.procs
    [[ -z $names || ! -e $procs ]] || echo 0 >"$procs"
done </proc/1/cgroup
exec "$@"
"""
"""Starts a command in the cgroups of the machine's first process, which entering the namespaces alone does not do."""
_STOP_S = 60.0
_RUN_S = 60.0


class MachineError(Exception):
    """What a command printed when it failed, or why a machine did not start."""


class Daemon:
    """A program that runs in a machine until it is stopped."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Its process, as this machine knows it."""
        return _child(self._process.pid)

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, if it runs."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.runs():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self._process.wait(_STOP_S)


class Machine:
    """A machine whose first process is `boot`, which prints a line when everything is there and ends with its stdin."""

    def __init__(self, *boot: str) -> None:
        namespaces = ["--pid", "--mount", "--net", "--uts", "--ipc"]
        argv = ["unshare", "--fork", "--kill-child", *namespaces, *boot]
        pipe = subprocess.PIPE
        self._first = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self._started: list[subprocess.Popen[bytes]] = []
        assert self._first.stdout
        if not self._first.stdout.readline():
            self.end()
            raise MachineError(f"{' '.join(argv)}: exit {self._first.returncode} before it was ready")
        self.pid = _child(self._first.pid)
        """Its first process, as this machine knows it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kill every process in it, as a power cut does; mounts and network go with them."""
        self._first.kill()
        self._first.wait(_STOP_S)
        for started in self._started:
            started.wait(_STOP_S)
        for stream in (self._first.stdin, self._first.stdout):
            assert stream
            stream.close()

    def has_ended(self) -> bool:
        """Whether its first process has ended, as by its own shutdown."""
        return self._first.poll() is not None

    def path(self, path: str) -> Path:
        """A path of the machine as tests open it. An absolute symbolic link in it would be followed on the host."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def command(self, *argv: str) -> list[str]:
        """What runs a command in the machine, with its cgroups."""
        return ["nsenter", f"--target={self.pid}", "--all", "--root", "--wd", "bash", "-c", _ENTER_CGROUPS, "bash", *argv]

    def run(self, *argv: str, seconds: float = _RUN_S, told: str = "") -> str:
        """What a command prints; MachineError with its stderr when it fails. `told` is its stdin."""
        done = self.attempt(*argv, seconds=seconds, told=told)
        if done.returncode:
            raise MachineError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def attempt(self, *argv: str, seconds: float = _RUN_S, told: str = "") -> subprocess.CompletedProcess[str]:
        """The same, whatever its exit code is."""
        return subprocess.run(self.command(*argv), input=told, capture_output=True, text=True, timeout=seconds, check=False)

    def start(self, log: Path, *argv: str, environ: Mapping[str, str] | None = None) -> Daemon:
        """Start a program that stays; its output is appended to `log`."""
        with log.open("ab") as file:
            null = subprocess.DEVNULL
            made = subprocess.Popen(self.command(*argv), stdin=null, stdout=file, stderr=file, env=environ)
        self._started.append(made)
        return Daemon(made, log)


def _child(pid: int) -> int:
    """The only child of a process, which has not ended."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
