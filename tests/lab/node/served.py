"""A node whose plugin is the shim, with an agent behind it: black-box tests must see the same as with a process.

The agent is forked from a process that has imported everything, so that each test has its own. The first call starts it, and a
call after a change of the node's settings starts it anew.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.lab.node.agent import START_S, Agent, get, install_shim
from tests.lab.node.agentless import filled
from tests.lab.node.brisk import look_sooner
from tests.lab.node.forked import server
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.agent.agent_service import serve
from userspace_cni.base.settings import load
from userspace_cni.shim import BUILT


class ServedNode(Node):
    """The node, whose `plugin` is the shim. The runtime and the agent get `environ`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._served: dict[str, str] = {}
        self._lock = threading.Lock()
        self._process: ForkServerProcess | None = None

    @property
    def socket(self) -> str:
        return f"{self.environ['USERSPACE_CNI_RUN_DIR']}/agent.sock"

    @property
    def log(self) -> Path:
        return self.directory.parent / "agent.log"

    def variables(
        self, command: str, netns: str = "", container: str | None = None, ifname: str = "net1", **environ: str
    ) -> dict[str, str]:
        """As the node's; an agent with these settings serves when it returns."""
        self.serve()
        given = {} if container is None else {"container": container}
        return super().variables(command, netns, ifname=ifname, **given, **environ)

    def serve(self) -> None:
        """Start an agent with the present settings."""
        with self._lock:
            self._serve()

    def _serve(self) -> None:
        settings = self.environ
        if self._process is not None and settings == self._served:
            return
        self.stop()
        self._install(settings)
        self._served = settings
        self._process = server().Process(target=_be_the_agent, args=(settings, str(self.log)))
        self._process.start()
        wait_until(self._answers, what="the agent to serve")

    def _install(self, settings: dict[str, str]) -> None:
        """Install the shim with these settings as the plugin."""
        shim = filled(BUILT.read_bytes(), load(settings))
        temporary = Path(f"{self.plugin}.new")
        temporary.write_bytes(shim)
        temporary.chmod(0o755)
        temporary.replace(self.plugin)

    def reconcile(self) -> None:
        """Make the agent do a pass of reconciliation, and wait for it."""
        status, body = get(self.socket, "/api/v1/reconcile", "POST")
        assert status == 200, body

    def stop(self) -> None:
        """Stop the agent in an orderly way."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.join(60)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.is_alive(), self.log.read_text()[-2000:]
        with suppress(OSError):
            return get(self.socket, "/healthz")[0] in (200, 503)
        return False


class HandedNode(ServedNode):
    """The same with the launcher as the plugin, which hands its calls to the agent."""

    def _install(self, settings: dict[str, str]) -> None:
        """Leave the launcher as the plugin."""


class ForkedAgent(Agent):
    """`userspace-cni agent` without the start of an interpreter."""

    _forked: ForkServerProcess | None = None

    @property
    def pid(self) -> int:
        assert self._forked
        assert self._forked.pid
        return self._forked.pid

    def start(self, *, wait: bool = True) -> ForkedAgent:
        environ = {**self.node.environ, **self._settings}
        self._forked = server().Process(target=_be_the_agent, args=(environ, str(self.log)))
        self._forked.start()
        if wait:
            wait_until(self.answers, START_S, "the agent to serve")
        return self

    def answers(self) -> bool:
        """Whether it serves; AssertionError when it has ended."""
        assert self._forked
        assert self._forked.is_alive(), self.log.read_text()[-2000:]
        with suppress(OSError):
            return self.get("/healthz")[0] in (200, 503)
        return False

    def kill(self) -> None:
        """SIGKILL, reaped."""
        assert self._forked
        self._forked.kill()
        self._forked.join()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Stop it in an orderly way; its exit code."""
        assert self._forked
        os.kill(self.pid, sign)
        self._forked.join(30)
        code = self._forked.exitcode
        assert code is not None, "the agent has not ended"
        return code

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._forked and self._forked.is_alive():
            os.kill(self.pid, signal.SIGCONT)
            self.kill()


@contextmanager
def forked_agent(node: Node) -> Iterator[ForkedAgent]:
    install_shim(node)
    agent = ForkedAgent(node)
    try:
        yield agent.start()
    finally:
        agent.close()


def _be_the_agent(environ: dict[str, str], log: str) -> None:
    """In the forked process: run the agent."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    look_sooner()
    sys.exit(serve(load(environ), environ))


@contextmanager
def served(directory: Path, switch: object, kind: type[ServedNode] = ServedNode) -> Iterator[ServedNode]:
    from tests.lab.node.node import clean

    with clean(kind(directory, switch)) as node:  # type: ignore[arg-type]
        assert isinstance(node, ServedNode)
        try:
            yield node
        finally:
            node.stop()
