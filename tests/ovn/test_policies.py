"""Policies in force: a controller, OVN and two chassis, with pods that send while policies and pods come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.lab.frames.taps import echoes
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.objectstore import ENDPOINT_SLICES
from tests.lab.kube.services import endpoint, endpoint_slice, service
from tests.lab.ovn.attempts import Attempt, Outcome, PodServers, tried
from tests.lab.ovn.logical_pods import ROUTER, join_switch
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside
from tests.ovn.test_kept_policies import POLICIES, labelled, policy, put, space
from userspace_cni.ovn.topology import CLUSTER_GROUP, GATEWAY_GROUP

WEB, CLIENT = {"app": "web"}, {"app": "client"}
COMMAND = (sys.executable, "-m", "userspace_cni", "ovn", "watch")
PORT = 8080


@dataclass(frozen=True)
class RunningPod:
    """A pod that is attached. `addresses`: by version of IP."""

    name: str
    netns: str
    addresses: Mapping[int, str]


class RunningWorld:
    """Two chassis, an API server, and a controller that is a process of its own."""

    def __init__(self, ovn: TwoChassis, api: ApiServer, servers: PodServers, environ: Mapping[str, str]) -> None:
        self.ovn = ovn
        self.api = api
        self.servers = servers
        self._environ = dict(environ)
        self._watches: list[subprocess.Popen[str]] = []
        self._numbers = count(1)

    def watch(self) -> subprocess.Popen[str]:
        """Start a controller."""
        self._watches.append(subprocess.Popen(COMMAND, env=os.environ | self._environ, text=True))
        return self._watches[-1]

    def change_leader(self) -> None:
        """Kill the controller that acts, the older one of two, and wait until the other one does."""
        leases = self.api.objects("leases.coordination.k8s.io")
        former = leases.get("system", "userspace-cni-ovn")["spec"]["holderIdentity"]
        self.watch()
        killed = self._watches.pop(0)
        killed.kill()
        killed.wait(60)
        wait_until(lambda: leases.get("system", "userspace-cni-ovn")["spec"]["holderIdentity"] != former, what="another leader")

    def end(self) -> None:
        for each in self._watches:
            each.kill()
            each.wait(60)

    @contextmanager
    def pod(
        self, name: str, labels: Mapping[str, str], on: str = "n1", *, vhost: bool = False, **spec: Any
    ) -> Iterator[RunningPod]:
        """A pod, attached as the plugin does: once its annotation says its addresses. A number makes its name another one each
        time: links of a namespace that has ended go a moment later."""
        name = f"{name}-{next(self._numbers)}"
        with ExitStack() as stack:
            self.api.add_pod(labelled(name, labels, on, **spec))
            stack.callback(self.api.remove_pod, "default", name)
            yield stack.enter_context(self._attached(name, on, vhost=vhost))

    @contextmanager
    def _attached(self, name: str, on: str, *, vhost: bool) -> Iterator[RunningPod]:
        noted = json.loads(wait_until(lambda: self.api.annotations("default", name).get("ovn"), what=f"the annotation of {name}"))
        said = noted["ip_address"]
        addresses = {6 if ":" in each else 4: each for each in (said if isinstance(said, list) else said.split(","))}
        uid = self.api.pod("default", name)["metadata"]["uid"]
        subnet = NODES.index(on) + 1
        with self.ovn.pod(on, f"default_{name}", uid, addresses[4], noted["mac_address"], vhost=vhost) as netns:
            give(netns, "eth0", addresses[6])
            for family, gateway in (("-4", f"192.168.{subnet}.1"), ("-6", f"fd00:{subnet}::1")):
                inside(netns, "ip", family, "route", "add", "default", "via", gateway)
            self.servers.listen(netns, [PORT])
            yield RunningPod(name, netns, {version: each.partition("/")[0] for version, each in addresses.items()})

    def trace(self, *args: str) -> subprocess.CompletedProcess[str]:
        """What `ovn trace` says."""
        remotes = {"USERSPACE_CNI_OVN_NB": self.ovn.remote("nb"), "USERSPACE_CNI_OVN_SB": self.ovn.remote("sb")}
        argv = [sys.executable, "-m", "userspace_cni", "ovn", "trace", *args]
        return subprocess.run(argv, env=os.environ | remotes, capture_output=True, text=True, timeout=120, check=False)

    def settled(self) -> None:
        """Wait until each chassis has what the database says now."""
        self.ovn.nbctl("--wait=hv", "sync")
        self.ovn.revalidate()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorld]:
    """Both nodes have a port of their own, as `init-node` makes it."""
    with ExitStack() as stack:
        ovn = stack.enter_context(TwoChassis(Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))))
        api = stack.enter_context(ApiServer())
        ovn.nbctl("lr-add", ROUTER)
        for number, name in enumerate(NODES, 1):
            api.add(node(name))
            join_switch(ovn, name, number)
            subnets = (f"other_config:subnet=192.168.{number}.0/24", f'other_config:ipv6_prefix="fd00:{number}::"')
            ovn.nbctl("set", "logical_switch", name, *subnets)
            _own_port(ovn, name, number)
        put(api, space("default", {}))
        api.serve(ENDPOINT_SLICES)
        for name in (CLUSTER_GROUP, GATEWAY_GROUP):
            row = ovn.nbctl("create", "Load_Balancer_Group", f"name={name}")
            for each in NODES:
                ovn.nbctl("add", "Logical_Switch", each, "load_balancer_group", row)
        servers = stack.enter_context(PodServers())
        environ = {
            "USERSPACE_CNI_OVN_NB": ovn.remote("nb"),
            "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path_factory.mktemp("account")),
            "USERSPACE_CNI_CONTROLLER_NAMESPACE": "system",
        }
        made = RunningWorld(ovn, api, servers, environ)
        stack.callback(made.end)
        made.watch()
        yield made


@pytest.fixture(autouse=True)
def no_policies(world: RunningWorld) -> Iterator[None]:
    """Each test leaves none."""
    yield
    store = world.api.objects(POLICIES)
    for key in store.names():
        store.remove(*key)


def _own_port(ovn: TwoChassis, name: str, number: int) -> None:
    """A node's own port: an internal one of its switch."""
    logical, link = f"k8s-{name}", f"k8s-{name}"
    mac, addresses = f"0a:58:c0:a8:0{number}:02", (f"192.168.{number}.2/24", f"fd00:{number}::2/64")
    plain = " ".join(each.partition("/")[0] for each in addresses)
    ovn.nbctl("lsp-add", name, logical, "--", "lsp-set-addresses", logical, f"{mac} {plain}")
    switch = ovn.switches[name]
    ids = ("type=internal", f'mac="{mac}"', f"external_ids:iface-id={logical}")
    switch.vsctl("add-port", "br-int", link, "--", "set", "Interface", link, *ids)
    give(switch.netns, link, *addresses)
    for family, gateway in (("-4", f"192.168.{number}.1"), ("-6", f"fd00:{number}::1")):
        target = "192.168.0.0/16" if family == "-4" else "fd00::/16"
        inside(switch.netns, "ip", family, "route", "add", target, "via", gateway)


