"""Pods' annotations about their interfaces: limits and mirrors follow changes while the pod lives, also after the agent's death.

They change without a gap in the traffic. ADD waits for addresses.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import finish, refused, start, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod
from tests.lab.node.links import addresses, inside, links, pinging, pings
from tests.lab.node.node import CONTAINER
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import record_key
from userspace_cni.base.deadline import Deadline
from userspace_cni.linux.boot import boot_id

POD = Pod(uid="6a0e1f0e-8a6c-4a6e-9a52-9c1c3f0b7a11")
OTHER = "b0" * 32
FLOOD = """
import socket
to_all = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to_all.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
to_all.setblocking(False)
for _ in range(400):
    try:
        to_all.sendto(bytes(1400), ("10.56.0.255", 9))
    except BlockingIOError:
        break
"""
"""More bytes than a slow filter's queue holds."""
IN, OUT = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """An API server with a pod, for which the node's agent has credentials of its own."""
    with ApiServer() as started:
        live.follow(started)
        manifest = POD.manifest()
        started.add_pod({**manifest, "spec": {**manifest["spec"], "nodeName": "n1"}})
        yield started


def podnet(live: LiveNode, **keys: Any) -> dict[str, Any]:
    """A network of ordinary pods with addresses."""
    host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    return live.network("1.0.0", host=host, ipam=live.host_local(), **keys)


def annotate(api: ApiServer, **values: str | None) -> None:
    """Give the pod these annotations, by the part of their names after the slash; None removes one."""
    names = {"own": "userspace/bandwidth", "mirror": "userspace/mirror", "to": IN, "out": OUT}
    names |= {"kubeovn": "ovn.kubernetes.io/ingress_rate"}
    api.change(POD.namespace, POD.name, {"metadata": {"annotations": {names[key]: value for key, value in values.items()}}})


def limits(live: LiveNode) -> tuple[int | None, int | None]:
    """Rates to the pod and from it, as the agent's page has them from the record."""
    page = live.page("/api/v1/attachments")[1]
    [found] = [each["limits"] for each in page if (each["container"], each["ifname"]) == (CONTAINER, "eth0")]
    return tuple(found[way]["rate"] if found[way] else None for way in ("to_pod", "from_pod"))  # type: ignore[return-value]


def follows(live: LiveNode, wanted: tuple[int | None, int | None]) -> None:
    """Wait until the limits have these values."""
    wait_until(lambda: limits(live) == wanted, what=f"the limits {wanted}")


def in_force(live: LiveNode, sandbox: str) -> tuple[str, str]:
    """Rates of an ordinary pod's eth0 in the kernel: of the switch's queue, and of the filter in the pod; "" for none."""
    switch, [host] = switch_of(live), switch_of(live).ports("br-test")
    place, pod = inside(switch.netns, "tc", "class", "show", "dev", host), inside(sandbox, "tc", "qdisc", "show", "dev", "eth0")
    leaf = re.search(r"class htb 1:1 .*ceil (\S+)", place)
    tbf = re.search(r"tbf .*rate (\S+)", pod)
    return leaf[1] if leaf else "", tbf[1] if tbf else ""


