"""The agent's next pass reverts what another program changed of an attachment.

Repeated changes are reverted less and less often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.agent.living import LiveNode, container, port_of
from tests.agent.test_agent_events import events
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.links import inside
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch, wait_until

RATES = {"ingressRate": 20_000_000, "ingressBurst": 2_000_000, "egressRate": 20_000_000, "egressBurst": 2_000_000}
PORT, MIRROR = "PORT", "ids"
"""The placeholder for the port's name in `WRITTEN`."""
WRITTEN = {
    "tag": ("set", "Port", PORT, "tag=9"),
    "no tag": ("clear", "Port", PORT, "tag"),
    "trunks": ("set", "Port", PORT, "trunks=5"),
    "vlan_mode": ("set", "Port", PORT, "vlan_mode=native-tagged"),
    "mtu_request": ("clear", "Interface", PORT, "mtu_request"),
    "vhost-server-path": ("set", "Interface", PORT, "options:vhost-server-path=/tmp/elsewhere"),
    "attached-mac": ("remove", "Interface", PORT, "external_ids", "attached-mac"),
    "no limit to the pod": ("clear", "Port", PORT, "qos"),
    "no limit from the pod": ("set", "Interface", PORT, "ingress_policing_rate=0"),
    "burst from the pod": ("set", "Interface", PORT, "ingress_policing_burst=1"),
    "part in a mirror": ("remove", "Port", PORT, "external_ids", f"mirror-from/{MIRROR}"),
    "no source of the mirror": ("clear", "Mirror", MIRROR, "select_src_port"),
    "mark of the interface": ("set", "Interface", PORT, "external_ids:network=another"),
    "MTU of the bridge": ("clear", "Interface", "br-test", "mtu_request"),
}


def tagged(live: LiveNode) -> dict[str, Any]:
    """A network whose ports have a value in each column."""
    network = live.network("1.0.0", bandwidth=RATES, mirrors=[{"name": MIRROR, "from": True}])
    return {**network, "host": {**network["host"], "mtu": 1400, "bridge": {"bridgeName": "br-test", "vlanId": 7}}}


def trunked(live: LiveNode) -> dict[str, Any]:
    """The same network, with a trunk."""
    network = tagged(live)
    return {**network, "host": {**network["host"], "bridge": {"bridgeName": "br-test", "trunks": [5, 6], "vlanMode": "trunk"}}}


def checked(
    live: LiveNode, network: dict[str, Any], result: dict[str, Any], path: str, number: int, ifname: str = "net1"
) -> Call:
    return live.run("CHECK", {**network, "prevResult": result}, path, container(number), ifname)


def rows(switch: Switch, port: str) -> list[dict[str, Any]]:
    """The columns that programs write of a port, its interface, its limit and the mirror."""
    kept = {"Port": ("tag", "trunks", "vlan_mode", "external_ids"), "Mirror": ("select_src_port",)}
    kept |= {"Interface": ("type", "options", "mtu_request", "external_ids", "ingress_policing_rate", "ingress_policing_burst")}
    found = [row for table in ("Port", "Interface") for row in switch.rows(table, f"name={port}")]
    columns = [*kept["Port"], *kept["Interface"]]
    return [{key: row[key] for key in columns if key in row} for row in (*found, *switch.rows("Mirror", f"name={MIRROR}"))]


def test_each_column(live: LiveNode) -> None:
    """A value that was written or cleared by hand in OVSDB is restored, logged and counted, and CHECK passes."""
    switch = switch_of(live)
    live.start()
    with ExitStack() as stack:
        places = [stack.enter_context(netns()) for _ in range(len(WRITTEN) + 1)]
        output = live.network("1.0.0", mirrorOutput=MIRROR)
        succeeded(live.run("ADD", output, places[-1], container(99)))
        for number, (what, argv) in enumerate(WRITTEN.items()):
            port, network = port_of(container(number)), tagged(live)
            result = succeeded(live.run("ADD", network, places[number], container(number)))
            before = rows(switch, port)
            live.tick()  # from now on only what changes is looked at
            switch.vsctl("--no-wait", *(port if each == PORT else each for each in argv))
            wait_until(lambda done=number + 1: live.done("put-back-port") >= done, what=f"{what} to be put back")  # type: ignore[misc]
            succeeded(checked(live, network, result, places[number], number))
            assert rows(switch, port) == before, what
            succeeded(live.run("DEL", network, places[number], container(number)))
        assert live.done("put-back-port") == len(WRITTEN)
        assert live.done("again-port") == 0
        assert live.log.read_text().count("putting back what another program has changed") == len(WRITTEN)
        succeeded(live.run("DEL", output, places[-1], container(99)))


