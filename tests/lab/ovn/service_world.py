"""Pods of both kinds on two nodes, and Services that `userspace-cni ovn watch` writes into OVN: who answers, and when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.services import endpoint, endpoint_slice, put
from tests.lab.ovn.attempts import Attempt, Outcome, PodServers, tried
from tests.lab.ovn.kept_services import GROUPS
from tests.lab.ovn.logical_pods import LogicalPod, LogicalWorld, logical_world
from tests.lab.ovn.two_chassis import NODES
from tests.lab.switch.switch import wait_until

PORT: Final = 8080
OTHER_PORT: Final = 9090
"""The ports at which each pod answers, over TCP and UDP."""
_APART_S: Final = 0.02
_LONG_S: Final = 10.0


class Watching:
    """The controller as a process."""

    def __init__(self, **settings: str) -> None:
        self._environment = os.environ | {f"USERSPACE_CNI_{name}": value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, "-m", "userspace_cni", "ovn", "watch"]
        self._process = subprocess.Popen(argv, env=self._environment)

    def kill(self) -> None:
        """End it at once; nothing where it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class ServiceWorld:
    """The chassis and pods of `world`, the API server, and the controller. `servers`: those of each pod."""

    def __init__(self, world: LogicalWorld, api: ApiServer, servers: Mapping[str, PodServers], watching: Watching) -> None:
        self.ovn, self.pods, self.api, self.watching = world.ovn, world.pods, api, watching
        self._servers = servers

    def put(self, *things: Mapping[str, Any]) -> None:
        """Create objects of the API, or replace them."""
        put(self.api, *things)

    def put_endpoints(self, service: str, *pods: str, ports: Sequence[Mapping[str, Any]]) -> None:
        """Have these pods be all endpoints of a Service, by both families."""
        for family in (4, 6):
            found = [endpoint(self.pods[each].address(family), self.pods[each].node) for each in pods]
            self.put(endpoint_slice(f"{service}-{family}", service, *found, ports=ports, kind=f"IPv{family}"))

    def vips(self, name: str) -> str:
        """The VIPs of the load balancer, as ovn-nbctl prints them; "" for none."""
        return self.ovn.nbctl("--bare", "--columns=vips", "find", "Load_Balancer", f"name={name}")

    def await_vips(self, name: str, *parts: str) -> None:
        """Wait until the load balancer's VIPs have these parts, and all chassis have followed."""
        wait_until(lambda: all(each in self.vips(name) for each in parts), what=f"{parts} of {name}")
        self.ovn.nbctl("--wait=hv", "sync")
        self.ovn.revalidate()

    def answered_by(self, token: bytes) -> str:
        """The pod that has got the request; "" for none."""
        return next((name for name, each in self._servers.items() if token in each.received), "")

    def answering(self, attempts: Sequence[Attempt]) -> list[str]:
        """Which pod answers each attempt; all have to be answered."""
        assert set(tried(attempts, _LONG_S)) == {Outcome.ALLOWED}
        return [self.answered_by(each.token) for each in attempts]


@contextmanager
def service_world(pods: Mapping[str, tuple[str, bool]]) -> Iterator[ServiceWorld]:
    """As `logical_world`, with servers in each pod, the groups of load balancers, and a controller."""
    with ExitStack() as stack:
        world = stack.enter_context(logical_world(pods))
        servers = {name: stack.enter_context(PodServers()) for name in pods}
        for name, each in servers.items():
            each.listen(world.pods[name].netns, (PORT, OTHER_PORT))
        rows = [world.ovn.nbctl("create", "Load_Balancer_Group", f"name={name}") for name in GROUPS]
        for name in NODES:
            world.ovn.nbctl("set", "Logical_Switch", name, f"external_ids:k8s-node={name}")
            world.ovn.nbctl("add", "Logical_Switch", name, "load_balancer_group", *rows)
        api = stack.enter_context(ApiServer())
        for number, name in enumerate(NODES, 11):
            api.add(node(name, f"192.0.2.{number}"))
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="api-")))
        watching = Watching(OVN_NB=world.ovn.remote("nb"), KUBECONFIG=api.kubeconfig(directory))
        stack.callback(watching.kill)
        watching.start()
        yield ServiceWorld(world, api, servers, watching)


class Connecting:
    """A client that opens one connection after the other, fifty a second at most, while a block runs.

    `answers`: when each was answered (time.monotonic), and its token. `gap_s`: the longest time between two answers.
    """

    def __init__(self, pod: LogicalPod, address: str, port: int, protocol: str = "tcp") -> None:
        self._attempt = Attempt(pod.netns, address, port, protocol)
        self.answers: list[tuple[float, bytes]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._connect)

    def __enter__(self) -> Self:
        self._thread.start()
        self.await_answer()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.await_answer()  # what is late shows, too
        finally:
            self._over.set()
            self._thread.join()

    @property
    def gap_s(self) -> float:
        times = [when for when, _ in self.answers]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def await_answer(self) -> None:
        """Wait for an answer to come from now on."""
        known = len(self.answers)
        wait_until(lambda: len(self.answers) > known + 1, what="an answer")

    def _connect(self) -> None:
        while not self._over.is_set():
            attempt = self._attempt.again()
            if tried([attempt], 1.0) == [Outcome.ALLOWED]:
                self.answers.append((time.monotonic(), attempt.token))
            self._over.wait(_APART_S)
