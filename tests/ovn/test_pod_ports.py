"""Pods' ports as logical ports of OVN: by a process and by an agent, of both kinds of interfaces, until OVN has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import node_with_shim
from tests.cni.spec import refused, refused_soon, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.forked_node import run_command
from tests.lab.node.links import addresses, inside, links, pings
from tests.lab.node.node import CONTAINER, Node
from tests.lab.ovn.central import INTEGRATION, Ovn
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.ovn.port_rows import CLOSED

EITHER = pytest.mark.parametrize("node", ["", "agent"], indirect=True, ids=["process", "agent"])
KINDS = pytest.mark.parametrize("iftype", ["vhostuser", "veth"])
SWITCH = "pods"
OTHER = "b0" * 32
WAITING = 12
NUMBERS = count(1)


@pytest.fixture
def world(node: Node, ovn: Ovn, switch: Switch) -> Iterator[Node]:
    """A node on a chassis of OVN, which has a logical switch for its pods."""
    node.settings["USERSPACE_CNI_OVN_RUNDIR"] = ovn.rundir
    allow_unknown(node)
    ovn.nbctl("--may-exist", "ls-add", SWITCH)
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made its bridge")
    yield node
    ovn.nbctl("--if-exists", "ls-del", SWITCH)


def allow_unknown(node: Node) -> None:
    """The administrator's rule for ports whose addresses only their pods know."""
    rules = '[[rule]]\nnamespaces = ["blue"]\nwithout_port_security = ["node"]\n'
    Path(node.environ["USERSPACE_CNI_CONFIG"]).write_text(rules)


def a_pod(name: str = "") -> Pod:
    """A pod of a name of its own: what OVN still has of one of another test is not this one's."""
    return Pod(name or f"web-{next(NUMBERS)}", "blue")


def network(iftype: str = "vhostuser", **keys: Any) -> dict[str, Any]:
    """A network of logical ports whose addresses only their pods know."""
    host = {"iftype": iftype, **({"vhost": {"mode": "client"}} if iftype == "vhostuser" else {})}
    return {"cniVersion": "1.1.0", "name": "ovnnet", "type": "userspace", "host": host, "ovn": {}, "addresses": "unknown", **keys}


def add_logical(ovn: Ovn, name: str, **options: str) -> None:
    """The logical port that the controller of logical ports makes of a pod."""
    ovn.nbctl("lsp-add", SWITCH, name, "--", "lsp-set-addresses", name, "unknown")
    for key, value in options.items():
        ovn.nbctl("set", "Logical_Switch_Port", name, f"options:{key.replace('_', '-')}={value}")


def is_up(ovn: Ovn, name: str) -> bool:
    return ovn.nbctl("get", "Logical_Switch_Port", name, "up") == "true"


def run(node: Node, verb: str, of: Mapping[str, Any], sandbox: str, pod: Pod, **more: str) -> Call:
    """One call about the pod's interface, `net1` unless another is named."""
    more.setdefault("ifname", "net1")
    return node.run(verb, of, sandbox, CNI_ARGS=pod.args, **more)


def ids_of(node: Node) -> dict[str, str]:
    """external_ids of the one interface that the container has on OVN's bridge."""
    [marked] = switch_of(node).rows("Interface", f"external_ids:container-id={CONTAINER}")
    found: dict[str, str] = marked["external_ids"]
    return found


def ports_left(node: Node) -> list[str]:
    """The ports of pods on OVN's bridge."""
    rows = switch_of(node).rows("Port", "external_ids:owner=userspace-cni")
    return [row["name"] for row in rows]