def test_an_ordinary_pod(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """Each change reaches kernel, switch and record; without annotations the network's value applies.

    An invalid one changes nothing.
    """
    network = podnet(live, bandwidth={"ingressRate": 80_000_000})
    annotate(api, to="10M")
    live.start()
    succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    assert limits(live) == (10_000_000, None)
    for wanted, kernel, said in (
        ((20_000_000, 5_000_000), ("20Mbit", "5Mbit"), {"to": "20M", "out": "5M"}),
        ((20_000_000, 7_000_000), ("20Mbit", "7Mbit"), {"own": '{"eth0": {"egressRate": "7M"}}'}),
        ((80_000_000, None), ("80Mbit", ""), {"own": None, "to": None, "out": None}),
    ):
        annotate(api, **said)
        follows(live, wanted)
        assert in_force(live, sandbox) == kernel
    annotate(api, own='{"eth0": {"egressRate": "fast"}}')
    wait_until(lambda: "LimitRefused" in api.events.of("app"), what="the Event")
    live.tick(3)
    assert api.events.of("app")["LimitRefused"].get("count", 1) == 1
    assert "'fast'" in api.events.of("app")["LimitRefused"]["message"]
    assert (limits(live), in_force(live, sandbox)) == ((80_000_000, None), ("80Mbit", ""))
    [row] = switch_of(live).rows("QoS")
    assert row["other_config"]["max-rate"] == "80000000"
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    assert switch_of(live).rows("QoS") == []
    live.require_clean()


def test_a_vhost_user_port(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """Its policers follow, also kube-ovn's annotation on nodes that read it; it joins a mirror and leaves it again."""
    live.settings["USERSPACE_CNI_KUBEOVN_ANNOTATIONS"] = "true"
    live.settings["USERSPACE_CNI_REQUIRE_VOLUME"] = "false"
    network, port = live.network(), port_of(ifname="eth0")
    live.start()
    result = succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    switch = switch_of(live)
    output = {**network, "name": "out", "mirrorOutput": "ids"}
    succeeded(live.run("ADD", output, sandbox, OTHER))
    annotate(api, kubeovn="3", out="2M", mirror='{"eth0": "ids"}')
    follows(live, (3_000_000, 2_000_000))
    assert "egress-policer" in switch.appctl("qos/show", port)
    assert switch.interface(port)["ingress_policing_rate"] == 2000
    uuid = switch.port(port)["_uuid"]
    row = switch.row("Mirror", "ids")
    assert (row["select_src_port"], row["select_dst_port"]) == (uuid, uuid)
    annotate(api, kubeovn=None, out=None, mirror=None)
    follows(live, (None, None))
    assert (switch.rows("QoS"), switch.interface(port)["ingress_policing_rate"]) == ([], 0)
    assert switch.row("Mirror", "ids")["select_src_port"] == []
    succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"))
    succeeded(live.run("DEL", output, sandbox, OTHER))
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    live.require_clean()


def test_what_limits_drop(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """Metrics and `show` have rate and drops of each limited direction, and nothing of unlimited ones."""
    network = podnet(live)
    annotate(api, out="1M")
    live.start()
    succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    inside(sandbox, sys.executable, "-c", FLOOD)
    drops = live.metric("port_limit_drops_total", direction="from_pod", pod="app", interface="eth0")
    assert drops > 0
    assert live.metric("port_limit_bits_per_second", direction="from_pod") == 1_000_000
    assert live.metric("port_limit_bits_per_second", direction="to_pod") == 0
    annotate(api, to="2M")
    follows(live, (2_000_000, 1_000_000))
    [shown] = decoded(live, "show", "app")
    assert shown["limit_drops"] == {"to_pod": 0, "from_pod": drops}
    assert f"1Mbit/s, burst 524.3kbit, {int(drops)} frames dropped" in cli(live, "show", "app").stdout
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    live.require_clean()


@pytest.mark.parametrize("point", ["after shaper", "after port", "before writing ready"])
def test_killed_amid(live: LiveNode, sandbox: str, api: ApiServer, point: str) -> None:
    """The next agent finishes changes that a killed one had begun, and those that came while there was none."""
    network = podnet(live)
    live.start()
    succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    live.kill()
    live.start(until=point)
    annotate(api, to="20M", out="5M")
    live.await_death()
    annotate(api, out="6M")
    live.start()
    follows(live, (20_000_000, 6_000_000))
    assert in_force(live, sandbox) == ("20Mbit", "6Mbit")
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    assert switch_of(live).rows("QoS") == []
    live.require_clean()


def test_what_changes_while_a_verb_runs(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """A change that comes while a call works on the attachment is applied after it, without waiting for a pass."""
    live.settings["USERSPACE_CNI_TICK_S"] = "600"
    network = podnet(live)
    live.start()
    succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    journal = Journal(str(live.state), f"{live.directory}/run", print, boot_id)
    with journal.turn_lock(record_key(CONTAINER, "eth0"), Deadline.after(60)):
        annotate(api, to="20M")
        live.page("/api/v1/attachments")
        assert limits(live) == (None, None)
    follows(live, (20_000_000, None))
    for rate in range(1, 6):
        annotate(api, out=f"{rate}M")
        succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
        succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    live.await_clean()
    assert switch_of(live).rows("QoS") == []


def test_no_gap(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """While its limits are set, changed and removed, a pod's echo requests below them are answered: no two in a row are lost."""
    network = podnet(live)
    live.start()
    with netns() as other:
        succeeded(live.run("ADD", network, sandbox, ifname="eth0", CNI_ARGS=POD.args))
        second = succeeded(live.run("ADD", network, other, OTHER, ifname="eth0"))
        address = second["ips"][0]["address"].partition("/")[0]
        assert pings(sandbox, address) == 3
        with pinging(sandbox, address) as answered:
            for rate in range(20, 60):
                annotate(api, to=f"{rate}M", out=f"{rate}M")
                follows(live, (rate * 10**6,) * 2)
            annotate(api, to=None, out=None)
            follows(live, (None, None))
        assert len(answered) > 10
        assert max(later - earlier for earlier, later in pairwise(answered)) <= 2
        succeeded(live.run("DEL", network, other, OTHER, ifname="eth0"))
        succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    live.require_clean()


@pytest.mark.parametrize("byte_s", [0.0, 0.0005], ids=["at-once", "slow-api"])
def test_addresses_that_come(live: LiveNode, sandbox: str, api: ApiServer, byte_s: float) -> None:
    """ADD waits for the pod's addresses and uses them, with MAC and gateway; a slow watch only delays it."""
    live.settings["USERSPACE_CNI_KUBEOVN_ANNOTATIONS"] = "true"
    api.faults.append(Fault("WATCH", drip=byte_s))
    host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    network = live.network(host=host, addresses="annotations")
    live.start()
    process = start(live, live.variables("ADD", sandbox, ifname="eth0", CNI_ARGS=POD.args), json.dumps(network).encode())
    wait_until(lambda: live.metric("adds_waiting") == 1, what="ADD to wait")
    wanted = {"ip_address": "192.0.2.7", "cidr": "192.0.2.0/24", "gateway": "192.0.2.1", "mac_address": "02:00:00:00:53:07"}
    said = {f"ovn.kubernetes.io/{key}": value for key, value in wanted.items()}
    api.change(POD.namespace, POD.name, {"metadata": {"annotations": said}})
    result = succeeded(finish(process, "ADD"))
    assert (result["ips"][0]["address"], result["ips"][0]["gateway"]) == ("192.0.2.7/24", "192.0.2.1")
    assert addresses(sandbox, "eth0") == ["192.0.2.7/24"]
    assert links(sandbox)["eth0"]["address"] == wanted["mac_address"]
    succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"))
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))
    live.require_clean()


def test_addresses_that_never_come(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """ADD ends in time, names the missing annotations, and leaves nothing."""
    live.settings |= {"USERSPACE_CNI_KUBEOVN_ANNOTATIONS": "true", "USERSPACE_CNI_DEADLINE_S": "3"}
    host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    live.start()
    answer = live.run("ADD", live.network(host=host, addresses="annotations"), sandbox, ifname="eth0", CNI_ARGS=POD.args)
    refused(answer, 11, "ovn.kubernetes.io/ip_address", "default/app")
    live.require_clean()
