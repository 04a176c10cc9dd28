"""What routes in pods cost: ours, beside a loop of raw netlink, `ip -batch` and pyroute2, in one run.

`python tests/bench/pod_routes.py [--json] [--namespaces N] [--rounds N] [--idle SECONDS] [--race PASSES]`, as root.
N (100) namespaces with a veth each get ten routes, other ones, none; the least of the rounds counts. "raw" is setns and one send
per namespace, by an index that is known; "looking" the same after listings of links, addresses and routes, which are not read.
"seen" is the first pass after a change of ours, "idle" one with nothing to do. "agent" is the first round of a new agent over 110
pods of which the runtime's cache tells, with ten routes each, made before, by the thread of the caller.

With --idle an agent runs as a process, beside a switch, with the 110 pods: how long its first round takes where no route is there
("made") and where all are ("found"), and what of a core it takes in so many seconds at rest, with routes on and off.

With --race so many passes are made while namespaces are deleted and made anew under the same paths, by another thread: how many
passes found a namespace that had gone, and how many routes were in one for which they were not meant.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.calls import processor_s
from tests.bench.report import arguments, machine, tell
from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.cached import cached, routing
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.errors import BadEnvironment, ContainerGone
from userspace_cni.base.routing import DesiredRoute, Inside
from userspace_cni.base.settings import Settings
from userspace_cni.host.netlink import address_messages as addresses
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink import route_messages as routes
from userspace_cni.host.netlink.route_messages import Route
from userspace_cni.host.pod_net.pod_routes import PodNamespace, PodRoutes
from userspace_cni.linux import paths
from userspace_cni.linux.netlink import ROUTE, Message, NetlinkConnection
from userspace_cni.node.local_node import LocalNode
from userspace_cni.routes.known import KnownCluster
from userspace_cni.routes.passes import Passes
from userspace_cni.routes.places import NamespaceSources
from userspace_cni.routes.routes_service import compose

OURS: Final = 148
PODS: Final = 110
ROUTES: Final = 10
STEPS: Final = ("add", "seen", "idle", "replace", "remove")
HOPS: Final = (ip_address("10.2.0.1"), ip_address("10.2.0.9"))
Step = Callable[[], None]


@contextmanager
def pods(count: int) -> Iterator[list[str]]:
    """So many namespaces, each with eth1, which is up and has an address."""
    with ExitStack() as stack:
        made = [stack.enter_context(netns()) for _ in range(count)]
        for path in made:
            furnished(path)
        yield made


def furnished(path: str, address: str = "10.2.0.2/16") -> None:
    """Give the namespace a link eth1 with that address."""
    commands = (
        "link add eth1 type veth peer name peer",
        f"address add {address} dev eth1",
        "link set eth1 up",
        "link set peer up",
    )
    subprocess.run(["nsenter", f"--net={path}", "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def ten(hop: object) -> list[DesiredRoute]:
    return [DesiredRoute(ip_network(f"10.9.{each}.0/24"), "eth1", ip_address(str(hop))) for each in range(ROUTES)]


def index_in(path: str) -> int:
    """The index of eth1, the same in each namespace."""
    return PodRoutes(OURS).look(PodNamespace(path, path)).links["eth1"].index


# -- each way --------------------------------------------------------------------------------------------------------------------


def ours(places: Sequence[str]) -> dict[str, Step]:
    """By PodRoutes, with its look and its proof."""
    kept = PodRoutes(OURS)

    def converge(wanted: list[DesiredRoute]) -> Step:
        def each() -> None:
            for path in places:
                kept.converge(PodNamespace(path, path), lambda _: wanted)

        return each

    first, other = map(ten, HOPS)
    return {
        "add": converge(first),
        "seen": converge(first),
        "idle": converge(first),
        "replace": converge(other),
        "remove": converge([]),
    }


def looking(places: Sequence[str]) -> dict[str, Step]:
    """As `raw`, with three listings before."""
    asked = links.dump_without_counters(), addresses.dump(0), routes.dump_main()
    return raw(places, lambda kernel: [kernel.ask(each) for each in asked])


def raw(places: Sequence[str], look: Callable[[NetlinkConnection], object] = lambda _: None) -> dict[str, Step]:
    """setns, a socket, one send."""
    first, other = ([Route(each.dst, each.via) for each in ten(hop)] for hop in HOPS)
    index = index_in(places[0])

    def sent(messages: Callable[[int], list[Message]]) -> Step:
        def send() -> None:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            for path in places:
                fd = os.open(path, os.O_RDONLY)
                paths.setns(fd, paths.NETWORK)
                try:
                    with NetlinkConnection(ROUTE) as kernel:
                        look(kernel)
                        kernel.send(*messages(index))
                finally:
                    paths.setns(home, paths.NETWORK)
                    os.close(fd)
            os.close(home)

        return send

    return {
        "add": sent(lambda index: [routes.put(index, each, OURS) for each in first]),
        "replace": sent(lambda index: [routes.replace_first(index, each, OURS) for each in other]),
        "remove": sent(lambda index: [routes.remove(index, each, OURS) for each in other]),
    }


def batch(places: Sequence[str]) -> dict[str, Step]:
    """`ip -batch -`, a process per namespace, which nsenter becomes."""

    def run(verb: str, hop: object) -> Step:
        lines = "\n".join(f"route {verb} {each.dst} via {hop} dev eth1 proto {OURS}" for each in ten(hop))

        def each() -> None:
            for path in places:
                subprocess.run(["nsenter", f"--net={path}", "ip", "-batch", "-"], input=lines, text=True, check=True)

        return each

    return {"add": run("add", HOPS[0]), "replace": run("replace", HOPS[1]), "remove": run("del", HOPS[1])}


def library(places: Sequence[str]) -> dict[str, Step]:
    """pyroute2: its IPRoute inside the namespace, which this thread enters itself."""
    from pyroute2 import IPRoute

    index = index_in(places[0])

    def run(verb: str, hop: object) -> Step:
        def each() -> None:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            for path in places:
                fd = os.open(path, os.O_RDONLY)
                paths.setns(fd, paths.NETWORK)
                try:
                    with IPRoute() as kernel:
                        for one in ten(hop):
                            kernel.route(verb, dst=str(one.dst), gateway=str(hop), oif=index, proto=OURS)
                finally:
                    paths.setns(home, paths.NETWORK)
                    os.close(fd)
            os.close(home)

        return each

    return {"add": run("add", HOPS[0]), "replace": run("replace", HOPS[1]), "remove": run("del", HOPS[1])}


WAYS: Final[dict[str, Callable[[Sequence[str]], dict[str, Step]]]] = {
    "raw": raw,
    "looking": looking,
    "ours": ours,
    "ip -batch": batch,
    "pyroute2": library,
}


def measured(places: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each step of each way over all namespaces, the least of the rounds, which take turns."""
    found: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    for number in range(rounds):
        for way, make in WAYS.items():
            for step, do in make(places).items():
                began = time.perf_counter()
                do()
                took = (time.perf_counter() - began) * 1000
                found[way][step] = round(min(took, found[way].get(step, took)), 1)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