def heard(pod: RunningPod) -> tuple[int, int]:
    """How many echo requests a pod has got since it began, of IPv4 and of IPv6."""
    names, values = (
        line.split()[1:] for line in inside(pod.netns, "cat", "/proc/net/snmp").splitlines() if line.startswith("Icmp:")
    )
    four = int(dict(zip(names, values, strict=True))["InEchos"])
    six = [
        line.split()[1] for line in inside(pod.netns, "cat", "/proc/net/snmp6").splitlines() if line.startswith("Icmp6InEchos ")
    ]
    return four, int(six[0])


def reaches(source: str, target: RunningPod, version: int = 4) -> bool:
    """Whether a connection from the namespace is answered."""
    return tried([Attempt(source, target.addresses[version], PORT)]) == [Outcome.ALLOWED]


def until_reached(source: str, target: RunningPod) -> None:
    """Wait until it is, in both families."""
    for version in (4, 6):
        wait_until(partial(reaches, source, target, version), what=f"{target.name} is reached over IPv{version}")


def until_cut(source: str, target: RunningPod) -> None:
    """Wait until it is not, in both families."""
    for version in (4, 6):
        wait_until(partial(is_cut, source, target, version), what=f"{target.name} is not reached over IPv{version}")


def is_cut(source: str, target: RunningPod, version: int) -> bool:
    return not reaches(source, target, version)


