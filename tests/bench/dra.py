"""What preparing claims of devices costs, beside an ADD on the same node and beside the ports alone.

`python tests/bench/dra.py [--json] [--rounds N] [--ports N]`, as root. Everything is measured in one run with one agent on one
private switch, in turns, and compared as ratios. Milliseconds, p50 and p95. The API server is a process beside it, from which the
agent reads each claim.

    one          NodePrepareResources of a claim with one device, beside an ADD through the shim, each after 80 ms in which
                 nothing happens; and the same of unprepare and DEL
    burst        40 claims at once, each in a call of its own, as of pods that start together; and in one call. Beside one
                 transaction with as many ports: by ovsdbapp on an open session, and by hand, without any library
                 The floor is the same calls to a server that only reads the claims and answers, in a process of its own, and then
                 that transaction by ovsdbapp
    eight        a claim with eight devices, and a pod with eight claims (which are one call), beside a claim with one
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.attach import BRIDGE, Bare, existing_ports
from tests.bench.calls import Shim, Spent, milliseconds
from tests.bench.floor import Floor
from tests.bench.latency import REST_S, WARM, calm
from tests.bench.report import arguments, machine, show_parts, tell
from tests.lab.dra.plugin_registry import Instance, PluginRegistry
from tests.lab.dra.scheduled_claims import Given, claim_object
from tests.lab.kube.pods import Pod
from tests.lab.kube.resource_definitions import CLAIMS
from tests.lab.kube.served_cluster import ServedCluster
from tests.lab.node.agent import running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.settings import load
from userspace_cni.dra.claim_objects import read_claim
from userspace_cni.dra.device_names import DRIVER, device_name
from userspace_cni.dra.dra_node import ClaimRef, Prepared, PreparedDevice
from userspace_cni.dra.dra_sockets import DraSockets
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import RESOURCE_CLAIMS
from userspace_cni.node.installation import Installation

NODE = "n1"
TOGETHER = 40
EIGHT = 8
FLOORS = ("floor of a call each", "floor of one call")
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"

Reference = Mapping[str, str]


@dataclass(frozen=True)
class Claims:
    """Claims of the cluster, as the kubelet names them: with one device each, and with eight."""

    single: Sequence[Reference]
    eight: Reference


class _BareNode:
    """What a driver cannot do without: it reads each claim, and answers with its devices."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        return {each.uid: self._read(each) for each in claims}

    def _read(self, claim: ClaimRef) -> Prepared:
        found = self._objects.get(RESOURCE_CLAIMS.within(claim.namespace), claim.name)
        devices = read_claim(found or {}, DRIVER).devices
        return Prepared(tuple(PreparedDevice(each.request, each.pool, each.device, (claim.uid,)) for each in devices))

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, UserspaceError | None]:
        return {each.uid: None for each in claims}


def _serve_bare(asked: Connection, environ: Mapping[str, str], directory: str) -> None:
    """The process of the bare driver; it ends with the other end of the pipe."""
    clients = Installation(load(environ), environ, resident=True).clients
    sockets = DraSockets(_BareNode(Objects(clients.of("").session.for_own_threads())), directory, directory)
    assert sockets.serve()
    asked.send(None)
    with suppress(EOFError):
        asked.recv()
    sockets.close()