# -- a new agent -----------------------------------------------------------------------------------------------------------------


def agent(places: Sequence[str], rounds: int) -> float:
    """Milliseconds of a new agent's first round over the pods, the least."""
    thing = {
        "metadata": {"name": "one"},
        "spec": {"route": [{"dst": str(each.dst), "dev": "eth1", "via": str(each.via)} for each in ten(HOPS[0])]},
    }
    took = []
    with TemporaryDirectory() as directory:
        for number, path in enumerate(places):
            cached(Path(directory), path, f"p{number}", sandbox=f"c{number}")
        settings = Settings(
            routes=True, cni_cache_dir=directory, state_dir=f"{directory}/state", run_dir=directory, cri_socket=""
        )
        for _ in range(rounds + 1):
            local = LocalNode(settings, {}, resident=True)
            passes, found = compose(local.installation, local.store)
            began = time.perf_counter()
            first_round(passes, found, KnownCluster((thing,)))
            took.append((time.perf_counter() - began) * 1000)
            assert {each.state for each in passes.visited.values()} == {"applied"}
        passes.learn(KnownCluster())
        passes.visit(found.locate(), everything=True)
    return round(min(took[1:]), 1)  # the first one makes the routes


def all_there(of: Agent) -> bool:
    """Whether the agent has made or found every route."""
    return of.metric("userspace_cni_routes_in_pods") == PODS * ROUTES


def process(places: Sequence[str], seconds: float) -> dict[str, float]:
    """What an agent that runs by itself takes for the pods."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        node = stack.enter_context(clean(Node(directory / "n", stack.enter_context(Switch()))))
        cache, file, settings = routing(directory)
        for number, path in enumerate(places):
            cached(cache, path, f"p{number}", sandbox=f"c{number}")
        file.write_text(json.dumps([{"route": str(each.dst), "dev": "eth1", "via": str(each.via)} for each in ten(HOPS[0])]))
        found = {}
        for name in ("made ms", "found ms"):
            with running(node, USERSPACE_CNI_TICK_S="30", **settings) as agent:
                wait_until(partial(all_there, agent), what="all routes")
                found[name] = round(1000 * agent.metric("userspace_cni_route_round_seconds"), 1)
        for name, more in (("with routes", settings), ("without", {})):
            with running(node, USERSPACE_CNI_TICK_S="30", **more) as agent:
                threading.Event().wait(5)
                before = processor_s(agent.pid)
                threading.Event().wait(seconds)
                found[f"core percent at rest, {name}"] = round(100 * (processor_s(agent.pid) - before) / seconds, 3)
        return found


def first_round(passes: Passes, found: NamespaceSources, known: KnownCluster) -> None:
    """What the keeper's thread does in a round."""
    passes.learn(known)
    assert passes.visit(found.locate(), everything=True) == PODS