def test_a_pod_is_isolated_from_its_first_packet_on(world: RunningWorld) -> None:
    """While another pod sends to its address from before it exists; a pod that no policy selects gets what is sent."""
    put(world.api, policy("closed", podSelector={"matchLabels": WEB}, policyTypes=["Ingress"]))
    with world.pod("sender", CLIENT) as sender, ExitStack() as stack:
        prefix, _, last = sender.addresses[4].rpartition(".")
        for number in range(1, 10):  # to whichever address it gets
            argv = ["nsenter", f"--net={sender.netns}", "ping", "-q", "-i", "0.02", f"{prefix}.{int(last) + number}"]
            pinging = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(pinging.kill)
        for name, labels, vhost in (("open", {}, False), ("web1", WEB, False), ("web2", WEB, True)):
            with world.pod(name, labels, vhost=vhost) as pod:
                if not labels:
                    wait_until(lambda: heard(pod)[0] > 0, what="an echo request")
                else:
                    assert not reaches(sender.netns, pod)
                    world.settled()
                    assert heard(pod) == (0, 0)


def test_labels_and_policies_change_under_running_pods(world: RunningWorld) -> None:
    """Of both ends, in both families, for both kinds of port."""
    peers = [{"podSelector": {"matchLabels": CLIENT}}]
    put(world.api, policy("closed", podSelector={"matchLabels": WEB}, ingress=[{"from": peers}]))
    with (
        world.pod("web", WEB, vhost=True) as web,
        world.pod("one", CLIENT, vhost=True) as one,
        world.pod("other", {}, on="n2") as other,
    ):
        until_reached(one.netns, web)
        assert not reaches(other.netns, web)
        assert not reaches(other.netns, web, 6)
        world.api.change("default", other.name, {"metadata": {"labels": CLIENT}})
        world.api.change("default", one.name, {"metadata": {"labels": {"app": "former"}}})
        until_reached(other.netns, web)
        until_cut(one.netns, web)
        world.api.change("default", web.name, {"metadata": {"labels": {"app": "free"}}})
        until_reached(one.netns, web)
        put(world.api, policy("out", podSelector={"matchLabels": {"app": "former"}}, policyTypes=["Egress"]))
        until_cut(one.netns, web)
        until_reached(other.netns, one)  # answers pass
        world.api.objects(POLICIES).remove("default", "out")
        until_reached(one.netns, web)


def test_a_node_reaches_its_own_pods_alone(world: RunningWorld) -> None:
    """Whatever policies say, in both families: as the kubelet's probes do. A pod's way to its node is a policy's matter."""
    put(world.api, policy("closed", podSelector={"matchLabels": WEB}, policyTypes=["Ingress", "Egress"]))
    own, other = world.ovn.netns("n1"), world.ovn.netns("n2")
    with world.pod("web", WEB) as web, world.pod("far", WEB, on="n2", vhost=True) as far:
        until_reached(own, web)
        until_reached(other, far)
        for version in (4, 6):
            assert not reaches(own, far, version)
            assert not reaches(other, web, version)
        assert not echoes(web.netns, "192.168.1.2")


def test_a_trace_says_which_policy(world: RunningWorld) -> None:
    """That lets a packet through, or those of which none does, at both ends."""
    peers = [{"podSelector": {"matchLabels": CLIENT}}]
    put(world.api, policy("closed", podSelector={"matchLabels": WEB}, ingress=[{"from": peers, "ports": [{"port": PORT}]}]))
    put(world.api, policy("out", podSelector={"matchLabels": {"app": "mute"}}, policyTypes=["Egress"]))
    with world.pod("web", WEB) as web, world.pod("one", CLIENT, on="n2") as one, world.pod("mute", {"app": "mute"}) as mute:
        world.settled()
        allowed = world.trace(f"default/{one.name}", f"default/{web.name}", "--port", str(PORT))
        assert named(allowed) == ["let through by NetworkPolicy default/closed, ingress rule 0"]
        other = world.trace(f"default/{one.name}", f"default/{web.name}", "--port", "81")
        assert (allowed.returncode, other.returncode) == (0, 1)
        said = "dropped: default_{} is isolated for {}, and none of its policies lets this through: NetworkPolicy default/{}"
        assert named(other) == [said.format(web.name, "ingress", "closed")]
        dropped = world.trace(mute.name, one.name, "--detailed")
        assert (dropped.returncode, named(dropped)) == (1, [said.format(mute.name, "egress", "out")])
        assert "ls_in_acl" in dropped.stdout
        assert named(world.trace(web.name, one.name)) == []