def test_a_limit_that_is_written(live: LiveNode, sandbox: str) -> None:
    """Another rate in the limit's own row is reverted, also in the switch."""
    switch, network = switch_of(live), trunked(live)
    live.start()
    result = succeeded(live.run("ADD", network, sandbox))
    [limit] = switch.rows("QoS")
    live.tick()
    switch.vsctl("set", "QoS", str(limit["_uuid"]), "other_config:cir=1")
    live.await_done("put-back-port", 1)
    succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox))
    assert "cir: 2500000" in switch.appctl("qos/show", port_of())
    succeeded(live.run("DEL", network, sandbox))


def test_two_programs_do_not_fight(live: LiveNode, sandbox: str) -> None:
    """A value that another program writes back at once is left alone for a while: CHECK and the log report it.

    A later change of it is not reverted sooner.
    """
    switch, network = switch_of(live), tagged(live)
    live.start()
    result = succeeded(live.run("ADD", network, sandbox))
    switch.vsctl("set", "Port", port_of(), "tag=9")
    live.await_done("put-back-port", 1)
    switch.vsctl("set", "Port", port_of(), "tag=9")
    live.tick(4)
    assert live.done("put-back-port") == 1
    assert switch.port(port_of())["tag"] == 9
    refused(live.run("CHECK", {**network, "prevResult": result}, sandbox), 103, "tag", "9")
    assert "another program has changed again what was put back" in live.log.read_text()
    succeeded(live.run("DEL", network, sandbox))
    live.await_clean()


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """An API server for which the node's agent has credentials of its own."""
    with ApiServer() as started:
        live.settings["USERSPACE_CNI_KUBECONFIG"] = started.kubeconfig(live.directory)
        yield started


def test_the_pod_is_told(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """An event says what differed, and another one that it is changed again and again."""
    pod = Pod(volume={"emptyDir": {}})
    live.empty_dir(pod.uid)
    pod.create(api)
    live.start()
    network = tagged(live)
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    switch_of(live).vsctl("set", "Port", port_of(), "tag=9")
    told = events(api, "PortChanged")["PortChanged"]
    assert "tag: expected 7, found 9" in told["message"].replace(", tag", "tag")
    switch_of(live).vsctl("set", "Port", port_of(), "tag=9")
    assert "changed again" in events(api, "PortDegraded")["PortDegraded"]["message"]
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    live.await_clean()


def podnet(live: LiveNode) -> dict[str, Any]:
    """A network of ordinary pods with a limit for what leaves them."""
    host = {"iftype": "veth", "port": "system", "bridge": {"bridgeName": "br-test"}}
    network = {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "ipam": live.host_local()}
    return {**network, "bandwidth": {"egressRate": 20_000_000, "egressBurst": 2_000_000}}


def accepting(switch: Switch, _: str, host: str) -> None:
    """Make the guard let frames pass."""
    table = re.search(r"table netdev (\S+)", inside(switch.netns, "nft", "list", "ruleset"))
    assert table
    inside(switch.netns, "nft", "add", "rule", "netdev", table[1], host, "accept")


def slower(_: Switch, pod: str, __: str) -> None:
    """Change the rate of the pod's limit."""
    handle = json.loads(inside(pod, "tc", "-json", "qdisc", "show", "dev", "eth0"))[0]["handle"]
    inside(
        pod,
        "tc",
        "qdisc",
        "replace",
        "dev",
        "eth0",
        "root",
        "handle",
        handle,
        "tbf",
        "rate",
        "1mbit",
        "burst",
        "9k",
        "limit",
        "9k",
    )


KERNEL: dict[str, Callable[[Switch, str, str], object]] = {
    "guard": accepting,
    "shaper": slower,
    "MAC": lambda switch, _, host: inside(switch.netns, "ip", "link", "set", host, "address", "02:00:00:00:00:77"),
    "queue": lambda switch, _, host: inside(switch.netns, "ip", "link", "set", host, "txqueuelen", "7"),
}


@pytest.mark.parametrize("what", KERNEL)
def test_the_kernels_part(live: LiveNode, sandbox: str, what: str) -> None:
    """A host end, its guard and the pod's limit are restored; CHECK passes, and the pod's end is left alone.

    ovs-vswitchd itself restores the MTU of a host end.
    """
    live.start()
    network, kind = podnet(live), what if what in ("guard", "shaper") else "link"
    result = succeeded(live.run("ADD", network, sandbox, ifname="eth0"))
    before = inside(sandbox, "ip", "-o", "-4", "address", "show", "dev", "eth0")
    KERNEL[what](switch_of(live), sandbox, result["interfaces"][0]["name"])
    live.await_done(f"put-back-{kind}", 1)
    succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"))
    assert inside(sandbox, "ip", "-o", "-4", "address", "show", "dev", "eth0") == before
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))


