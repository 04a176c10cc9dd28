"""A node whose agent a test starts, kills and starts again. Beside the shim it has the plugin as a process."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from tests.lab.kube.apiserver import ApiServer
from tests.lab.node import agent, brisk, inside
from tests.lab.node.agentless import filled
from tests.lab.node.forked import server
from tests.lab.node.node import CONTAINER, Node
from tests.lab.node.stored import stored
from tests.lab.runtimes.runtime import Call, call
from tests.lab.switch.switch import wait_until
from userspace_cni.agent import agent_service, trace_export, watchdog
from userspace_cni.attachment import cleanup, specs
from userspace_cni.base import retries
from userspace_cni.base.settings import Settings, load
from userspace_cni.cni import protocol
from userspace_cni.cni.call import CniAnswer
from userspace_cni.node.local_node import LocalNode
from userspace_cni.shim import BUILT

ENDED_S = 60
"""How long to wait for an agent that was told to end.

A test of a verb that must not delay the end makes that verb take longer.
"""


WITHOUT_API_S = 0.5
"""How long an agent waits for an API server that, as the test knows, does not answer."""
_LIMITED = (watchdog, agent_service, cleanup, specs, retries, brisk, trace_export)


class LiveNode(Node):
    """The node. Its `plugin` is the shim, which finds an agent only between `start` and `kill` or `end`.

    The agent is forked from a process that has imported everything: a start costs a tenth of a second. Its tick is half a second,
    and its other pauses are short, too (`lab.node.brisk`).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._process: ForkServerProcess | None = None
        shutil.copytree(self.bin, self.directory / "standalone")
        self.settings["USERSPACE_CNI_TICK_S"] = "0.5"
        shim = Path(self.plugin)
        shim.write_bytes(filled(BUILT.read_bytes(), load(self.environ)))

    @property
    def socket(self) -> str:
        return f"{self.directory}/run/agent.sock"

    @property
    def log(self) -> Path:
        """The log of all agents, one after the other."""
        return self.directory / "agent.log"

    @property
    def standalone(self) -> str:
        """The plugin as a process, as `install --standalone` makes it."""
        return str(self.directory / "standalone" / "userspace")

    @property
    def spool(self) -> Path:
        """The directory into which the shim puts DELs."""
        return self.state / "spool"

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def follow(self, api: ApiServer, name: str = "n1") -> None:
        """Make the agent read this server, in which the node has this name."""
        self.settings |= {"USERSPACE_CNI_KUBECONFIG": api.kubeconfig(self.directory), "USERSPACE_CNI_NODE_NAME": name}

    @property
    def passed(self) -> Path:
        """The points that an agent which was to note them has passed, one in a line."""
        return self.directory / "points"

    def start(self, *, until: str = "", note: bool = False, **limits: float) -> LiveNode:
        """Start an agent that serves. `limits`: constants of `lab.node.brisk`, and of the modules of the agent in `_LIMITED`.

        `until`: it gets SIGKILL when one of its verbs first comes to that point; see tests.lab.node.inside. `note`: it notes the
        points that it passes.
        """
        assert self._process is None
        trip = _At(until, str(self.passed)) if until or note else None
        self._process = server().Process(target=_serve, args=(self.environ, str(self.log), trip, limits))
        self._process.start()
        wait_until(self._answers, what="the agent to serve")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.is_alive(), self.log.read_text()[-2000:]
        with suppress(OSError):
            return agent.get(self.socket, "/healthz")[0] in (200, 503)
        return False

    def kill(self) -> None:
        """SIGKILL, reaped."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_death()

    def await_death(self) -> None:
        """Wait until it has died of SIGKILL."""
        assert self.await_end() == -signal.SIGKILL

    def ask_to_end(self) -> None:
        """SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.ask_to_end()
        return self.await_end()

    def await_end(self) -> int:
        """Its exit code, or the negative number of the signal that it died of."""
        process, self._process = self._process, None
        assert process is not None
        process.join(ENDED_S)
        code = process.exitcode
        if code is None:
            os.kill(process.pid or 0, signal.SIGUSR2)  # where its threads are goes to its log
            process.join(1)
            process.kill()
            process.join()
        process.close()
        assert code is not None, f"the agent has not ended within {ENDED_S} s: {self.log.read_text()[-8000:]}"
        return code

    def close(self) -> None:
        """End the agent, whatever state it is in."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
            self.ask_to_end()
        self.await_end()

    def in_process(
        self, command: str, network: Mapping[str, Any], netns: str = "", container: str = CONTAINER, ifname: str = "net1"
    ) -> CniAnswer:
        """One call of the plugin in this process, of which the agent knows nothing."""
        return inside.answer(self.variables(command, netns, container, ifname), json.dumps(network).encode(), inside.Trip())

    def run_standalone(
        self, command: str, network: Mapping[str, Any], netns: str = "", container: str = CONTAINER, ifname: str = "net1"
    ) -> Call:
        """One call of the plugin as a process that never hands it to an agent."""
        environ = self.variables(command, netns, container, ifname, USERSPACE_CNI_HAND_OVER="false")
        return call(self.standalone, command, environ, json.dumps(network).encode())

    def run_handed(
        self,
        command: str,
        network: Mapping[str, Any],
        netns: str = "",
        container: str = CONTAINER,
        ifname: str = "net1",
        **environ: str,
    ) -> Call:
        """One call of the plugin as a process that hands it to an agent of the same directories, if one serves."""
        variables = self.variables(command, netns, container, ifname, **environ)
        return call(self.standalone, command, variables, json.dumps(network).encode())

    def page(self, target: str) -> tuple[int, Any]:
        """Status and decoded body of a page of the agent."""
        status, body = agent.get(self.socket, target)
        return status, json.loads(body)

    def reconcile(self) -> dict[str, int]:
        """Make it do a pass; what the pass did."""
        return agent.reconcile(self.socket)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the agent's series of this name with these labels."""
        return agent.metric(self.socket, f"userspace_cni_{name}", **labels)

    def await_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric that is there a moment after what it tells of has this value."""
        full = f"userspace_cni_{name}"

        def found() -> bool:
            exposition = agent.get(self.socket, "/metrics")[1].decode()
            return full in exposition and agent.value_of(exposition, full, **labels) == value

        wait_until(found, what=f"{value:g} as {full}")

    def done(self, action: str) -> int:
        """How often the agent has done an action of reconciliation."""
        return int(self.metric("reconcile_actions_total", action=action))

    def await_done(self, action: str, times: int) -> None:
        """Wait until it was done so often: an action is counted after its effect can be seen."""
        wait_until(lambda: self.done(action) >= times, what=f"'{action}' {times} times")
        assert self.done(action) == times

    def await_served(self, **times: int) -> None:
        """Wait until it has served so many calls of each of these verbs, and no more: a call is counted after its answer."""

        def served() -> dict[str, float]:
            return {verb: self.metric("verb_seconds_count", verb=verb, stage="total") for verb in times}

        wait_until(lambda: all(served()[verb] >= count for verb, count in times.items()), what=f"{times} served")
        assert served() == times

    def tick(self, passes: int = 1) -> None:
        """Make it do so many passes of reconciliation."""
        for _ in range(passes):
            self.reconcile()

    def spooled(self) -> list[Any]:
        """Names of the DELs in the spool."""
        return agent.spooled(self)

    def states(self) -> list[str]:
        """The states of all records, in the order of their names."""
        return [record["state"] for record in stored(self.state, self.directory / "run")]

    def is_clean(self) -> bool:
        """Whether nothing is left of any attachment or DEL."""
        with suppress(FileNotFoundError):  # something has just gone while it was looked for
            return self.leftovers() == {} and self.spooled() == []
        return False

    def await_clean(self) -> None:
        wait_until(self.is_clean, what=f"nothing left below {self.directory}")

    def require_clean(self) -> None:
        left = self.leftovers(), self.spooled()
        assert left == ({}, []), left


_NOTING: Final = threading.Lock()
"""No thread goes on from a point while another one that came to it first has yet to end the process."""


@dataclass
class _At:
    """Notes each point in a file, and kills this process at one of them; at none if that is "". One that was passed before is
    noted as that point "again".
    """

    until: str
    file: str
    passed: set[str] = field(default_factory=set)

    def __call__(self, point: str) -> None:
        with _NOTING:
            noted = f"{point} again" if point in self.passed else point
            self.passed.add(point)
            with Path(self.file).open("a") as file:
                file.write(f"{noted}\n")
            if noted == self.until:
                os.kill(os.getpid(), signal.SIGKILL)


class _TrippedDrivers(inside.TrippedDrivers):
    """The agent's node, which tells `trip` of its points."""

    def __init__(self, trip: _At, settings: Settings, environ: Mapping[str, str], **options: Any) -> None:
        LocalNode.__init__(self, settings, environ, **options)
        self._trip = trip