class Kubelet:
    """The calls of one kubelet; each returns its wall seconds."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._threads = ThreadPoolExecutor(TOGETHER)

    def call(self, name: str, claims: Sequence[Reference]) -> float:
        """One call with these claims, which must succeed."""
        began = time.perf_counter()
        answer = self._instance.call(name, claims).claims
        taken = time.perf_counter() - began
        faults = [each.error for each in answer.values() if each.error]
        assert len(answer) == len(claims), answer
        assert faults == [], faults[0]
        return taken

    def at_once(self, name: str, claims: Sequence[Reference]) -> float:
        """A call for each of these claims, until the last is answered."""
        began = time.perf_counter()
        list(self._threads.map(lambda each: self.call(name, [each]), claims))
        return time.perf_counter() - began


@contextmanager
def bare_driver(environ: Mapping[str, str]) -> Iterator[Kubelet]:
    """A kubelet beside a driver that makes nothing, in a process of its own as an agent is."""
    context = get_context("spawn")
    asking, asked = context.Pipe()
    with TemporaryDirectory(prefix="uc-") as directory:
        (Path(directory) / "plugins_registry").mkdir()
        process = context.Process(target=_serve_bare, args=(asked, dict(environ), directory), daemon=True)
        process.start()
        asking.recv()
        [path] = Path(directory).glob("plugins/*/dra-*.sock")
        with Instance(DRIVER, str(path), "v1") as instance:
            yield Kubelet(instance)
        process.terminate()
        process.join()


def one(node: Node, shim: Shim, kubelet: Kubelet, claims: Claims, rounds: int) -> dict[str, Any]:
    """One claim and one ADD in turns, whose order changes from round to round."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    walls: dict[str, list[float]] = {each: [] for each in ("prepare", "unprepare", "ADD", "DEL")}
    shim.call("ADD", 1_000_000)  # the directories that all share

    def rested(case: str, work: Callable[[], float], number: int) -> None:
        floor.settle()
        threading.Event().wait(REST_S)
        taken = work()
        if number >= 0:
            walls[case].append(taken)

    for number in range(-WARM, rounds):
        claim = [claims.single[number % len(claims.single)]]
        turns: list[list[tuple[str, Callable[[], float]]]] = [
            [
                ("prepare", lambda: kubelet.call(PREPARE, claim)),  # noqa: B023 - called at once
                ("unprepare", lambda: kubelet.call(UNPREPARE, claim)),  # noqa: B023
            ],
            [("ADD", lambda: shim.call("ADD", 7)[0]), ("DEL", lambda: shim.call("DEL", 7)[0])],
        ]
        for turn in turns if number % 2 else reversed(turns):
            for case, work in turn:
                rested(case, work, number)
    shim.call("DEL", 1_000_000)
    floor.close()
    found: dict[str, Any] = {case: milliseconds(taken) for case, taken in walls.items()}
    return found | {
        "prepare / ADD": _ratio(walls["prepare"], walls["ADD"]),
        "unprepare / DEL": _ratio(walls["unprepare"], walls["DEL"]),
    }


def together(node: Node, spent: Spent, kubelets: tuple[Kubelet, Kubelet], claims: Claims, rounds: int) -> dict[str, Any]:
    """40 claims in turns with 40 ports; each after ovs-vswitchd is at rest. `kubelets`: of the agent, and of the bare driver."""
    assert node.switch
    kubelet, bare_kubelet = kubelets
    pid, chosen = node.switch.vswitchd_pid, claims.single[:TOGETHER]
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    bare = Bare(node.switch.ovsdb, node.directory)
    names = [f"bare{number}" for number in range(TOGETHER)]
    walls: dict[str, list[float]] = {each: [] for each in ("a call each", "one call", "ovsdbapp", "by hand", *FLOORS)}
    cpu: list[float] = []
    for number in range(-1, rounds):
        calm(floor, pid)
        by_hand = floor.add(names)
        floor.delete(names)
        calm(floor, pid)
        used = spent.processor_s()
        each = kubelet.at_once(PREPARE, chosen)
        used = spent.processor_s() - used
        kubelet.call(UNPREPARE, chosen)
        calm(floor, pid)
        in_one = kubelet.call(PREPARE, chosen)
        kubelet.call(UNPREPARE, chosen)
        calm(floor, pid)
        began = time.perf_counter()
        bare.together(range(TOGETHER))
        library = time.perf_counter() - began
        bare.clear(range(TOGETHER))
        calm(floor, pid)
        floors = [bare_kubelet.at_once(PREPARE, chosen) + library, bare_kubelet.call(PREPARE, chosen) + library]
        if number >= 0:
            for case, taken in zip(walls, (each, in_one, library, by_hand, *floors), strict=True):
                walls[case].append(taken)
            cpu.append(used / TOGETHER)
    floor.close()
    bare.close()
    found: dict[str, Any] = {case: milliseconds(taken) for case, taken in walls.items()}
    ratios = {f"{case} / ovsdbapp": _ratio(walls[case], walls["ovsdbapp"]) for case in ("a call each", "one call", *FLOORS)}
    return found | ratios | {"agent cpu of a claim": milliseconds(cpu)}


