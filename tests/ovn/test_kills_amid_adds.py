"""ADDs through the plugin while OVN's daemons and ovs-vswitchd are killed: a port that carries traffic, or a clear refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from tests.agent.conftest import node_with_shim
from tests.agent.living import LiveNode
from tests.cni.spec import refused
from tests.lab.frames.taps import TapProcess, echoes
from tests.lab.kube.pods import Pod
from tests.lab.node.links import links
from tests.lab.ovn.two_chassis import MTU, TwoChassis
from tests.lab.runtimes.runtime import Call, call, netns
from tests.lab.switch.switch import wait_until
from tests.ovn.test_two_chassis import World, two_nodes, way_out

NODE, OTHER_NODE = "n1", "n2"
VHOST, VETH = "vhostuser", "veth"
DAEMONS = ("northd", "nb", "sb", NODE)
ORDERS = (("northd", "nb", "sb", NODE), (NODE, "sb", "nb", "northd"), ("sb", NODE, "northd", "nb"))
"""Of the 24 in which four daemons die: each comes first, last and in the middle, but for one."""
DEADLINE_S, SHORT_S = "20", "4"
"""Of an ADD: the clients of a database that was away come back within 8 s. The other one is for what does not come back."""
CLEAR = ("ovs-vswitchd is dead", "has no annotation ovn", "ovn-controller", "has not installed logical port")
"""A refusal says one of these: what died, or what it did not do."""
NUMBERS = count(1)


@dataclass(frozen=True)
class Attaching:
    """A pod whose ADD is under way, or was."""

    pod: Pod
    iftype: str
    container: str
    sandbox: str
    calls: list[Future[Call]] = field(default_factory=list)

    @property
    def port(self) -> str:
        return f"{self.container[:12]}-eth0"


class Site:
    """Both chassis; a node of the first one with plugin and agent, and a pod of the other one, which is there all the time."""

    def __init__(self, world: World, node: LiveNode, stack: ExitStack) -> None:
        self.world = world
        self.node = node
        self.ovn = world.ovn
        self.switch = world.ovn.switches[NODE]
        self.living = world.pods
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(8))

    def network(self, iftype: str) -> dict[str, Any]:
        host = {"iftype": iftype, "mtu": MTU, **({"vhost": {"mode": "client"}} if iftype == VHOST else {})}
        ovn = {"ovn": {}, "addresses": "annotations"}
        return {"cniVersion": "1.1.0", "name": "tenants", "type": "userspace", "host": host, **ovn}

    def call(self, verb: str, one: Attaching) -> Call:
        return self.node.run(verb, self.network(one.iftype), one.sandbox, one.container, "eth0", CNI_ARGS=one.pod.args)

    def begin(self, iftype: str) -> Attaching:
        """Create a pod of the node, and begin its ADD."""
        one = self.create(iftype)
        self.add(one)
        return one

    def add(self, one: Attaching) -> None:
        one.calls.append(self._threads.submit(self.call, "ADD", one))

    def add_for_a_moment(self, one: Attaching) -> Call:
        """ADD by a process of its own, which gives up soon."""
        more = {"USERSPACE_CNI_HAND_OVER": "false", "USERSPACE_CNI_DEADLINE_S": SHORT_S}
        environ = self.node.variables("ADD", one.sandbox, one.container, "eth0", CNI_ARGS=one.pod.args, **more)
        return call(self.node.standalone, "ADD", environ, json.dumps(self.network(one.iftype)).encode())

    def create(self, iftype: str) -> Attaching:
        number = next(NUMBERS)
        pod, container = Pod(f"a{number}", volume={"emptyDir": {}}), f"{number:012x}{'a' * 52}"
        self.node.empty_dir(pod.uid)
        manifest = pod.manifest()
        self.world.api.add_pod({**manifest, "spec": {**manifest["spec"], "nodeName": NODE}})
        return Attaching(pod, iftype, container, self._stack.enter_context(netns()))

    def rows_of(self, one: Attaching) -> list[dict[str, Any]]:
        """The pod's rows of Interface: the link of a veth has a name of its own."""
        return self.switch.rows("Interface", f"external_ids:container-id={one.container}")

    def is_open(self, one: Attaching) -> bool:
        """Whether ovs-vswitchd has opened the pod's port: from here on ADD waits for OVN."""
        return any(row["ofport"] for row in self.rows_of(one))

    def left_of(self, one: Attaching) -> list[str]:
        """What the node has of the pod: rows, the record, the pod's link, what is in its volume."""
        rows = [row["name"] for row in self.rows_of(one)]
        records = [str(path) for path in (self.node.state / "attachments").glob(f"*{one.container}*")]
        sockets = [str(path) for path in self.node.empty_dir(one.pod.uid).rglob("*")]
        return [*rows, *records, *links(one.sandbox), *sockets]

    def addresses(self) -> dict[str, str]:
        """What each pod's annotation says."""
        return {name: self.world.api.annotations("default", name)["ovn"] for name in ("p0", "p1")}

    @contextmanager
    def talking(self, one: Attaching) -> Iterator[None]:
        """The pod's link is up in the block: of a vhost-user port by a tap."""
        said = json.loads(one.pod.annotations(self.world.api)["ovn"])
        with ExitStack() as stack:
            if one.iftype == VHOST:
                options = {
                    "mode": "server",
                    "name": "eth0",
                    "address": said["ip_address"],
                    "mac": said["mac_address"],
                    "mtu": MTU,
                }
                words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
                tap = TapProcess(one.sandbox, str(self.node.empty_dir(one.pod.uid) / one.port), *words)
                stack.enter_context(tap).until("ready")
                way_out(one.sandbox, said["gateway_ip"])
            yield

    def judge(self, one: Attaching) -> bool:
        """Whether the ADD succeeded: then the pod reaches the other node's; else the refusal is clear, and nothing is left."""
        made = one.calls[-1].result()
        if made.status:
            error = made.document
            assert error["code"] == 11, error
            assert any(word in made.stdout.decode() for word in CLEAR), error
            print(f"{one.pod.name}, {one.iftype}: refused after {made.wall:.1f} s: {error['msg']}: {error.get('details', '')}")
            wait_until(lambda: not self.left_of(one), what=f"nothing left of {one.pod.name}: {self.left_of(one)}")
            return False
        print(f"{one.pod.name}, {one.iftype}: attached after {made.wall:.1f} s")
        with self.talking(one):
            for pod in self.living:
                wait_until(lambda pod=pod: echoes(one.sandbox, pod.address), what=f"{one.pod.name} -> {pod}")  # type: ignore[misc]
        return True

    def judge_all(self, begun: Sequence[Attaching]) -> int:
        """How many of the ADDs succeeded, judged one by one; one more has to. Living pods are reached, and all of these end."""
        outcomes = [self.judge(one) for one in begun]
        late = self.begin(VETH)
        assert self.judge(late)
        self.check_living()
        self.detach([*begun, late])
        return sum(outcomes)

    def detach(self, attached: Sequence[Attaching]) -> None:
        """DEL of all of them, and their end."""
        for one in attached:
            made = self.call("DEL", one)
            assert made.status == 0, (made.stdout, made.stderr)
            assert self.left_of(one) == []
            self.world.api.remove_pod("default", one.pod.name)

    def check_living(self) -> None:
        """The pods that were there before reach each other."""
        one, other = self.living
        wait_until(lambda: echoes(one.netns, other.address), what=f"{one} -> {other}")


