"""How long 4,800 policies over 240 namespaces and 2,400 pods take to be in force on OVN, and a change of one of them then.

`python tests/bench/many_policies.py [--json] [--namespaces N] [--changes N] [--idle S]`, as root. The size is that of
kube-burner's workload for NetworkPolicies: each of N namespaces (240) has 10 pods and 20 policies. A policy selects two pods, and
lets through pods with one of two labels of two other namespaces, and two blocks of addresses, on two ports and two ranges of
ports; every second one is about what its pods send.

OVN has two real chassis in userspace; the pods of a few namespaces are on them, with vhost-user ports. The others are on
simulated nodes: logical switches without a chassis. The API server is the lab's own, in a process of its own; `ovn watch` is the
controller. The pods are there before the policies are made at once. In one run:

- seconds until the last policy is in force: all rows are written, and both chassis have followed. Then, for pods of the first and
  the last namespace and of one between, a connection from a pod outside has to be dropped, and that of a pod that a policy lets
  through to be answered. Processor seconds and memory of each process;
- milliseconds from a change of a label of a pod, or of a policy, to the first connection that shows it, both ways. Beside it a
  port that leaves its port groups and comes back, written raw: what OVN takes without a controller;
- with --idle: processor of the resting controller.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from tests.bench.calls import memory_mib, processor_s
from tests.bench.raw_database import RawDatabase
from tests.bench.report import arguments, machine, show_parts, tell
from tests.bench.watch_process import Watch
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.served_cluster import ServedCluster
from tests.lab.ovn.attempts import Attempt, Outcome, PodServers, tried
from tests.lab.ovn.central import version
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside

PODS: Final = 10
"""Of each namespace."""
POLICIES: Final = 20
"""Of each namespace."""
PODS_ON_A_NODE: Final = 20
SERVED: Final = 8080
LONG_S: Final = 900.0
OUTSIDE: Final = "outside"
_ANSWER_S, _LOST_S = 0.05, 0.3
"""How long an answer is waited for where one is wanted, and where none is: on a busy machine one that is late is not lost."""
_SETS: Final = 5
"""Address sets of each namespace: policies with the same peers share them."""
_ROUTER: Final = "router"


class Pod(NamedTuple):
    """A pod that is really there."""

    namespace: str
    name: str
    netns: str
    address: str


class Case(NamedTuple):
    """A pod with what it serves, and one that a policy lets through to it."""

    server: Pod
    client: Pod


def space(number: int) -> str:
    return f"ns-{number:03d}"


def policy(of: int, number: int, namespaces: int) -> dict[str, Any]:
    """Policy `number` of the namespace `of`. Number 0 lets pods 0 and 1 of the next namespace through to pods 0 and 1, and
    number 9 of that lets its pod 0 send there."""
    inward, about = number % 2 == 0, number % PODS
    far = (of + 1 + number, of + 2 + number) if inward else (of - number + 8, of - number + 7)
    near_pods = [str(about), str((about + 1) % PODS)]
    far_pods = near_pods if inward else [str((about + 1) % PODS), str((about + 2) % PODS)]
    peers: list[dict[str, Any]] = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space(each % namespaces)}},
            "podSelector": {"matchExpressions": [{"key": "num", "operator": "In", "values": far_pods}]},
        }
        for each in far
    ]
    peers += [{"ipBlock": {"cidr": f"198.18.{number}.0/24"}}, {"ipBlock": {"cidr": f"198.19.{number}.0/25"}}]
    ports: list[dict[str, Any]] = [{"protocol": "TCP", "port": SERVED}, {"protocol": "TCP", "port": 9000 + number}]
    ports += [{"protocol": "TCP", "port": first + 10 * number, "endPort": first + 10 * number + 5} for first in (10000, 20000)]
    direction, side = ("Ingress", "from") if inward else ("Egress", "to")
    spec = {
        "podSelector": {"matchExpressions": [{"key": "num", "operator": "In", "values": near_pods}]},
        "policyTypes": [direction],
        direction.lower(): [{side: peers, "ports": ports}],
    }
    about_it = {"namespace": space(of), "name": f"np-{number:02d}"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": about_it, "spec": spec}


class Bench:
    """OVN, the API server with namespaces, nodes and pods, and the pods that are really there."""

    def __init__(self, stack: ExitStack, namespaces: int) -> None:
        self._stack = stack
        self._namespaces = namespaces
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="mp-")))
        self.ovn = stack.enter_context(TwoChassis(Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))))
        self.cluster = stack.enter_context(ServedCluster(directory))
        self._servers = stack.enter_context(PodServers())
        self._nodes = [*NODES, *(f"sim{number}" for number in range(namespaces * PODS // PODS_ON_A_NODE))]
        self.ovn.nbctl("lr-add", _ROUTER)
        for number, name in enumerate(self._nodes, 1):
            self._add_switch(number, name)
        self.cluster.put([node(name) for name in self._nodes])
        self.cluster.put([_namespace(OUTSIDE), *(_namespace(space(number)) for number in range(namespaces))])
        self._looked_at = (0, namespaces // 2, namespaces - 1)
        self._real = {(OUTSIDE, "p0"): NODES[0]}
        for at, number in enumerate(self._looked_at):
            self._real.setdefault((space(number), "p0"), NODES[at % 2])
            self._real.setdefault((space((number + 1) % namespaces), "p0"), NODES[(at + 1) % 2])
        self.cluster.put(list(self._pods()))

    def _add_switch(self, number: int, name: str) -> None:
        subnet = f"10.{100 + number // 250}.{number % 250}"
        way = ["--", "lsp-add", name, f"stor-{name}", "--", "lsp-set-type", f"stor-{name}", "router"]
        way += ["--", "lsp-set-addresses", f"stor-{name}", "router"]
        way += ["--", "lsp-set-options", f"stor-{name}", f"router-port=rtos-{name}"]
        mac = f"0a:58:00:00:{number // 256:02x}:{number % 256:02x}"
        made = ["ls-add", name, "--", "set", "Logical_Switch", name, f"other_config:subnet={subnet}.0/24"]
        self.ovn.nbctl(*made, "--", "lrp-add", _ROUTER, f"rtos-{name}", mac, f"{subnet}.1/24", *way)

    def _pods(self) -> Iterator[dict[str, Any]]:
        """All pods; those that are not really there are spread over the simulated nodes."""
        simulated = self._nodes[len(NODES) :]
        for of in range(self._namespaces):
            for number in range(PODS):
                on = self._real.get((space(of), f"p{number}"), simulated[(of * PODS + number) % len(simulated)])
                yield _pod(space(of), number, on)
        yield _pod(OUTSIDE, 0, self._real[OUTSIDE, "p0"])

    @property
    def pods(self) -> int:
        return self._namespaces * PODS + 1

    def start_pods(self) -> None:
        """Wait for all pods' addresses, and start those that are really there."""
        wait_until(lambda: sum("ovn" in each for each in self.cluster.annotations().values()) == self.pods, LONG_S, "addresses")
        notes = self.cluster.annotations()
        made: dict[tuple[str, str], Pod] = {}
        for (namespace, name), on in self._real.items():
            said = json.loads(notes[f"{namespace}/{name}"]["ovn"])
            logical = f"{namespace}_{name}"
            uid = self.ovn.nbctl("get", "Logical_Switch_Port", logical, "options:iface-id-ver").strip('"')
            pod = self.ovn.pod(on, logical, uid, said["ip_address"], said["mac_address"], vhost=True)
            netns = self._stack.enter_context(pod)
            inside(netns, "ip", "route", "add", "default", "via", said["gateway_ip"])
            self._servers.listen(netns, [SERVED], ["tcp"])
            made[namespace, name] = Pod(namespace, name, netns, said["ip_address"].partition("/")[0])
        self.outside = made[OUTSIDE, "p0"]
        pairs = [(space(number), space((number + 1) % self._namespaces)) for number in self._looked_at]
        self.cases = [Case(made[server, "p0"], made[client, "p0"]) for server, client in pairs]
        for case in self.cases:
            for client in (case.client, self.outside):
                wait_until(partial(self._is, client, case.server, Outcome.ALLOWED), what=f"{client} reaches {case.server}")

    @property
    def rows(self) -> int:
        """Port groups of policies, of what isolates each way in each namespace, and of the nodes; and address sets."""
        return self._namespaces * (POLICIES + 2 + _SETS) + 1

    def policies(self) -> list[dict[str, Any]]:
        return [policy(of, number, self._namespaces) for of in range(self._namespaces) for number in range(POLICIES)]

    def _is(self, client: Pod, server: Pod, wanted: Outcome) -> bool:
        """Whether a connection has this outcome now; what is lost twice is dropped."""
        attempt = Attempt(client.netns, server.address, SERVED)
        if wanted is Outcome.ALLOWED:
            return tried([attempt], _ANSWER_S)[0] is wanted
        return all(tried([each], _LOST_S)[0] is wanted for each in (attempt, attempt.again()))

    def in_force(self) -> bool:
        """Whether all pods looked at are isolated, and reached by whom a policy lets through."""
        dropped = all(self._is(self.outside, each.server, Outcome.TIMED_OUT) for each in self.cases)
        return dropped and all(self._is(each.client, each.server, Outcome.ALLOWED) for each in self.cases)

    def when(self, server: Pod, wanted: Outcome) -> float:
        """When the first connection from outside began that had this outcome (time.monotonic)."""
        end = time.monotonic() + LONG_S
        while (began := time.monotonic()) < end:
            if self._is(self.outside, server, wanted):
                return began
        raise AssertionError(f"{server}: not {wanted}")

    def used(self, watch: Watch) -> dict[str, float]:
        """Processor seconds of each process so far."""
        return {"controller": watch.cpu_s(), **{name: processor_s(pid) for name, pid in self.daemons().items()}}

    def daemons(self) -> dict[str, int]:
        names = ("nb", "sb", "northd", *NODES)
        found = {f"ovn-controller {name}" if name in NODES else name: self.ovn.pid(name) for name in names}
        return found | {f"ovs-vswitchd {name}": self.ovn.switches[name].vswitchd_pid for name in NODES}


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}