@EITHER
@KINDS
def test_a_port_that_ovn_knows(world: Node, sandbox: str, ovn: Ovn, iftype: str) -> None:
    """ADD answers when OVN has installed the port, which has the pod's name and UID; CHECK sees it; DEL takes it and nothing
    else, and OVN's bridge stays."""
    pod = a_pod()
    name = f"blue_{pod.name}"
    add_logical(ovn, name, iface_id_ver=pod.uid)
    result = succeeded(run(world, "ADD", network(iftype), sandbox, pod))
    ids = ids_of(world)
    assert (ids["iface-id"], ids["iface-id-ver"], ids["ovn-installed"]) == (name, pod.uid, "true")
    wait_until(lambda: is_up(ovn, name), what="the logical port is up")
    assert run(world, "CHECK", {**network(iftype), "prevResult": result}, sandbox, pod).status == 0
    assert run(world, "DEL", network(iftype), sandbox, pod).status == 0
    assert ports_left(world) == []
    assert switch_of(world).bridge(INTEGRATION)["fail_mode"] == "secure"
    wait_until(lambda: not is_up(ovn, name), what="the logical port is down")


@EITHER
def test_a_port_that_ovn_learns_of_later(world: Node, sandbox: str, ovn: Ovn) -> None:
    """ADD waits: the interface is open before the logical port is made, and the answer comes after it."""
    pod = a_pod()
    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(run, world, "ADD", network(), sandbox, pod)
        row = f"{CONTAINER[:12]}-net1"
        wait_until(lambda: switch_of(world).interface(row).get("ofport"), what="an open interface")
        assert not adding.done()
        add_logical(ovn, f"blue_{pod.name}", iface_id_ver=pod.uid)
        succeeded(adding.result())
    assert ids_of(world)["ovn-installed"] == "true"
    assert run(world, "DEL", network(), sandbox, pod).status == 0


@EITHER
def test_a_port_that_may_send_nothing_yet(world: Node, sandbox: str, ovn: Ovn) -> None:
    """As the controller makes the port of a pod whose lease it does not know: OVN installs it, and its pod gets no answer until
    the lease is known."""
    ipam = {"type": "host-local", "dataDir": str(world.ipam_dir), "ranges": [[{"subnet": "10.57.0.0/24"}]]}
    settings = network("veth", cniVersion="1.0.0", ipam=ipam)
    del settings["addresses"]
    with netns() as second:
        found = {}
        for place, container in ((sandbox, CONTAINER), (second, OTHER)):
            pod = a_pod()
            add_logical(ovn, f"blue_{pod.name}")
            if container == CONTAINER:
                closed = f"blue_{pod.name}"
                ovn.nbctl("lsp-set-addresses", closed, "--", "lsp-set-port-security", closed, *CLOSED)
            found[f"blue_{pod.name}"] = succeeded(run(world, "ADD", settings, place, pod, container=container))
        ovn.nbctl("--wait=hv", "sync")
        address, other = (each["ips"][0]["address"].partition("/")[0] for each in found.values())
        assert pings(sandbox, other) == 0
        mac = next(each["mac"] for each in found[closed]["interfaces"] if each.get("sandbox"))
        for verb in ("lsp-set-addresses", "lsp-set-port-security"):
            ovn.nbctl(verb, closed, f"{mac} {address}")
        wait_until(lambda: pings(sandbox, other) == 3, what="an answer of the other pod")
        for place, container in ((sandbox, CONTAINER), (second, OTHER)):
            assert world.run("DEL", settings, place, container).status == 0


def test_an_add_that_does_not_wait_for_ovn(world: Node, sandbox: str) -> None:
    """With `wait: port` the interface is enough, for ADD and CHECK; the names are there for OVN."""
    pod, quick = a_pod(), network(ovn={"wait": "port"})
    result = succeeded(run(world, "ADD", quick, sandbox, pod))
    ids = ids_of(world)
    assert (ids["iface-id"], "ovn-installed" in ids) == (f"blue_{pod.name}", False)
    assert run(world, "CHECK", {**quick, "prevResult": result}, sandbox, pod).status == 0
    assert run(world, "DEL", quick, sandbox, pod).status == 0