def eight(node: Node, kubelet: Kubelet, claims: Claims, rounds: int) -> dict[str, Any]:
    """Eight interfaces of one pod beside one."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    cases = {"one": claims.single[:1], "a claim with eight": [claims.eight], "eight claims": claims.single[:EIGHT]}
    walls: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(-1, rounds):
        for case, chosen in cases.items():
            calm(floor, node.switch.vswitchd_pid)
            taken = kubelet.call(PREPARE, chosen)
            kubelet.call(UNPREPARE, chosen)
            if number >= 0:
                walls[case].append(taken)
    floor.close()
    found: dict[str, Any] = {case: milliseconds(taken) for case, taken in walls.items()}
    return found | {f"{case} / one": _ratio(walls[case], walls["one"]) for case in cases if case != "one"}


def claims_of(cluster: ServedCluster) -> Claims:
    """Make the claims."""
    device = device_name(BRIDGE)
    pods = [Pod(f"p{number}") for number in range(TOGETHER + 1)]
    given = {f"c{number}": Given([device], shares=["0000"]) for number in range(TOGETHER)}
    given["eight"] = Given([device] * EIGHT, shares=[f"{number:04x}" for number in range(EIGHT)])
    objects = [claim_object(name, pod, [each], NODE) for pod, (name, each) in zip(pods, given.items(), strict=True)]
    cluster.add_nodes(2)
    cluster.put([{**each, "metadata": {**each["metadata"], "namespace": "default"}} for each in objects])
    uids = cluster.uids(CLAIMS)
    made = {name: {"namespace": "default", "name": name, "uid": uids[name]} for name in given}
    return Claims([made[f"c{number}"] for number in range(TOGETHER)], made["eight"])


def _ratio(ours: list[float], others: list[float]) -> float:
    return round(milliseconds(ours)["p50"] / milliseconds(others)["p50"], 2)


@contextmanager
def registered(node: Node) -> Iterator[Kubelet]:
    """A kubelet with which the agent's driver is registered."""
    with PluginRegistry(node.kubelet / "plugins_registry") as registry:
        wait_until(lambda: registry.instances(DRIVER), what="the driver to be registered")
        yield Kubelet(registry.instance(DRIVER))


def measure(node: Node, sandbox: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    assert node.switch
    cluster = ServedCluster(directory)
    rounds = options.rounds
    with cluster:
        claims = claims_of(cluster)
        (node.kubelet / "plugins_registry").mkdir(parents=True)
        node.settings |= {"USERSPACE_CNI_DRA": "true", "USERSPACE_CNI_KUBECONFIG": cluster.kubeconfig}
        node.settings["USERSPACE_CNI_NODE_NAME"] = NODE
        with (
            existing_ports(node.switch, node.directory, options.ports),
            running(node, USERSPACE_CNI_TICK_S="30") as agent,
            registered(node) as kubelet,
            bare_driver(node.environ) as bare_kubelet,
        ):
            shim, spent = Shim(node, [sandbox], directory / "shim"), Spent(agent)
            report = {
                "machine": machine(),
                "rounds": rounds,
                "ports": options.ports,
                "one": one(node, shim, kubelet, claims, rounds),
                "burst": together(node, spent, (kubelet, bare_kubelet), claims, max(3, rounds // 5)),
                "eight": eight(node, kubelet, claims, max(3, rounds // 3)),
            }
    return report


def show(report: Mapping[str, Any]) -> None:
    show_parts("claims: ms", report)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ports", type=int, default=0, help="how many other ports the switch has")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        in_memory = {"USERSPACE_CNI_RUN_DIR": f"{locks}/run", "USERSPACE_CNI_CDI_DIR": f"{locks}/cdi"}
        node = stack.enter_context(clean(Node(directory / "n", switch, in_memory)))
        sandbox = stack.enter_context(netns())
        report = measure(node, sandbox, directory, options)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
