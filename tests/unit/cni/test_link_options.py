"""Networks of kernel links: allowed keys, keys of the other kind of interface, and combinations that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.node.configurations import read
from userspace_cni.base.errors import InvalidConfig, Undecodable, UnsupportedField, UserspaceError
from userspace_cni.cni.interface_keys import LinkOptions, choose_kernel_port, require_openable

IPAM = {"type": "host-local", "subnet": "10.56.217.0/24"}
SYSTEM = {"iftype": "veth", "port": "system"}


def veth(**keys: Any) -> dict[str, Any]:
    """A host block of a kernel link."""
    return {"iftype": "veth", **keys}


def test_a_plain_veth() -> None:
    """The shortest network of a kernel link: nothing of it is deprecated or ignored."""
    warnings: list[str] = []
    options = read(warnings, host=veth(), container={"iftype": "veth"}, ipam=IPAM)
    assert (options.link, options.ovs_role, options.role_given, warnings) == (LinkOptions(), "client", False, [])
    assert read().link is None


def test_everything_that_a_veth_can_have() -> None:
    """Each key of a kernel link arrives."""
    options = read(
        host=veth(port="system", mtu=9000, mac="02:00:00:00:00:07", bridge={"bridgeName": "br1", "vlanId": 100}),
        ipam=IPAM,
        gatewayCheck=True,
        duplicateCheck=True,
        nodeRoutes=True,
        serviceCIDRs=["10.96.0.0/12", "2001:db8::/108"],
    )
    assert options.link == LinkOptions("system", "netdev", True, True, True, ("10.96.0.0/12", "2001:db8::/108"))
    assert (options.mtu, options.asked.mac, options.bridge, options.vlan.tag) == (9000, "02:00:00:00:00:07", "br1", 100)
    assert read(host=veth(), ipam=IPAM, serviceCIDRs="node").link == LinkOptions(node_services=True)


def test_the_kernels_datapath() -> None:
    """`host.engine: ovs` means a bridge of the kernel's datapath, which opens
    links in one way, whatever the node's setting is.
    """
    link = read(host=veth(engine="ovs")).link
    assert link
    assert (link.datapath, choose_kernel_port(link, "afxdp")) == ("system", "system")


@pytest.mark.parametrize(
    ("said", "setting", "kind"),
    [("", "auto", "system"), ("", "afxdp", "afxdp"), ("af_xdp", "afxdp", "af_xdp"), ("auto", "afxdp", "system")],
)
def test_how_the_host_end_is_opened(said: str, setting: str, kind: str) -> None:
    """The network's value takes precedence over the node's; `auto` in either means `system`."""
    assert choose_kernel_port(LinkOptions(said), setting) == kind


def test_addresses_of_the_pods_annotations() -> None:
    """A network may leave its addresses to the pod's annotations, for either kind of interface, and asks what needs a gateway."""
    assert read(addresses="annotations").addresses_noted
    assert read(host=veth(), addresses="annotations", gatewayCheck=True).addresses_noted
    assert not read(ipam=IPAM).addresses_noted