@EITHER
@KINDS
def test_a_port_whose_limits_are_ovns(world: Node, sandbox: str, ovn: Ovn, iftype: str) -> None:
    """The node sets none of them, `list` says whose they are, and what OVN cannot do is refused by name."""
    pod = a_pod()
    add_logical(ovn, f"blue_{pod.name}", iface_id_ver=pod.uid)
    rates = {"ingressRate": 20_000_000, "egressRate": 30_000_000}
    limited = network(iftype, ovn={"limits": "ovn"}, bandwidth=rates)
    result = succeeded(run(world, "ADD", limited, sandbox, pod))
    [interface] = switch_of(world).rows("Interface", f"external_ids:container-id={CONTAINER}")
    assert (interface["ingress_policing_rate"], switch_of(world).port(interface["name"])["qos"]) == (0, [])
    assert run(world, "CHECK", {**limited, "prevResult": result}, sandbox, pod).status == 0
    [listed] = json.loads(run_command(world.environ | world.settings, "list", "--json").stdout)
    assert (listed["limits_by"], listed["limits"]["to_pod"]) == ("ovn", None)
    assert run(world, "DEL", limited, sandbox, pod).status == 0
    for keys, said in (
        ({"netem": {"latency_ms": 5}}, "key 'netem'"),
        ({"bandwidth": {"ingressRate": 10**6, "ingressBurst": 600}}, ""),
    ):
        refused(
            run(world, "ADD", network(iftype, ovn={"limits": "ovn"}, **keys), sandbox, pod), 2 if said else 7, said or "Burst"
        )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (None, "no such logical port for this interface: it is not made"),
        ({"iface_id_ver": "of-another-pod"}, "or its options:iface-id-ver is another's"),
        ({"requested_chassis": "elsewhere"}, "but its options:requested-chassis names another one"),
    ],
)
def test_a_port_that_ovn_does_not_install(world: Node, sandbox: str, ovn: Ovn, options: dict[str, str] | None, why: str) -> None:
    """ADD is answered with 11 and what was missing, and nothing of it stays."""
    pod = a_pod()
    world.settings["USERSPACE_CNI_DEADLINE_S"] = "8"
    if options is not None:
        add_logical(ovn, f"blue_{pod.name}", **options)
        ovn.nbctl("--wait=hv", "sync")  # else a busy chassis may not have seen it yet when ADD gives up
    refused(run(world, "ADD", network(), sandbox, pod), 11, "has not installed logical port blue_", "chassis lab knows", why)
    assert ports_left(world) == []


def test_a_port_that_could_send_from_any_address(world: Node, sandbox: str) -> None:
    """A definition gets one only by a rule for the pod's namespace."""
    pod = Pod("web", "red")
    asked: list[dict[str, Any]] = [{}, {"ovn": {"portSecurity": False}, "addresses": "annotations"}]
    for keys in asked:
        refused(
            run(world, "ADD", network(**keys), sandbox, pod), 7, "could send from any address", "'red'", "without_port_security"
        )


def test_a_node_that_is_no_chassis(world: Node, sandbox: str) -> None:
    """What ovn-controller lacks is named: where it does not answer, that is."""
    world.settings |= {"USERSPACE_CNI_DEADLINE_S": "6", "USERSPACE_CNI_OVN_RUNDIR": str(world.directory)}
    said = f"ovn-controller does not answer: there is no control socket ovn-controller.PID.ctl in {world.directory}"
    refused(run(world, "ADD", network(), sandbox, a_pod()), 11, said)


@EITHER
def test_the_bridge_is_never_made(world: Node, sandbox: str) -> None:
    """Without OVN's bridge ADD is answered with 11 and STATUS with 50, which name it; no call makes it."""
    missing = Pod("x", "blue")
    world.settings["USERSPACE_CNI_OVN_BRIDGE"] = "br-none"
    plain = {"cniVersion": "1.1.0", "name": "n", "type": "userspace", "host": {"bridge": {"bridgeName": "br-none"}}}
    for settings in (network(), network("veth")):
        refused(run(world, "ADD", settings, sandbox, missing), 11, "bridge br-none, OVN's integration bridge, is not there")
    refused(world.run("ADD", plain, sandbox), 11, "bridge br-none, OVN's integration bridge, is not there")
    refused(run(world, "ADD", plain, sandbox, missing), 7, "which is OVN's and forwards nothing")
    refused(world.run("STATUS", network()), 50, "bridge br-none, OVN's integration bridge, is not there")
    assert "br-none" not in switch_of(world).bridges()


