"""Pods that the plugin has attached and whose applications are not running, and commands that measure between their ports."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.switch.switch import Switch, wait_until

THIS_RUN = secrets.token_hex(4)
"""Part of a measured port's name: ping and load take a port for used if any socket of that name has a peer."""
SECONDS = 60
"""The deadline of a command; the first attachment after a start of the switch takes a while."""


@dataclass(frozen=True)
class Idle:
    """One attachment `POD/net1`. `socket`: where the pod's application would listen, or connect to."""

    name: str
    container: str
    args: str
    network: dict[str, Any]
    socket: Path

    @property
    def port(self) -> str:
        return f"{self.container[:12]}-net1"


@dataclass
class Pods:
    """A node with its idle pods."""

    node: Node
    switch: Switch
    netns: str
    made: list[Idle] = field(default_factory=list)

    def attach(
        self, pod: str, mode: str = "client", mtu: int = 1500, keys: Mapping[str, Any] | None = None, **bridge: Any
    ) -> Idle:
        """Attach a pod with one interface; `keys` are more of the network's, `bridge` those of its bridge."""
        network = self.node.network("1.0.0", name=f"net-of-{pod}") | dict(keys or {})
        network["host"]["vhost"]["mode"] = mode
        network["host"] |= {"mtu": mtu, "bridge": {"bridgeName": "br-test", **bridge}}
        number = len(self.made) + 1
        uid = f"0d0a1b2c-1111-2222-3333-{number:012d}"
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID={uid}"
        container = f"{number:04x}{THIS_RUN}" + "d" * 52
        volume = self.node.empty_dir(uid)
        call = self.node.run("ADD", network, self.netns, container, CNI_ARGS=args)
        assert call.status == 0, call
        # OVS 3.1 misses an application that connects while it still makes a server port: wait until it is done
        self.switch.vsctl("set", "Open_vSwitch", ".", f"external_ids:attached={number}")
        self.made.append(Idle(f"{pod}/net1", container, args, network, volume / f"{container[:12]}-net1"))
        return self.made[-1]

    def detach(self, idle: Idle) -> float:
        """Detach a pod by DEL; the seconds that it took."""
        self.made.remove(idle)
        call = self.node.run("DEL", idle.network, self.netns, idle.container, CNI_ARGS=idle.args)
        assert call.status == 0, call
        return call.wall

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command, which has to end with this code."""
        done = run_command(self.node.environ, *arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def told(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command while it runs; it is killed at the end."""
        argv = [sys.executable, "-m", "userspace_cni", *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, env=self.node.environ, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            except BaseException as error:
                process.kill()
                error.add_note(f"the command, ended with {process.wait()}, said: {process.communicate()}")
                raise
            finally:
                process.kill()

    def link(self, idle: Idle) -> str:
        """The state of its link, as the switch reports it."""
        return str(self.switch.interface(idle.port).get("link_state"))

    def wait_link(self, idle: Idle, state: str) -> None:
        """Wait until its link is `up` or `down`."""
        wait_until(lambda: self.link(idle) == state, SECONDS, f"{idle.port} {state}")

    def at_rest(self) -> bool:
        """Whether every port is down, no socket of a client port exists, and the only ports are those of the pods."""
        sockets = [idle for idle in self.made if idle.network["host"]["vhost"]["mode"] == "client" and idle.socket.exists()]
        ports = [port for bridge in self.switch.bridges() for port in self.switch.ports(bridge)]
        down = all(self.link(idle) == "down" for idle in self.made)
        return down and not sockets and sorted(ports) == sorted(idle.port for idle in self.made)


@contextmanager
def pods_on(node: Node, switch: Switch, netns: str) -> Iterator[Pods]:
    """Pods of this node, which are detached at the end; nothing may be left of them."""
    pods = Pods(node, switch, netns)
    try:
        yield pods
    finally:
        for idle in list(pods.made):
            pods.detach(idle)
    left = node.leftovers()
    with suppress(KeyError):
        left["bridges"].remove("br-admin")
    assert {kind: items for kind, items in left.items() if items} == {}