@pytest.mark.parametrize(
    "argv",
    [
        ("address", "flush", "dev", "eth0"),
        ("route", "del", "default"),
        ("route", "replace", "default", "via", "10.56.0.9"),
        ("link", "set", "eth0", "mtu", "1300"),
        ("link", "set", "eth0", "down"),
    ],
    ids=" ".join,
)
def test_what_is_in_the_pod_is_the_pods(live: LiveNode, sandbox: str, argv: tuple[str, ...]) -> None:
    """Later plugins of a chain, a VM's binding and a VPN change the pod's end
    on purpose: CHECK reports it, and no pass reverts it.
    """
    live.start()
    network = podnet(live)
    network["ipam"]["routes"] = [{"dst": "0.0.0.0/0", "gw": "10.56.0.1"}]
    result = succeeded(live.run("ADD", network, sandbox, ifname="eth0"))
    inside(sandbox, "ip", *argv)
    changed = inside(sandbox, "ip", "-o", "-4", "address", "show", "dev", "eth0") + inside(sandbox, "ip", "route")
    refused(live.run("CHECK", {**network, "prevResult": result}, sandbox, ifname="eth0"), 103)
    live.tick(3)
    assert inside(sandbox, "ip", "-o", "-4", "address", "show", "dev", "eth0") + inside(sandbox, "ip", "route") == changed
    assert live.done("put-back-link") + live.done("again-link") == 0
    succeeded(live.run("DEL", network, sandbox, ifname="eth0"))


def test_directory_and_device_info(live: LiveNode, sandbox: str) -> None:
    """The mode of a directory of ours is restored, and so is a device-info file that was removed or changed."""
    live.start()
    network = live.network("1.0.0")
    network["host"]["vhost"] |= {"dirmode": "0750"}
    file = live.device_info / "cni" / "info.json"
    file.parent.mkdir(parents=True)
    asked = {**network, "runtimeConfig": {"CNIDeviceInfoFile": str(file)}, "capabilities": {"CNIDeviceInfoFile": True}}
    succeeded(live.run("ADD", asked, sandbox))
    [directory] = [path for path in live.shared.iterdir() if path.is_dir()]
    live.tick()
    directory.chmod(0o777)
    live.await_done("put-back-directory", 1)
    assert directory.stat().st_mode & 0o777 == 0o750
    text = file.read_text()
    file.unlink()
    live.await_done("put-back-device-info", 1)
    assert file.read_text() == text
    succeeded(live.run("DEL", asked, sandbox))