def test_several_interfaces(world: Node, sandbox: str, ovn: Ovn) -> None:
    """The first has the pod's name, each further one its own behind that."""
    pod = a_pod()
    names = {"net1": f"blue_{pod.name}", "net2": f"blue_{pod.name}_net2"}
    for ifname, name in names.items():
        add_logical(ovn, name)
        succeeded(run(world, "ADD", network(), sandbox, pod, ifname=ifname))
    switch = switch_of(world)
    assert {ifname: switch.interface(f"{CONTAINER[:12]}-{ifname}")["external_ids"]["iface-id"] for ifname in names} == names
    for ifname in names:
        assert run(world, "DEL", network(), sandbox, pod, ifname=ifname).status == 0


def test_an_order_that_is_not_the_controllers(world: Node, sandbox: str, ovn: Ovn) -> None:
    """Multus may attach a further interface first: by the annotations it has its own name and addresses all the same."""
    pod = a_pod()
    names = {"net2": f"blue_{pod.name}_net2", "net1": f"blue_{pod.name}"}
    with ApiServer() as api:
        world.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(world.directory)
        pod.create(api)
        said = {name: {"ip_address": f"192.168.2.{name[-1]}/24", "mac_address": f"0a:00:00:00:00:0{name[-1]}"} for name in names}
        notes = {"ovn": json.dumps(said["net1"]), "k8s.ovn.org/pod-networks": json.dumps({"blue/ovnnet/net2": said["net2"]})}
        api.change(pod.namespace, pod.name, {"metadata": {"annotations": notes}})
        settings = network("veth", addresses="annotations")
        for ifname, name in names.items():
            add_logical(ovn, name)
            succeeded(run(world, "ADD", settings, sandbox, pod, ifname=ifname))
            assert addresses(sandbox, ifname) == [said[ifname]["ip_address"]]
        rows = switch_of(world).rows("Interface", f"external_ids:container-id={CONTAINER}")
        assert {row["external_ids"]["ifname"]: row["external_ids"]["iface-id"] for row in rows} == names
        for ifname in names:
            assert run(world, "DEL", settings, sandbox, pod, ifname=ifname).status == 0


def test_interfaces_at_once(world: Node, sandbox: str, ovn: Ovn) -> None:
    """ADDs for two interfaces of a pod at once: one has the pod's name, the other its own."""
    pod = a_pod()
    ends = ("net1", "net2")
    for name in (f"blue_{pod.name}", *(f"blue_{pod.name}_{each}" for each in ends)):
        add_logical(ovn, name)
    with ThreadPoolExecutor(2) as threads:
        for call in [threads.submit(run, world, "ADD", network(), sandbox, pod, ifname=each) for each in ends]:
            succeeded(call.result())
    rows = switch_of(world).rows("Interface", f"external_ids:container-id={CONTAINER}")
    found = {row["external_ids"]["ifname"]: row["external_ids"]["iface-id"] for row in rows}
    assert f"blue_{pod.name}" in found.values()
    assert [found[each] == f"blue_{pod.name}_{each}" for each in ends].count(True) == 1
    for each in ends:
        assert run(world, "DEL", network(), sandbox, pod, ifname=each).status == 0


def test_two_pods_talk(world: Node, sandbox: str, ovn: Ovn) -> None:
    """Veths of two pods reach each other over the logical switch."""
    ipam = {"type": "host-local", "dataDir": str(world.ipam_dir), "ranges": [[{"subnet": "10.57.0.0/24"}]]}
    settings = network("veth", cniVersion="1.0.0", ipam=ipam)
    del settings["addresses"]
    with netns() as second:
        found = []
        for place, container in ((sandbox, CONTAINER), (second, OTHER)):
            pod = a_pod()
            add_logical(ovn, f"blue_{pod.name}")
            found.append(succeeded(run(world, "ADD", settings, place, pod, container=container)))
        other = found[1]["ips"][0]["address"].partition("/")[0]
        wait_until(lambda: pings(sandbox, other) == 3, what="an answer of the other pod")
        for place, container in ((sandbox, CONTAINER), (second, OTHER)):
            assert world.run("DEL", settings, place, container).status == 0


