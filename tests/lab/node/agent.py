"""The agent as a process on a test's node, and the shim at the path that a runtime calls."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until

START_S = 60
GIVES_UP_SOON = """
import sys
from userspace_cni.agent import agent_service as service
from userspace_cni.__main__ import main
service.FORMER_S = 2.0  # instead of half a minute
sys.argv[1:] = ["agent"]
sys.exit(main())
"""
"""A program: an agent that waits two seconds for another agent."""


class Agent:
    """`userspace-cni agent` with a node's settings; `start` returns when it serves. Its log is `<directory>/agent.log`."""

    def __init__(self, node: Node, prefix: tuple[str, ...] = (), **settings: str) -> None:
        self.node = node
        self._prefix = prefix
        self.log = node.directory / "agent.log"
        self._settings = {"USERSPACE_CNI_TICK_S": "0.5", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return f"{self.node.environ['USERSPACE_CNI_RUN_DIR']}/agent.sock"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self, *, wait: bool = True) -> Agent:
        environ = {**os.environ, **self.node.environ, **self._settings}
        with self.log.open("ab") as log:
            argv = [*self._prefix, sys.executable, "-m", "userspace_cni", "agent"]
            self._process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            wait_until(self.answers, START_S, f"the agent to serve; {self.log.read_text()[-2000:]}")
        return self

    def answers(self) -> bool:
        """Whether it serves; AssertionError when it has ended."""
        assert self._process
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        with suppress(OSError):
            return self.get("/healthz")[0] in (200, 503)
        return False

    def get(self, target: str, method: str = "GET") -> tuple[int, bytes]:
        """Status and body of a page."""
        return get(self.socket, target, method)

    def reconcile(self) -> dict[str, int]:
        """Make it do a pass of reconciliation; what the pass did."""
        return reconcile(self.socket)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.socket, name, **labels)

    def kill(self) -> None:
        """SIGKILL, reaped."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Stop it in an orderly way; its exit code."""
        assert self._process
        self._process.send_signal(sign)
        return self._process.wait(60)

    def close(self) -> None:
        """End it whatever state it is in."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("userspace-cni", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def get(path: str, target: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of a page of the agent that listens at `path`."""
    connection = _Connection(path)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def reconcile(path: str) -> dict[str, int]:
    """Have the agent that listens at `path` make a pass: how often it did what."""
    status, body = get(path, "/api/v1/reconcile", "POST")
    assert status == 200, body
    actions: dict[str, int] = json.loads(body)["actions"]
    return actions


def metric(path: str, name: str, **labels: str) -> float:
    """The value of a metric of the agent that listens at `path`, as `value_of` has it."""
    return value_of(get(path, "/metrics")[1].decode(), name, **labels)


def value_of(exposition: str, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels, in Prometheus' text form; 0.0 when no series has them.

    Raises AssertionError for a metric that is not there: no line says what it is, and it has no series.
    """
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    total, is_there = 0.0, False
    for line in exposition.splitlines():
        if line.startswith("#"):
            is_there |= name in _told_of(line)
            continue
        full, _, value = line.rpartition(" ")
        found, _, inside = full.partition("{")
        if found == name:
            is_there = True
            if wanted <= set(inside.rstrip("}").split(",")):
                total += float(value)
    assert is_there, f"there is no metric {name}"
    return total


def _told_of(comment: str) -> Iterable[str]:
    """The metrics for which a line gives the type."""
    match comment.split():
        case ["#", "TYPE", name, "histogram"]:
            return [f"{name}_{part}" for part in ("bucket", "count", "sum")]
        case ["#", "TYPE", name, _]:
            return (name,)
    return ()


def install_shim(node: Node) -> None:
    """Install the shim as `userspace` for the node's runtimes, with the node's socket and spool."""
    done = run_command({**os.environ, **node.environ}, "install", "--bin-dir", str(node.bin))
    assert done.returncode == 0, done.stderr
    assert Path(node.plugin).read_bytes().startswith(b"\x7fELF")


@contextmanager
def running(node: Node, *prefix: str, **settings: str) -> Iterator[Agent]:
    """A node with the shim and a serving agent; `prefix` is the command by which the agent is started."""
    install_shim(node)
    agent = Agent(node, prefix, **settings)
    try:
        yield agent.start()
    finally:
        agent.close()


def spooled(node: Node) -> list[Any]:
    directory = node.state / "spool"
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith(".")) if directory.is_dir() else []