def named(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a trace says of policies."""
    return [line.removeprefix("policies: ") for line in done.stdout.splitlines() if line.startswith("policies: ")]


def test_ovn_can_parse_each_match(world: RunningWorld) -> None:
    """A match that it cannot is accepted by the database, and only a chassis says so in its log: of no policy here it did."""
    put(world.api, space("default", {}, {"k8s.ovn.org/acl-logging": '{"deny": "info", "allow": "info"}'}))
    blocks = [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00::/64"]}},
    ]
    selected = [{"namespaceSelector": {}}, {"podSelector": {"matchLabels": {"app": "none"}}}, {"ipBlock": {"cidr": "0.0.0.0/0"}}]
    ports = [{"port": 80}, {"port": 8000, "endPort": 8100}, {"protocol": "UDP"}, {"protocol": "SCTP", "port": 9}, {"port": "web"}]
    rules = [{"ports": ports}, {}]
    spec: dict[str, Any] = {
        "ingress": [*rules, {"from": blocks, "ports": ports}, {"from": selected, "ports": ports}],
        "egress": [*rules, {"to": blocks, "ports": ports}, {"to": selected, "ports": ports}],
    }
    put(world.api, policy("closed", podSelector={}, **spec))
    with world.pod("web", WEB, containers=[{"ports": [{"name": "web", "containerPort": PORT}]}]) as web:
        wait_until(lambda: "policy_isolated_egress" in world.ovn.nbctl("list", "Port_Group"), what="the rows")
        wait_until(lambda: f"tcp.dst == {{{PORT}}}" in world.ovn.nbctl("list", "ACL"), what="the port with a name")
        world.settled()
        until_reached(world.ovn.netns("n1"), web)
        assert {name: world.ovn.complaints(name) for name in NODES} == {name: [] for name in NODES}
    put(world.api, space("default", {}))


def test_services_and_policies(world: RunningWorld) -> None:
    """A policy speaks of the endpoints of a Service; a pod reaches itself by its Service, whatever policies say."""
    outward = [{"to": [{"podSelector": {"matchLabels": WEB}}], "ports": [{"port": PORT}]}]
    put(world.api, policy("out", podSelector={"matchLabels": CLIENT}, egress=outward, policyTypes=["Egress"]))
    inward = [{"from": [{"podSelector": {"matchLabels": CLIENT}}]}]
    put(
        world.api,
        policy("closed", podSelector={"matchLabels": WEB}, ingress=inward, egress=[], policyTypes=["Ingress", "Egress"]),
    )
    vips = ("10.96.0.10", "fd10::10")
    ports = [{"port": 80, "protocol": "TCP", "targetPort": PORT}]
    put(world.api, service("web", *vips, ports=ports, ipFamilies=["IPv4", "IPv6"]))
    with (
        world.pod("web", WEB, vhost=True) as web,
        world.pod("elsewhere", {}, on="n2") as elsewhere,
        world.pod("client", CLIENT, on="n2") as client,
        world.pod("none", {}, on="n2", vhost=True) as none,
    ):
        for version, kind in ((4, "IPv4"), (6, "IPv6")):
            put(world.api, endpoint_slice(f"web-{version}", "web", endpoint(web.addresses[version]), kind=kind))
        for vip in vips:
            for source in (client, web):
                wait_until(partial(answered, source.netns, vip), what=f"{source.name} reaches {vip}")
            assert not answered(none.netns, vip)
        assert not reaches(client.netns, elsewhere)
        until_reached(client.netns, web)


def answered(netns: str, address: str) -> bool:
    """Whether port 80 of the address answers."""
    return tried([Attempt(netns, address, 80)]) == [Outcome.ALLOWED]