def test_a_port_that_the_pod_names(world: Node, sandbox: str, ovn: Ovn) -> None:
    """`OvnPort` of ovs-cni is the logical port's name; without key `ovn` the interface is on OVN's bridge all the same."""
    pod = a_pod()
    add_logical(ovn, "blue_chosen")
    host = {"iftype": "vhostuser", "vhost": {"mode": "client"}}
    plain = {"cniVersion": "1.1.0", "name": "n", "type": "userspace", "host": host, "args": {"cni": {"OvnPort": "blue_chosen"}}}
    succeeded(run(world, "ADD", plain, sandbox, pod))
    assert (ids_of(world)["iface-id"], ids_of(world)["ovn-installed"]) == ("blue_chosen", "true")
    assert run(world, "DEL", plain, sandbox, pod).status == 0
    refused(run(world, "ADD", {**plain, "args": {"cni": {"OvnPort": "red_chosen"}}}, sandbox, pod), 7, "of its own namespace")


@pytest.mark.parametrize("node", ["agent"], indirect=True)
def test_others_are_served_while_adds_wait_for_ovn(world: Node, sandbox: str, ovn: Ovn) -> None:
    """Each such ADD holds a thread of the agent and its interface's lock, and nothing that others need."""
    pods = {f"{number:02x}" * 32: a_pod() for number in range(1, 1 + WAITING)}
    with ExitStack() as stack:
        places = {container: stack.enter_context(netns()) for container in pods}
        threads = stack.enter_context(ThreadPoolExecutor(WAITING))

        def call(verb: str, container: str) -> Call:
            return run(world, verb, network(), places[container], pods[container], container=container)

        adding = [threads.submit(call, "ADD", container) for container in pods]
        opened = [f"{container[:12]}-net1" for container in pods]
        wait_until(lambda: all(switch_of(world).interface(each).get("ofport") for each in opened), what="open interfaces")
        plain = world.network()
        succeeded(world.run("ADD", plain, sandbox))
        assert world.run("STATUS", plain).status == 0
        assert world.run("DEL", plain, sandbox).status == 0
        assert not any(each.done() for each in adding)
        for pod in pods.values():
            add_logical(ovn, f"blue_{pod.name}", iface_id_ver=pod.uid)
        for each in adding:
            succeeded(each.result())
        for container in pods:
            assert call("DEL", container).status == 0


@pytest.mark.parametrize("node", ["agent"], indirect=True)
def test_a_name_that_was_changed_by_hand(world: Node, sandbox: str, ovn: Ovn) -> None:
    """CHECK names it, the agent puts it back, and OVN has the port again."""
    pod = a_pod()
    name = f"blue_{pod.name}"
    add_logical(ovn, name)
    settings = network()
    result = succeeded(run(world, "ADD", settings, sandbox, pod))
    port, switch = f"{CONTAINER[:12]}-net1", switch_of(world)

    def change() -> None:
        switch.vsctl("set", "Interface", port, "external_ids:iface-id=by-hand")

    change()
    called = {**settings, "prevResult": result}
    refused_soon(lambda: run(world, "CHECK", called, sandbox, pod), 103, "external_ids:iface-id", "by-hand", again=change)

    def is_back() -> bool:
        ids = switch.interface(port)["external_ids"]
        return (ids.get("iface-id"), ids.get("ovn-installed")) == (name, "true")

    wait_until(is_back, what="the agent has put it back, and OVN has installed it")
    assert run(world, "DEL", settings, sandbox, pod).status == 0