def _serve(environ: dict[str, str], log: str, trip: _At | None, limits: dict[str, float]) -> None:
    """In the forked process: run the agent."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.register(signal.SIGUSR2, sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    brisk.look_sooner()
    for name, value in limits.items():
        [module] = [each for each in _LIMITED if name in vars(each)]
        setattr(module, name, value)
    if trip:
        vars(agent_service)["LocalNode"] = partial(_TrippedDrivers, trip)
    sys.exit(agent_service.serve(load(environ), environ))


def request(
    node: LiveNode, verb: str, network: Mapping[str, Any], netns: str = "", container: str = CONTAINER, ifname: str = "net1"
) -> bytes:
    """A call as the shim sends it."""
    environ = node.variables(verb, netns, container, ifname)
    return protocol.request_bytes(f"/api/v1/{verb.lower()}", environ, json.dumps(network).encode())


def spool_del(
    node: LiveNode, network: Mapping[str, Any], boottime_ns: int, container: str = CONTAINER, ifname: str = "net1"
) -> Path:
    """Spool a DEL of that moment, as the shim does."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    extra = {"Called-Boot-Id": boot_id, "Called-Boottime-Ns": str(boottime_ns)}
    environ = node.variables("DEL", "", container, ifname)
    raw = protocol.request_bytes("/api/v1/del", environ, json.dumps(network).encode(), extra=extra)
    node.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = node.spool / f".tmp-{boottime_ns:020}-1-00000000"
    written.write_bytes(raw)
    return written.rename(node.spool / f"{boottime_ns:020}-1-00000000")


def container(number: int) -> str:
    """A container's ID; the first twelve characters differ."""
    return f"{number:012x}" + "f" * 52


def port_of(container_id: str = CONTAINER, ifname: str = "net1") -> str:
    """The name of the attachment's port."""
    return f"{container_id[:12]}-{ifname}"


def serving(node: Node, **keys: Any) -> dict[str, Any]:
    """A network whose sockets OVS makes."""
    network = node.network(**keys)
    network["host"]["vhost"]["mode"] = "server"
    return network