def _pod(namespace: str, number: int, on: str) -> dict[str, Any]:
    about = {"namespace": namespace, "name": f"p{number}", "labels": {"num": str(number), "app": "web"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {"nodeName": on, "containers": [{"name": "web", "image": "web"}]},
        "status": {"phase": "Running"},
    }


def measure(options: Any) -> dict[str, Any]:
    with ExitStack() as stack:
        bench = Bench(stack, options.namespaces)
        with Watch(bench.ovn.remote("nb"), bench.cluster.kubeconfig) as watch:
            bench.start_pods()
            report: dict[str, Any] = {"machine": machine(), "version": f"OVN {version()}", "pods": bench.pods}
            report["memory without"] = {"controller": watch.memory()["resident"], **_memory(bench)}
            report["made"] = _make(bench, watch)
            sys.stderr.write(f"{report}\n")
            report["memory"] = {"controller": watch.memory()["resident"], **_memory(bench)}
            report["changes"] = _changes(bench, options.changes, options.namespaces)
            if options.idle:
                threading.Event().wait(30.0)  # the second lists are over
                cpu = watch.cpu_s()
                threading.Event().wait(options.idle)
                report["at rest"] = f"{(watch.cpu_s() - cpu) / options.idle:.2%}"
        report["by hand"] = _changes_by_hand(bench, options.changes)
        report["machine at the end"] = machine()
        return report


def _memory(bench: Bench) -> dict[str, float]:
    return {name: memory_mib(pid) for name, pid in bench.daemons().items()}


def _make(bench: Bench, watch: Watch) -> dict[str, Any]:
    policies, before = bench.policies(), bench.used(watch)
    began = time.monotonic()
    bench.cluster.put(policies)
    put = time.monotonic()
    known = watch.await_metric("ovn_policies", len(policies))
    watch.await_metric("ovn_policy_rows", bench.rows)
    written = time.monotonic()
    bench.ovn.nbctl("--timeout=300", "--wait=hv", "sync")
    followed = time.monotonic()
    wait_until(bench.in_force, LONG_S, "policies")
    done = time.monotonic()
    after = bench.used(watch)
    return {
        "policies": len(policies),
        "put into the API": round(put - began, 1),
        "known to the controller": round(known - began, 1),
        "all rows written": round(written - began, 1),
        "both chassis have followed": round(followed - began, 1),
        "seen by connections": round(done - began, 1),
        "processor": {name: round(value - before[name], 1) for name, value in after.items()},
        "rows": {name: bench.ovn.nbctl("--columns=_uuid", "--format=csv", "list", name).count("\n") for name in _TABLES},
    }


_TABLES: Final = ("Port_Group", "ACL", "Address_Set")


def _changes(bench: Bench, count: int, namespaces: int) -> dict[str, Any]:
    """Milliseconds from a change to the first connection that shows it; each is made and taken back."""
    server = bench.cases[-1].server
    of = int(server.namespace[3:])
    closed = policy(of, 0, namespaces)
    opened = policy(of, 0, namespaces)
    opened["spec"]["ingress"].append({"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OUTSIDE}}}]})

    def label(value: str) -> Callable[[], None]:
        return lambda: bench.cluster.relabel(server.namespace, server.name, {"num": value})

    found = {
        "a label, opens": (label("none"), Outcome.ALLOWED),
        "a label, closes": (label("0"), Outcome.TIMED_OUT),
        "a policy, opens": (lambda: bench.cluster.put([opened]), Outcome.ALLOWED),
        "a policy, closes": (lambda: bench.cluster.put([closed]), Outcome.TIMED_OUT),
    }
    return _timed(bench, server, count, found)


def _changes_by_hand(bench: Bench, count: int) -> dict[str, Any]:
    """The same for a pod's port that leaves its port groups and comes back, written raw: what OVN takes without a controller."""
    server = bench.cases[-1].server
    with RawDatabase(bench.ovn.remote("nb")) as database:
        where = [["name", "==", f"{server.namespace}_{server.name}"]]
        [found] = database.transact({"op": "select", "table": "Logical_Switch_Port", "where": where, "columns": ["_uuid"]})
        port = ["set", [found["rows"][0]["_uuid"]]]
        held = {"table": "Port_Group", "where": [["ports", "includes", port]]}
        [found] = database.transact({"op": "select", **held, "columns": ["_uuid"]})
        groups = [each["_uuid"] for each in found["rows"]]

        def write(mutator: str) -> None:
            for_all = [{"op": "mutate", "table": "Port_Group", "where": [["_uuid", "==", each]]} for each in groups]
            database.transact(*({**each, "mutations": [["ports", mutator, port]]} for each in for_all))

        changes = {
            "a port, opens": (partial(write, "delete"), Outcome.ALLOWED),
            "a port, closes": (partial(write, "insert"), Outcome.TIMED_OUT),
        }
        return _timed(bench, server, count, changes)


def _timed(bench: Bench, server: Pod, count: int, changes: Mapping[str, tuple[Callable[[], None], Outcome]]) -> dict[str, Any]:
    taken: dict[str, list[float]] = {name: [] for name in changes}
    for _ in range(count):
        for name, (write, outcome) in changes.items():
            began = time.monotonic()
            write()
            taken[name].append((bench.when(server, outcome) - began) * 1000)
    return {name: _told(each) for name, each in taken.items()}


def _told(taken: Sequence[float]) -> dict[str, int]:
    return {"median": round(statistics.median(taken)), "least": round(min(taken)), "most": round(max(taken))}


def show(report: dict[str, Any]) -> None:
    """The report as a table."""
    show_parts(f"{report['made']['policies']} policies; {report['version']}; {report['machine']}", report)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--namespaces", type=int, default=240)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--idle", type=float, default=0.0, metavar="S")
    options = parser.parse_args()
    return tell(measure(options), options.json, show)


if __name__ == "__main__":
    sys.exit(main())