def test_an_agent_that_dies_while_ovn_is_awaited(switch: Switch, sandbox: str, ovn: Ovn) -> None:
    """The next agent undoes the port, which was in the rows by then, and the next ADD has it."""
    pod = a_pod()
    ovn.nbctl("--may-exist", "ls-add", SWITCH)
    wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made its bridge")
    with node_with_shim(switch) as node:
        node.settings["USERSPACE_CNI_OVN_RUNDIR"] = ovn.rundir
        allow_unknown(node)
        node.start()
        with ThreadPoolExecutor(1) as threads:
            adding = threads.submit(run, node, "ADD", network(), sandbox, pod)
            wait_until(lambda: switch.interface(f"{CONTAINER[:12]}-net1").get("ofport"), what="an open interface")
            node.kill()
            refused(adding.result(), 11)
        node.start()
        wait_until(lambda: ports_left(node) == [], what="the next agent has undone it")
        add_logical(ovn, f"blue_{pod.name}")
        succeeded(run(node, "ADD", network(), sandbox, pod))
        assert ids_of(node)["ovn-installed"] == "true"
        assert run(node, "DEL", network(), sandbox, pod).status == 0
    ovn.nbctl("ls-del", SWITCH)


def test_a_word_of_ovns_that_is_gone(world: Node, sandbox: str, ovn: Ovn) -> None:
    """CHECK says that OVN has let the port go when its logical port is deleted."""
    pod = a_pod()
    name = f"blue_{pod.name}"
    add_logical(ovn, name)
    result = succeeded(run(world, "ADD", network(), sandbox, pod))
    ovn.nbctl("lsp-del", name)
    checked = {**network(), "prevResult": result}
    refused_soon(lambda: run(world, "CHECK", checked, sandbox, pod), 103, "external_ids:ovn-installed")
    assert run(world, "DEL", network(), sandbox, pod).status == 0


def test_addresses_in_the_annotation(world: Node, sandbox: str, ovn: Ovn) -> None:
    """What the controller of logical ports writes is the pod's, in the former form too, without the setting for kube-ovn's."""
    pod = a_pod()
    add_logical(ovn, f"blue_{pod.name}")
    with ApiServer() as api:
        world.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(world.directory)
        pod.create(api)
        said = "{'ip_address': '192.168.2.3/24', 'mac_address': '0a:00:00:00:00:01', 'gateway_ip': '192.168.2.1'}"
        api.change(pod.namespace, pod.name, {"metadata": {"annotations": {"ovn": said}}})
        settings = network("veth", addresses="annotations")
        result = succeeded(run(world, "ADD", settings, sandbox, pod, ifname="eth0"))
        assert addresses(sandbox, "eth0") == ["192.168.2.3/24"]
        assert links(sandbox)["eth0"]["address"] == "0a:00:00:00:00:01"
        assert result["ips"][0]["gateway"] == "192.168.2.1"
        assert run(world, "DEL", settings, sandbox, pod, ifname="eth0").status == 0


def test_ovn_recomputes_at_intervals(switch: Switch, ovn: Ovn) -> None:
    """The agent asks ovn-controller, again and again, also after a time without one; without the setting it never does."""

    def recomputed() -> int:
        said = ovn.control("inc-engine/show-stats")
        return int(re.search(r"Node: (?:logical_flow|lflow)_output\n- recompute:\s+(\d+)", said)[1])  # type: ignore[index]

    with node_with_shim(switch) as node:
        node.settings |= {"USERSPACE_CNI_OVN_RUNDIR": f"{ovn.rundir}/absent", "USERSPACE_CNI_OVN_RECOMPUTE_S": "1"}
        node.start()
        wait_until(
            lambda: "asking ovn-controller to recompute" in (node.directory / "agent.log").read_text(),
            what="that none answers is told",
        )
        node.kill()
        node.settings["USERSPACE_CNI_OVN_RUNDIR"] = ovn.rundir
        first = recomputed()
        node.start()
        wait_until(lambda: recomputed() >= first + 3, what="three more computations")