def ports_of(ovn: TwoChassis) -> list[str]:
    """The logical ports with their addresses."""
    return sorted(
        ovn.nbctl("--format=csv", "--no-headings", "--columns=name,addresses", "list", "Logical_Switch_Port").splitlines()
    )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A vhost-user pod on the first chassis and a veth pod on the second, which live all the time."""
    with ExitStack() as stack:
        world = stack.enter_context(two_nodes([(NODE, True), (OTHER_NODE, False)]))
        node = stack.enter_context(node_with_shim(world.ovn.switches[NODE]))
        node.follow(world.api, NODE)
        node.settings |= {"USERSPACE_CNI_OVN_RUNDIR": world.ovn.rundir(NODE), "USERSPACE_CNI_DEADLINE_S": DEADLINE_S}
        node.start()
        yield Site(world, node, stack.enter_context(ExitStack()))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_daemons_of_ovn_die_amid_adds(site: Site, order: Sequence[str]) -> None:
    """Each is killed when an ADD has begun; all are dead at the end, and come back in the same order."""
    addresses, before = site.addresses(), ports_of(site.ovn)
    begun = []
    for name, iftype in zip(order, (VHOST, VETH, VHOST, VETH), strict=True):
        begun.append(site.begin(iftype))
        site.ovn.kill(name)
    for name in order:
        site.ovn.start(name)
    succeeded = site.judge_all(begun)
    wait_until(lambda: ports_of(site.ovn) == before, what="the same logical ports as before")
    assert site.addresses() == addresses
    print(f"{' '.join(order)}: {succeeded} of {len(begun)} ADDs succeeded")


@pytest.mark.parametrize("is_waiting", [False, True], ids=["at once", "while OVN is awaited"])
def test_ovs_vswitchd_dies_amid_adds(site: Site, is_waiting: bool) -> None:
    """With the next one, in the same network namespace: also ADDs whose port it had opened, and that waited for OVN."""
    addresses, before = site.addresses(), ports_of(site.ovn)
    if is_waiting:
        site.ovn.kill(NODE)
    begun = [site.begin(iftype) for iftype in (VHOST, VETH)]
    if is_waiting:
        wait_until(lambda: all(site.is_open(one) for one in begun), what="ADDs that wait for OVN")
    site.switch.kill_vswitchd()
    begun.append(site.begin(VETH))
    site.switch.restart_vswitchd()
    if is_waiting:
        site.ovn.start(NODE)
    succeeded = site.judge_all(begun)
    wait_until(lambda: ports_of(site.ovn) == before, what="the same logical ports as before")
    assert site.addresses() == addresses
    print(f"{succeeded} of {len(begun)} ADDs succeeded")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("northd", "knows no such logical port for this interface"),
        ("nb", "has no annotation ovn"),
        ("sb", "ovn-controller says of the southbound database"),
        (NODE, "ovn-controller does not answer"),
    ],
)
def test_a_daemon_of_ovn_stays_dead(site: Site, name: str, words: str) -> None:
    """ADD is refused with what the node sees of it, and nothing is left; with the daemon the same pod is attached."""
    site.ovn.kill(name)
    one = site.create(VETH)
    refused(site.add_for_a_moment(one), 11, words)
    assert site.left_of(one) == []
    site.ovn.start(name)
    site.add(one)
    assert site.judge(one)
    site.detach([one])