@pytest.mark.parametrize(
    ("keys", "code", "named"),
    [
        ({"host": {"iftype": "internal"}}, 2, "'host.iftype' is 'internal': ovs-vswitchd makes a new tap"),
        ({"host": {"iftype": "vetch"}}, 7, "'host.iftype' is 'vetch'"),
        ({"host": veth(netType="interface")}, 2, "'host.netType' is 'interface'"),
        ({"host": veth(port="dpdk")}, 7, "'host.port' is 'dpdk'"),
        ({"host": veth(port=1)}, 6, "'host.port' is a whole number"),
        ({"host": veth(engine="ovs", port="afxdp")}, 2, "'host.port' is 'afxdp' with 'host.engine' 'ovs'"),
        ({"host": veth(port="afxdp", mtu=9000)}, 2, "'host.mtu' is 9000: a port of type 'afxdp'"),
        ({"host": veth(port="af_packet", mtu=1501)}, 2, "'host.mtu' is 1501: a port of type 'af_packet'"),
        ({"host": veth(port="af_xdp", mtu=9000)}, 2, "'host.mtu' is 9000: a port of type 'af_xdp'"),
        ({"host": veth(vhost={"mode": "client"})}, 2, "'host.vhost' is {'mode': 'client'}"),
        ({"host": veth(), "container": {"vhost": {"queues": 2}}}, 2, "'container.vhost' is {'queues': 2}"),
        ({"host": veth(), "container": {"iftype": "vhostuser"}}, 7, "'container.iftype' is 'vhostuser'"),
        ({"container": {"iftype": "veth"}}, 7, "'container.iftype' is 'veth'"),
        ({"host": veth(), "consumer": "kubevirt"}, 7, "'consumer' is 'kubevirt'"),
        ({"host": veth(), "ipam": {"type": "dhcp"}}, 2, "'ipam.type' is 'dhcp': its lease comes before"),
        ({"host": veth(), "ipMasq": True}, 2, "'ipMasq' is true"),
        ({"host": veth(), "gatewayCheck": True}, 7, "'gatewayCheck' is true, and the interface gets no addresses"),
        ({"host": veth(), "duplicateCheck": True}, 7, "'duplicateCheck' is true, and"),
        ({"host": veth(), "nodeRoutes": True}, 7, "'nodeRoutes' is true, and"),
        ({"host": veth(), "serviceCIDRs": ["10.96.0.0/12"]}, 7, "'serviceCIDRs' is ['10.96.0.0/12'], and"),
        ({"host": veth(), "ipam": IPAM, "serviceCIDRs": ["10.96.0.1/12"]}, 7, "'serviceCIDRs' holds '10.96.0.1/12'"),
        ({"host": veth(), "ipam": IPAM, "serviceCIDRs": ["10.96.0.0"]}, 7, "'serviceCIDRs' holds '10.96.0.0'"),
        ({"host": veth(), "ipam": IPAM, "serviceCIDRs": ["node"]}, 7, "'serviceCIDRs' holds 'node'"),
        ({"host": veth(), "ipam": IPAM, "serviceCIDRs": "10.96.0.0/12"}, 7, "'serviceCIDRs' is '10.96.0.0/12'"),
        ({"host": veth(), "serviceCIDRs": "node"}, 7, "'serviceCIDRs' is 'node', and"),
        ({"serviceCIDRs": "node", "ipam": IPAM}, 2, "'serviceCIDRs' is 'node': a vhost-user interface"),
        ({"host": veth(), "ipam": IPAM, "serviceCIDRs": ["10.0.0.0/8"] * 65}, 7, "'serviceCIDRs' has 65 items"),
        ({"host": veth(), "ipam": IPAM, "nodeRoutes": "yes"}, 6, "'nodeRoutes' is a string"),
        ({"host": {"engine": "ovs"}}, 2, "'host.engine' is 'ovs': the kernel's datapath has no vhost-user ports"),
        ({"host": {"port": "afxdp"}}, 2, "'host.port' is 'afxdp': a vhost-user interface"),
        ({"gatewayCheck": True, "ipam": IPAM}, 2, "'gatewayCheck' is True: a vhost-user interface"),
        ({"nodeRoutes": True, "ipam": IPAM}, 2, "'nodeRoutes' is True: a vhost-user interface"),
        ({"serviceCIDRs": ["10.96.0.0/12"], "ipam": IPAM}, 2, "'serviceCIDRs' is ['10.96.0.0/12']: a vhost-user interface"),
        ({"addresses": "annotations", "ipam": IPAM}, 7, "'addresses' is 'annotations' beside 'ipam.type' 'host-local'"),
        ({"addresses": "dhcp"}, 7, "'addresses' is 'dhcp'"),
        ({"mirrorOutput": "ids", "ipam": IPAM}, 2, "'mirrorOutput' is 'ids' beside 'ipam.type' 'host-local'"),
        ({"mirrorOutput": "ids", "addresses": "annotations"}, 2, "'mirrorOutput' is 'ids' beside 'addresses' 'annotations'"),
        ({"mirrorOutput": "ids", "mirrors": [{"name": "m"}]}, 7, "'mirrorOutput' is 'ids' beside 'mirrors' with 'm'"),
        ({"host": veth(), "mirrorOutput": "ids", "nodeRoutes": True}, 7, "'nodeRoutes' is true, and"),
        ({"netem": {"latency_ms": 5}}, 2, "'netem' is {'latency_ms': 5}: a port of type 'vhostuser'"),
        ({"host": veth(port="afxdp"), "netem": {"loss_percent": 1}}, 2, "a port of type 'afxdp' has no queueing discipline"),
        ({"host": SYSTEM, "netem": {"limit": 9}, "bandwidth": {"ingressRate": 10**8}}, 2, "beside an ingressRate of 100000000"),
        ({"host": veth(port="afxdp"), "bandwidth": {"ingressRate": 10**8}}, 2, "'bandwidth.ingressRate' is 100000000: OVS does"),
    ],
)
def test_what_cannot_be(keys: dict[str, Any], code: int, named: str) -> None:
    """Each impossible combination is one error with key, value and what would work, before any effect."""
    with pytest.raises(UserspaceError) as refused:
        read(**keys)
    kind = {2: UnsupportedField, 6: Undecodable, 7: InvalidConfig}[code]
    assert (type(refused.value), refused.value.code) == (kind, code)
    assert named in refused.value.message
    assert refused.value.details


def test_a_large_mtu_by_the_nodes_setting() -> None:
    """An MTU that the node's own kind of port does not carry is refused where that is known."""
    require_openable("system", 9000)
    require_openable("afxdp", None)
    with pytest.raises(UnsupportedField, match=r"'host\.mtu' is 9000"):
        require_openable("afxdp", 9000)


def test_what_a_veth_ignores() -> None:
    """Keys about a socket's place have no meaning for a kernel link, and cause a warning."""
    warnings: list[str] = []
    read(warnings, host=veth(memif={"role": "master"}), sharedDir="/x")
    assert [key for key in ("'sharedDir'", "'host.memif'") if key not in str(warnings)] == []