@EITHER
def test_the_network_of_the_first_tools(world: Node, sandbox: str, ovn: Ovn) -> None:
    """Of type ovn_cni, without a version: the pod's veth is its logical port, with the annotation's addresses and gateway; the
    answer has the first version's form."""
    pod = a_pod()
    add_logical(ovn, f"blue_{pod.name}", iface_id_ver=pod.uid)
    ipam = {"type": "host-local", "subnet": "192.168.9.0/24"}
    settings = {"name": "net", "type": "ovn_cni", "bridge": INTEGRATION, "isGateway": "true", "ipMasq": "false", "ipam": ipam}
    with ApiServer() as api:
        world.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(world.directory)
        pod.create(api)
        said = '{"ip_address": "192.168.2.3/24", "mac_address": "0a:00:00:00:00:01", "gateway_ip": "192.168.2.1"}'
        api.change(pod.namespace, pod.name, {"metadata": {"annotations": {"ovn": said}}})
        done = run(world, "ADD", settings, sandbox, pod, ifname="eth0")
        assert (done.status, json.loads(done.stdout)) == (
            0,
            {
                "cniVersion": "0.1.0",
                "dns": {},
                "ip4": {
                    "ip": "192.168.2.3/24",
                    "gateway": "192.168.2.1",
                    "routes": [{"dst": "0.0.0.0/0", "gw": "192.168.2.1"}],
                },
            },
        )
        assert addresses(sandbox, "eth0") == ["192.168.2.3/24"]
        link = links(sandbox)["eth0"]
        assert (link["address"], link["mtu"]) == ("0a:00:00:00:00:01", 1400)
        assert "default via 192.168.2.1 dev eth0" in inside(sandbox, "ip", "route")
        assert ids_of(world)["ovn-installed"] == "true"
        assert run(world, "DEL", settings, sandbox, pod, ifname="eth0").status == 0
    assert ports_left(world) == []


def test_both_pods_of_a_migration(world: Node, sandbox: str, ovn: Ovn) -> None:
    """A VM's launcher has the logical port of its VM, with the UID of the VM's instance: so has the pod that it migrates to."""
    with ApiServer() as api:
        world.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(world.directory)
        vm = f"vm-{next(NUMBERS)}"
        add_logical(ovn, f"blue_{vm}", iface_id_ver="vmi-uid")
        for end in ("abcde", "vwxyz"):
            pod = a_pod(f"virt-launcher-{vm}-{end}")
            world.empty_dir(pod.uid, "public")
            manifest = pod.manifest()
            owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vm, "uid": "vmi-uid"}
            manifest["metadata"]["ownerReferences"] = [owner]
            api.add_pod(manifest)
            succeeded(run(world, "ADD", network(consumer="kubevirt"), sandbox, pod))
            ids = ids_of(world)
            assert (ids["iface-id"], ids["iface-id-ver"], ids["ovn-installed"]) == (f"blue_{vm}", "vmi-uid", "true")
            assert run(world, "DEL", network(consumer="kubevirt"), sandbox, pod).status == 0


def test_kube_ovns_names(world: Node, sandbox: str, ovn: Ovn) -> None:
    """With its names, and its keys beside them, kube-ovn's control plane finds the port."""
    pod = a_pod()
    world.settings["USERSPACE_CNI_OVN_NAMING"] = "kube-ovn"
    add_logical(ovn, f"{pod.name}.blue")
    ipam = {"type": "host-local", "dataDir": str(world.ipam_dir), "ranges": [[{"subnet": "10.57.0.0/24"}]]}
    settings = network("veth", cniVersion="1.0.0", ipam=ipam)
    del settings["addresses"]
    result = succeeded(run(world, "ADD", settings, sandbox, pod, ifname="eth0"))
    ids = ids_of(world)
    assert {key: ids.get(key) for key in ("iface-id", "pod_name", "pod_namespace", "pod_netns", "ip")} == {
        "iface-id": f"{pod.name}.blue",
        "pod_name": pod.name,
        "pod_namespace": "blue",
        "pod_netns": sandbox,
        "ip": result["ips"][0]["address"].partition("/")[0],
    }
    assert run(world, "DEL", settings, sandbox, pod, ifname="eth0").status == 0