# -- a race ----------------------------------------------------------------------------------------------------------------------


class Racing:
    """Namespaces that come and go at eight paths, each with an address by which it is known."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.current: dict[str, tuple[PodNamespace, str]] = {}
        self.made = 0
        self.ending = threading.Event()

    def turn(self, number: int) -> None:
        """Delete the namespace at one of the paths, and make another one there."""
        path = f"{self.directory}/cni-{number % 8}"
        self.current.pop(path, None)
        subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
        Path(path).touch()
        subprocess.run(["unshare", f"--net={path}", "true"], check=True)
        marker = str(IPv4Address(int(ip_address("10.16.0.1")) + self.made * 256))
        furnished(path, f"{marker}/24")
        self.made += 1
        self.current[path] = PodNamespace(f"box{self.made}", path, os.stat(path).st_ino), marker  # noqa: PTH116 - of the namespace

    def turns(self) -> None:
        """Make turns until the end."""
        while not self.ending.is_set():
            self.turn(random.randrange(8))


def race(passes: int) -> dict[str, int]:
    """Passes while namespaces are exchanged; what they found."""
    found = {"passes": 0, "gone meanwhile": 0, "in a wrong namespace": 0, "namespaces": 0}
    kept = PodRoutes(OURS)
    with TemporaryDirectory(prefix="netns-") as directory:
        racing = Racing(directory)
        for number in range(8):
            racing.turn(number)
        other = threading.Thread(target=racing.turns)
        other.start()
        try:
            while found["passes"] < passes:
                for place, marker in list(racing.current.values()):
                    one_pass(kept, place, marker, found)
        finally:
            racing.ending.set()
            other.join()
            for path in Path(directory).iterdir():
                subprocess.run(["umount", "--lazy", str(path)], check=False)
        found["namespaces"] = racing.made
    return found


def one_pass(kept: PodRoutes, place: PodNamespace, marker: str, found: dict[str, int]) -> None:
    """Make the route of this namespace in it, and count what is wrong: by its address, and by routes of others in it."""
    own = marker.replace("10.", "11.", 1)

    def decide(seen: Inside) -> list[DesiredRoute]:
        addresses = {str(each.ip) for each in seen.links["eth1"].addresses} if "eth1" in seen.links else set()
        strange = [each for each in seen.routes if each.protocol == OURS and str(each.dst.network_address) != own]
        found["in a wrong namespace"] += marker not in addresses or bool(strange)
        return [DesiredRoute(ip_network(f"{own}/32"), "eth1")]

    found["passes"] += 1
    try:
        kept.converge(place, decide)
    except (ContainerGone, BadEnvironment):
        found["gone meanwhile"] += 1
    if found["passes"] % 1000 == 0:
        print(f"{found['passes']} passes", file=sys.stderr)


def shown(found: dict[str, Any]) -> None:
    table = Table("ms", *STEPS, title=f"{found['namespaces']} namespaces, {ROUTES} routes each")
    for way, steps in found["ways"].items():
        table.add_row(way, *(str(steps.get(step, "")) for step in STEPS))
    for way in ("raw", "looking"):
        table.add_row(f"ours / {way}", *(str(found[f"ours to {way}"].get(step, "")) for step in STEPS))
    console = Console()
    console.print(table)
    for name, value in found.items():
        if name not in ("ways", "ours to raw", "ours to looking", "namespaces"):
            console.print(f"{name}: {value}")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--namespaces", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--race", type=int, default=0, metavar="PASSES")
    options = parser.parse_args()
    outcome: dict[str, Any] = {}
    with pods(max(options.namespaces, PODS)) as made:

        def work() -> None:
            places = made[: options.namespaces]
            ways = measured(places, options.rounds)
            outcome["namespaces"], outcome["ways"] = len(places), ways
            outcome["idle ms a pod"] = round(ways["ours"]["idle"] / len(places), 3)
            for way in ("raw", "looking"):
                outcome[f"ours to {way}"] = {step: round(ways["ours"][step] / ways[way][step], 2) for step in ways[way]}
            outcome["agent ms"] = agent(made[:PODS], options.rounds)
            if options.idle:
                outcome["a process"] = process(made[:PODS], options.idle)
            if options.race:
                outcome["race"] = race(options.race)

        thread = threading.Thread(target=work)  # as in an agent: the main thread enters no namespace
        thread.start()
        thread.join()
    return tell({"machine": machine(), **outcome}, options.json, shown)


if __name__ == "__main__":
    sys.exit(main())
