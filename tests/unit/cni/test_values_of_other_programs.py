"""Values of keys that other programs read, too: each form means here what it means there, or is refused by name.

Each row names the program and the function that decides there: ovs-cni (`splitVlanIds` and `CmdAdd` of pkg/plugin,
`AttachPortToMirrorProducer` of pkg/ovsdb), the reference plugins (bridge, bandwidth, static, `ConfigureIface` of pkg/ipam),
kube-ovn (pkg/daemon and pkg/ovs), Intel's userspace plugin (pkg/types). What they leave out without a word is refused here. JSON
is read by Go's rules: keys in any case, null as absent, no text for a number or a boolean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.lab.node.configurations import read
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.gateways import mac_address
from userspace_cni.base.limits import UNLIMITED, Limits, Netem, Rate
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.addressing import read_addresses_noted, read_noted
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.cni.bandwidth import limits_of
from userspace_cni.cni.mirror_chain import PRODUCER, ChainedPart, read_part
from userspace_cni.cni.mirror_keys import KUBEOVN_MIRROR, mirrors_of
from userspace_cni.cni.request import Network
from userspace_cni.cni.result import LINK_SCOPE, read_addresses

M = 1_000_000
ETH0 = PodInterface("podnet", "blue", "eth0", kubeovn_read=True)
NET1 = PodInterface("podnet", "blue", "net1", kubeovn_read=True)
OVN = "ovn.kubernetes.io/"


class Refused(NamedTuple):
    """An error with this code that names the value's key."""

    code: int
    named: str


def table(rows: Sequence[tuple[object, ...]]) -> list[Any]:
    """Rows of which the first column says what the other programs make of the value: the name of the case."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in rows]


def refusal(error: pytest.ExceptionInfo[UserspaceError]) -> tuple[int, str, str]:
    return error.value.code, error.value.message, error.value.details


def agrees(expected: object, ask: Any) -> None:
    """Require that `ask` returns what is expected, or refuses by name and says what would be right."""
    if not isinstance(expected, Refused):
        assert ask() == expected
        return
    with pytest.raises(UserspaceError) as error:
        ask()
    code, message, details = refusal(error)
    assert (code, expected.named in message, bool(details)) == (expected.code, True, True), message


# -- VLANs --------------------------------------------------------------------------------------------------------------------

NO_TRUNK = Refused(7, "'host.bridge.trunks' holds")
TRUNKS: list[tuple[str, object, object]] = [
    ("ovs-cni, bridge: one", {"id": 5}, (5,)),
    ("ovs-cni: frames without a tag; bridge: an error", {"id": 0}, (0,)),
    ("ovs-cni, bridge: a range with its ends", {"minID": 10, "maxID": 12}, (10, 11, 12)),
    ("ovs-cni, bridge: a range of one", {"minID": 10, "maxID": 10}, (10,)),
    ("ovs-cni, bridge: both at once are all of these", {"id": 5, "minID": 10, "maxID": 12}, (5, 10, 11, 12)),
    ("ovs-cni, bridge: both at once, one in the other", {"id": 11, "minID": 10, "maxID": 12}, (10, 11, 12)),
    ("Go: keys in any case", {"MINID": 10, "maxid": 11, "Id": 5}, (5, 10, 11)),
    ("Go: null is absent", {"id": None, "minID": 10, "maxID": 10}, (10,)),
    ("Go: null is absent", {"id": 5, "minID": None, "maxID": None}, (5,)),
    ("ovs-cni: nothing, in silence; bridge: an error", {"minID": 10}, NO_TRUNK),
    ("ovs-cni: nothing, in silence; bridge: an error", {"maxID": 10}, NO_TRUNK),
    ("ovs-cni: 5 alone, in silence; bridge: an error", {"id": 5, "minID": 10}, NO_TRUNK),
    ("ovs-cni: 5 alone, in silence; bridge: an error", {"id": 5, "maxID": 10}, NO_TRUNK),
    ("ovs-cni: nothing, in silence; bridge: an error", {"minID": 0, "maxID": 10}, NO_TRUNK),
    ("ovs-cni, bridge: an error", {"minID": 12, "maxID": 10}, NO_TRUNK),
    ("ovs-cni: an error alone, in silence beside others; bridge: nothing, in silence", {}, NO_TRUNK),
    ("ovs-cni, bridge: left out, in silence", {"id": 5, "vlan": 7}, NO_TRUNK),
    ("Go: the last of the two", {"id": 5, "ID": 6}, NO_TRUNK),
    ("OVS refuses it; bridge: an error", {"id": 4096}, NO_TRUNK),
    ("reserved by 802.1Q; bridge: an error", {"id": 4095}, NO_TRUNK),
    ("bridge: an error", {"minID": 10, "maxID": 4095}, NO_TRUNK),
    ("Go: an error", {"id": -1}, NO_TRUNK),
    ("Go: an error", {"id": "5"}, NO_TRUNK),
    ("Go: an error", {"id": 5.0}, NO_TRUNK),
    ("Go: an error", {"id": True}, NO_TRUNK),
    ("Go: an error", "x", NO_TRUNK),
    ("ovs-cni, bridge: a crash", None, NO_TRUNK),
]


@pytest.mark.parametrize(("item", "expected"), table(TRUNKS))
def test_an_item_of_trunks(item: object, expected: object) -> None:
    """An item of ovs-cni's `trunk` and of the bridge plugin's `vlanTrunk` is all that it says, or is refused."""
    agrees(expected, lambda: read(host={"bridge": {"trunks": [item]}}).vlan.trunks)


VLANS: list[tuple[str, dict[str, Any], object]] = [
    ("ovs-cni, kube-ovn, Intel's: absent is no tag and all VLANs", {}, Vlan()),
    ("Go: null is absent", {"vlanId": None, "trunks": None, "vlanMode": None}, Vlan()),
    ("bridge, kube-ovn: 0 is none", {"vlanId": 0}, Vlan()),
    ("ovs-cni: vlan 0 is a port of untagged frames alone, which is this here", {"vlanMode": "access"}, Vlan(mode="access")),
    ("ovs-cni: an empty trunk without a vlan is all VLANs", {"trunks": []}, Vlan()),
    ("all: the tag", {"vlanId": 100}, Vlan(100)),
    ("bridge, kube-ovn: the last", {"vlanId": 4094}, Vlan(4094)),
    ("bridge: an error", {"vlanId": 4095}, Refused(7, "'host.bridge.vlanId' is 4095")),
    ("Go, bridge: an error", {"vlanId": -1}, Refused(7, "'host.bridge.vlanId' is -1")),
    ("Go: an error", {"vlanId": "100"}, Refused(6, "'host.bridge.vlanId' is a string")),
    ("Go: an error", {"vlanId": True}, Refused(6, "'host.bridge.vlanId' is a boolean")),
    ("ovs-cni: the tag is left out; OVS: the trunks are", {"vlanId": 5, "trunks": [10]}, Refused(7, "'host.bridge.vlanId' is 5")),
    ("OVS: the tag is left out", {"vlanId": 5, "vlanMode": "trunk"}, Refused(7, "'host.bridge.vlanId' is 5")),
    ("OVS: the tag is left out", {"vlanId": 5, "trunks": [10], "vlanMode": "trunk"}, Refused(7, "'host.bridge.vlanId' is 5")),
    ("OVS: the trunks are left out", {"trunks": [10], "vlanMode": "access"}, Refused(7, "'host.bridge.trunks'")),
    (
        "OVS: the trunks are left out",
        {"vlanId": 5, "trunks": [10], "vlanMode": "dot1q-tunnel"},
        Refused(7, "'host.bridge.trunks'"),
    ),
    ("OVS: both", {"vlanId": 5, "trunks": [10], "vlanMode": "native-untagged"}, Vlan(5, (10,), "native-untagged")),
    ("OVS: both", {"vlanId": 5, "trunks": [10], "vlanMode": "native-tagged"}, Vlan(5, (10,), "native-tagged")),
]


@pytest.mark.parametrize(("bridge", "expected"), table(VLANS))
def test_the_vlans_of_a_port(bridge: dict[str, Any], expected: object) -> None:
    """Tag, trunks and mode together are a port of which Open vSwitch leaves nothing out."""
    agrees(expected, lambda: read(host={"bridge": bridge}).vlan)


# -- limits -------------------------------------------------------------------------------------------------------------------

TEN = Limits(to_pod=Rate(10 * M, M))
LIMITS: list[tuple[str, dict[str, Any], object]] = [
    ("bandwidth: rate in bit/s, burst in bits, towards the pod", {"ingressRate": 10 * M, "ingressBurst": M}, TEN),
    ("bandwidth: from the pod", {"egressRate": 10 * M, "egressBurst": M}, Limits(from_pod=Rate(10 * M, M))),
    ("bandwidth: 0 is no limit", {"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0}, UNLIMITED),
    ("bandwidth: none said is no limit", {}, UNLIMITED),
    ("Go: null is absent", {"ingressRate": None, "ingressBurst": None}, UNLIMITED),
    ("Go: keys in any case, as containerd writes them", {"IngressRate": 10 * M, "INGRESSBURST": M}, TEN),
    ("bandwidth: an error; here 100 ms of the rate", {"ingressRate": 10 * M}, TEN),
    ("bandwidth: an error; here 100 ms of the rate", {"ingressRate": 10 * M, "ingressBurst": 0}, TEN),
    ("bandwidth: an error", {"ingressBurst": M}, Refused(7, "ingressBurst' is 1000000 without a rate")),
    ("bandwidth: an error", {"ingressRate": 0, "egressBurst": M}, Refused(7, "egressBurst' is 1000000 without a rate")),
    ("Go: an error", {"ingressRate": -1}, Refused(7, "ingressRate' is -1")),
    ("Go: an error", {"ingressRate": 10 * M, "ingressBurst": -1}, Refused(7, "ingressBurst' is -1")),
    ("Go: an error", {"ingressRate": "10M"}, Refused(6, "ingressRate' is a string")),
    ("Go: an error", {"ingressRate": 1e7}, Refused(6, "ingressRate' is a number")),
    ("Go: an error", {"ingressRate": True}, Refused(6, "ingressRate' is a boolean")),
    ("bandwidth: as good as none", {"ingressRate": 7}, Refused(7, "ingressRate' is 7")),
    ("bandwidth: no subnets are all traffic", {"ingressRate": 10 * M, "ingressBurst": M, "shapedSubnets": []}, TEN),
    ("bandwidth: no subnets are all traffic", {"ingressRate": 10 * M, "ingressBurst": M, "unshapedSubnets": None}, TEN),
    ("bandwidth: what goes there is limited", {"ingressRate": M, "shapedSubnets": ["10.0.0.0/8"]}, Refused(2, "shapedSubnets'")),
    ("bandwidth: all else is limited", {"ingressRate": M, "UnshapedSubnets": ["10.0.0.0/8"]}, Refused(2, "unshapedSubnets'")),
    ("Go: an error", {"ingressRate": M, "shapedSubnets": "10.0.0.0/8"}, Refused(6, "shapedSubnets' is a string")),
]


@pytest.mark.parametrize("place", ["bandwidth", "runtimeConfig.bandwidth"])
@pytest.mark.parametrize(("said", "expected"), table(LIMITS))
def test_limits(place: str, said: dict[str, Any], expected: object) -> None:
    """Limits of a network, and those of its runtime, are read as the bandwidth plugin's `validateRateAndBurst` reads them."""
    keys: dict[str, Any] = {"bandwidth": said} if place == "bandwidth" else {"runtimeConfig": {"bandwidth": said}}
    warnings: list[str] = []
    agrees(expected, lambda: getattr(read(warnings, **keys).bandwidth, "network" if place == "bandwidth" else "runtime"))
    assert [text for text in warnings if "andwidth" in text] == []


RATES: list[tuple[str, dict[str, str], object]] = [
    ("Atoi, Mbit/s towards the pod", {"ingress_rate": "10"}, TEN),
    ("Atoi, Mbit/s from the pod", {"egress_rate": "10"}, Limits(from_pod=Rate(10 * M, M))),
    ("0 is no limit", {"ingress_rate": "0", "egress_rate": "0"}, UNLIMITED),
    ("an empty one is no limit", {"ingress_rate": "", "egress_rate": ""}, UNLIMITED),
    ("0 is no burst of its own", {"ingress_rate": "10", "ingress_burst": "0"}, TEN),
    ("Atoi: an error, which is no limit, in silence", {"ingress_rate": "0.5"}, Refused(7, "ingress_rate' is '0.5'")),
    ("Atoi: an error, which is no limit, in silence", {"ingress_rate": "10M"}, Refused(7, "ingress_rate' is '10M'")),
    ("less than none is no limit, in silence", {"ingress_rate": "-10"}, Refused(7, "ingress_rate' is '-10'")),
    ("left out, in silence", {"egress_burst": "10"}, Refused(7, "egress_burst' is 10000000 without a rate")),
    (
        "SetNetemQos: ms, ms, packets, percent",
        {"latency": "20", "jitter": "5", "limit": "9", "loss": "5"},
        Limits(netem=Netem(20, 5, 5, 9)),
    ),
    ("0 is none", {"latency": "0", "jitter": "0", "limit": "0", "loss": "0"}, UNLIMITED),
    ("ParseFloat: half a percent", {"loss": "0.5"}, Refused(7, "loss' is '0.5'")),
    ("left out, in silence", {"jitter": "5"}, Refused(7, "jitter' is 5 without a latency")),
    ("OVS refuses it", {"loss": "101"}, Refused(7, "loss' is 101")),
]


@pytest.mark.parametrize(("said", "expected"), table(RATES))
def test_rates_of_kube_ovn(said: dict[str, str], expected: object) -> None:
    """kube-ovn's annotations of rates and of a worse line are read as its `SetInterfaceBandwidth` and `SetNetemQos` read them."""
    agrees(expected, lambda: limits_of({OVN + key: value for key, value in said.items()}, ETH0))


QUANTITIES: list[tuple[str, str, object]] = [
    ("ParseQuantity", "10M", Limits(to_pod=Rate(10 * M, M))),
    ("ParseQuantity", "10000k", Limits(to_pod=Rate(10 * M, M))),
    ("ParseQuantity", "1e7", Limits(to_pod=Rate(10 * M, M))),
    ("ParseQuantity", "10000000", Limits(to_pod=Rate(10 * M, M))),
    ("ParseQuantity: 1024 times 1024", "10Mi", Limits(to_pod=Rate(10 << 20, (10 << 20) // 10))),
    ("less than 1k: an error", "0", Refused(7, "'kubernetes.io/ingress-bandwidth' is '0'")),
    ("less than 1k: an error", "999", Refused(7, "'kubernetes.io/ingress-bandwidth' is 999")),
    ("less than 1k: an error", "-10M", Refused(7, "'kubernetes.io/ingress-bandwidth' is '-10M'")),
    ("more than 1P: an error", "2P", Refused(7, "'kubernetes.io/ingress-bandwidth' is 2000000000000000")),
    ("ParseQuantity: an error", "10 M", Refused(7, "'kubernetes.io/ingress-bandwidth' is '10 M'")),
    ("ParseQuantity: an error", "10Mbit", Refused(7, "'kubernetes.io/ingress-bandwidth' is '10Mbit'")),
]


@pytest.mark.parametrize(("text", "expected"), table(QUANTITIES))
def test_the_bandwidth_of_kubernetes(text: str, expected: object) -> None:
    """Kubernetes' `ExtractPodBandwidthResources` takes quantities from 1k to 1P, as bits in a second."""
    agrees(expected, lambda: limits_of({"kubernetes.io/ingress-bandwidth": text}, ETH0))


# -- MAC, MTU, and what is true or false --------------------------------------------------------------------------------------

MAC = "02:00:0a:00:00:01"
MACS: list[tuple[str, object, object]] = [
    ("ParseMAC", MAC, MAC),
    ("ParseMAC", "02:00:0A:00:00:01", MAC),
    ("ParseMAC", "02-00-0A-00-00-01", MAC),
    ("ParseMAC", "0200.0a00.0001", MAC),
    ("absent", "", ""),
    ("ParseMAC: eight octets; the kernel refuses them", "02:00:0a:00:00:01:00:00", None),
    ("ParseMAC: an error", "02:00:0a:00:00", None),
    ("ParseMAC: an error", "02:00-0a:00:00:01", None),
    ("ParseMAC: an error", "02000a000001", None),
    ("ParseMAC: an error", "2:0:a:0:0:1", None),
    ("ParseMAC: an error", MAC + "\n", None),
    ("the kernel refuses it", "01:00:5e:00:00:01", None),
    ("the kernel refuses it", "00-00-00-00-00-00", None),
]
MAC_PLACES: dict[str, Any] = {
    "runtimeConfig.mac": lambda mac: read(runtimeConfig={"mac": mac}).asked.mac,
    "args.cni.mac": lambda mac: read(args={"cni": {"mac": mac}}).asked.mac,
    "CNI_ARGS": lambda mac: read(cni_args=f"MAC={mac}").asked.mac,
    "host.mac": lambda mac: read(host={"mac": mac}).asked.mac,
    "ovn.kubernetes.io/mac_address": lambda mac: read_noted({f"{OVN}mac_address": mac}, ETH0).mac,
    "annotation 'ovn'": lambda mac: read_noted({"ovn": json.dumps({"mac_address": mac})}, ETH0).mac,
    "the node's": lambda mac: mac_address(mac, "the node's MAC") if mac else "",
}


@pytest.mark.parametrize("place", MAC_PLACES)
@pytest.mark.parametrize(("mac", "expected"), table(MACS))
def test_a_mac(place: str, mac: str, expected: object) -> None:
    """A MAC has the forms of Go's net.ParseMAC, by which the bridge plugin, tuning, ovs-cni, Multus and kube-ovn read one."""
    if place.startswith("ovn.") and mac.endswith("\n"):
        expected = MAC  # white space around an annotation is no part of it
    ask = MAC_PLACES[place]
    if expected is not None:
        assert ask(mac) == expected
        return
    with pytest.raises(UserspaceError) as error:
        ask(mac)
    code, message, details = refusal(error)
    assert (code in (4, 7), place in message, repr(mac) in message, bool(details)) == (True, True, True, True), message


OTHERS: list[tuple[str, dict[str, Any], Refused]] = [
    ("bridge, ovs-cni: 0 is the kernel's", {"host": {"mtu": 0}}, Refused(7, "'host.mtu' is 0")),
    ("Go: an error", {"host": {"mtu": "9000"}}, Refused(6, "'host.mtu' is a string")),
    ("Go: an error", {"host": {"mtu": 9000.0}}, Refused(6, "'host.mtu' is a number")),
    ("the kernel refuses it", {"host": {"mtu": -1}}, Refused(7, "'host.mtu' is -1")),
    ("bridge: true", {"ipMasq": True}, Refused(2, "'ipMasq' is true")),
    ("Go: an error", {"ipMasq": "true"}, Refused(6, "'ipMasq' is a string")),
    ("Go: an error", {"ipMasq": 1}, Refused(6, "'ipMasq' is a whole number")),
    ("Go: an error", {"gatewayCheck": "true", "host": {"iftype": "veth"}}, Refused(6, "'gatewayCheck' is a string")),
    ("Go: an error", {"nodeRoutes": 1, "host": {"iftype": "veth"}}, Refused(6, "'nodeRoutes' is a whole number")),
    ("Go: keys in any case", {"ipam": {"Type": "static"}}, Refused(7, "'ipam.Type' is unknown: 'ipam.type' is probably meant")),
    ("Go: keys in any case", {"IPAM": {"type": "static"}}, Refused(7, "'IPAM' is unknown: 'ipam' is probably meant")),
    (
        "Go: the last of the two",
        {"args": {"cni": {"mac": MAC, "MAC": MAC}}},
        Refused(7, "'args.cni.mac' is given in two spellings"),
    ),
    ("Intel's: server, in silence", {"host": {"vhost": {"mode": "Client"}}}, Refused(7, "'host.vhost.mode' is 'Client'")),
    ("Intel's: an error", {"host": {"netType": "bridges"}}, Refused(7, "'host.netType' is 'bridges'")),
    ("Intel's: an error", {"host": {"bridge": {"bridgeName": 5}}}, Refused(6, "'host.bridge.bridgeName' is a whole number")),
    ("Intel's: an error", {"sharedDir": True}, Refused(6, "'sharedDir' is a boolean")),
]


@pytest.mark.parametrize(("keys", "expected"), table(OTHERS))
def test_numbers_booleans_and_words(keys: dict[str, Any], expected: Refused) -> None:
    """A text is no number and no boolean, a number no boolean, and a word that is none of a key's is not another one."""
    agrees(expected, lambda: read(**keys))


def test_what_args_ask_for_in_any_case() -> None:
    """The bridge plugin and ovs-cni take the keys of `args.cni` in any case, and Go those of `dns`."""
    warnings: list[str] = []
    found = read(warnings, args={"cni": {"Mac": MAC, "IPs": ["10.0.0.2/24"]}}, dns={"NameServers": ["10.0.0.1"]})
    assert (found.asked.mac, found.dns) == (MAC, {"nameservers": ["10.0.0.1"]})
    assert [text for text in warnings if "10.0.0.2/24" in text]


# -- mirrors ------------------------------------------------------------------------------------------------------------------

FROM_POD = MirrorSource("ids", from_pod=True, to_pod=False)
MIRRORS: list[tuple[str, dict[str, Any], object]] = [
    ("select_src_port", {"ingress": True}, MirrorSource("ids", from_pod=True, to_pod=False)),
    ("select_src_port", {"ingress": True, "egress": False}, MirrorSource("ids", from_pod=True, to_pod=False)),
    ("select_dst_port", {"egress": True}, MirrorSource("ids", from_pod=False, to_pod=True)),
    ("both", {"Ingress": True, "EGRESS": True}, MirrorSource("ids", from_pod=True, to_pod=True)),
    ("an error", {"ingress": False}, Refused(7, "'mirrors' holds")),
    ("an error", {"ingress": False, "egress": False}, Refused(7, "'mirrors' holds")),
    ("Go: an error", {"ingress": "true"}, Refused(6, "'mirrors.ingress' is a string")),
    ("Go: an error", {"egress": 1}, Refused(6, "'mirrors.egress' is a whole number")),
    ("left out, in silence", {"ingress": True, "from": True}, Refused(7, "'mirrors' holds")),
]


@pytest.mark.parametrize(("said", "expected"), table(MIRRORS))
def test_directions_of_a_mirror(said: dict[str, Any], expected: object) -> None:
    """The directions of ovs-cni's mirrors are the switch's: ingress is what comes from the pod."""
    agrees(expected, lambda: read(mirrors=[{"name": "ids", **said}]).mirrors[0])


PRODUCERS: list[tuple[str, dict[str, Any], object]] = [
    ("on that bridge", {"bridge": "br1"}, ChainedPart("br1", (FROM_POD,))),
    ("Go: keys in any case", {"Bridge": "br1"}, ChainedPart("br1", (FROM_POD,))),
    ("Go: keys in any case", {"mirrors": None, "Mirrors": [{"Name": "ids", "Ingress": True}]}, Refused(7, "two spellings")),
    ("Go: keys in any case", {"mirrors": [{"NAME": "ids", "INGRESS": True}]}, ChainedPart("", (FROM_POD,))),
    ("an error", {"mirrors": [{"name": "ids"}]}, Refused(7, "no direction")),
    ("an error", {"mirrors": [{"name": "ids", "ingress": False, "egress": False}]}, Refused(7, "no direction")),
    ("no mirror, in silence", {"mirrors": []}, Refused(7, "'mirrors' is missing or empty")),
    ("the mirror without a name", {"mirrors": [{"ingress": True}]}, Refused(7, "'mirrors.name' is ''")),
    (
        "both directions in one",
        {"mirrors": [{"name": "ids", "ingress": True}, {"name": "ids", "egress": True}]},
        Refused(7, "twice"),
    ),
    ("Go: an error", {"bridge": 1}, Refused(6, "'bridge' is a whole number")),
]


@pytest.mark.parametrize(("said", "expected"), table(PRODUCERS))
def test_a_producer_of_ovs_cni(said: dict[str, Any], expected: object) -> None:
    """The configuration of `ovs-mirror-producer` is read as ovs-cni's `LoadMirrorConf` and `CmdAdd` read it."""
    raw = {"type": PRODUCER, "mirrors": [{"name": "ids", "ingress": True}], **said}
    agrees(expected, lambda: read_part(Network("n", "1.0.0", "", raw)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", (MirrorSource(KUBEOVN_MIRROR, from_pod=False),)),
        ("false", ()),
        ("", ()),
        ("True", Refused(7, "mirror' is 'True'")),
        ("1", Refused(7, "mirror' is '1'")),
    ],
)
def test_the_mirror_of_kube_ovn(value: str, expected: object) -> None:
    """kube-ovn's `ConfigInterfaceMirror` takes "true" for what goes to the pod, and every other text for no, in silence."""
    agrees(expected, lambda: mirrors_of({f"{OVN}mirror": value}, ETH0, (), ()))


# -- addresses and routes -----------------------------------------------------------------------------------------------------

LEASE = {"ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}]}
ROUTES: list[tuple[str, dict[str, Any], object]] = [
    ("by the address's gateway", {"dst": "0.0.0.0/0"}, {"dst": "0.0.0.0/0"}),
    ("Go: an empty text or null is absent", {"dst": "0.0.0.0/0", "gw": ""}, {"dst": "0.0.0.0/0"}),
    ("Go: an empty text or null is absent", {"dst": "0.0.0.0/0", "gw": None}, {"dst": "0.0.0.0/0"}),
    ("by that gateway", {"dst": "192.0.2.0/24", "gw": "10.0.0.9"}, {"dst": "192.0.2.0/24", "gw": "10.0.0.9"}),
    ("Go: keys in any case", {"DST": "192.0.2.0/24", "GW": "10.0.0.9"}, {"dst": "192.0.2.0/24", "gw": "10.0.0.9"}),
    ("on the link", {"dst": "192.0.2.0/24", "gw": "0.0.0.0"}, {"dst": "192.0.2.0/24", "gw": "0.0.0.0"}),
    (
        "CNI 1.1",
        {"dst": "192.0.2.0/24", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 253},
        {"dst": "192.0.2.0/24", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 253},
    ),
    ("Go: keys in any case", {"dst": "::/0", "Table": 100, "Priority": 5}, {"dst": "::/0", "table": 100, "priority": 5}),
    ("ParseCIDR: an error", {"dst": "192.0.2.1"}, Refused(108, "routes[0].dst: '192.0.2.1'")),
    ("ParseCIDR: an error", {"dst": "default"}, Refused(108, "routes[0].dst: 'default'")),
    ("ParseCIDR: an error", {"dst": ""}, Refused(108, "routes[0].dst")),
    ("ParseCIDR: an error", {"gw": "10.0.0.1"}, Refused(108, "routes[0].dst")),
    ("ParseCIDR: an error", {"dst": "192.0.2.0/255.255.255.0"}, Refused(108, "routes[0].dst: '192.0.2.0/255.255.255.0'")),
    ("ParseIP: an error", {"dst": "0.0.0.0/0", "gw": "10.0.0.1/24"}, Refused(108, "routes[0].gw: '10.0.0.1/24'")),
    ("ParseIP: an error", {"dst": "0.0.0.0/0", "gw": "gateway"}, Refused(108, "routes[0].gw: 'gateway'")),
    ("Go: an error", {"dst": "0.0.0.0/0", "priority": "5"}, Refused(108, "routes[0].priority: not an integer")),
    ("Go: an error", {"dst": "0.0.0.0/0", "table": 1.5}, Refused(108, "routes[0].table: not an integer")),
]


@pytest.mark.parametrize(("route", "expected"), table(ROUTES))
def test_a_route_of_an_ipam_plugin(route: dict[str, Any], expected: object) -> None:
    """Routes are read as `types.Route` is decoded; how the kernel gets them is `ConfigureIface`'s way, which the plan follows."""
    agrees(expected, lambda: read_addresses({**LEASE, "routes": [route]}, "1.1.0").routes[0])


@pytest.mark.parametrize(
    ("ip", "expected"),
    [
        ({"address": "10.0.0.2/24"}, {"address": "10.0.0.2/24"}),
        ({"Address": "10.0.0.2/24", "Gateway": "10.0.0.1"}, {"address": "10.0.0.2/24", "gateway": "10.0.0.1"}),
        ({"address": "fd00::2/64", "version": "6", "gateway": None}, {"address": "fd00::2/64"}),
        ({"address": "10.0.0.2"}, Refused(108, "ips[0].address: '10.0.0.2'")),
        ({"address": "10.0.0.2/24", "gateway": "10.0.0.1/24"}, Refused(108, "ips[0].gateway: '10.0.0.1/24'")),
        ({"address": "10.0.0.02/24"}, Refused(108, "ips[0].address: '10.0.0.02/24'")),
        ({"ip": "10.0.0.2/24"}, Refused(108, "ips[0].address: missing")),
    ],
)
def test_an_address_of_an_ipam_plugin(ip: dict[str, Any], expected: object) -> None:
    """Addresses are read as `types/100.IPConfig` is decoded: with a prefix length, the gateway without one."""
    agrees(expected, lambda: read_addresses({"IPs": [ip]}, "1.0.0").ips[0])


GIVEN = {f"{OVN}ip_address": "10.0.0.7/24", f"{OVN}gateway": "10.0.0.1"}
DEFAULT = {"dst": "0.0.0.0/0", "gw": "10.0.0.1"}
KUBEOVN_ROUTES: list[tuple[str, str, object]] = [
    ("by that gateway", '[{"dst": "192.0.2.0/24", "gw": "10.0.0.9"}]', ({"dst": "192.0.2.0/24", "gw": "10.0.0.9"},)),
    ("on the link", '[{"dst": "192.0.2.0/24"}]', ({"dst": "192.0.2.0/24", "scope": LINK_SCOPE},)),
    ("on the link", '[{"dst": "192.0.2.0/24", "gw": ""}]', ({"dst": "192.0.2.0/24", "scope": LINK_SCOPE},)),
    ("Go: keys in any case", '[{"Dst": "192.0.2.0/24", "GW": "10.0.0.9"}]', ({"dst": "192.0.2.0/24", "gw": "10.0.0.9"},)),
    ("none", "[]", ()),
    ("the default route", '[{"gw": "10.0.0.9"}]', Refused(7, "routes' is")),
    ("left out with a line of the log", '[{"dst": "192.0.2.1", "gw": "10.0.0.9"}]', Refused(7, "routes' is")),
    ("left out with a line of the log", '[{"dst": "192.0.2.0/24", "gw": "x"}]', Refused(7, "routes' is")),
    (
        "of some versions the priority",
        '[{"dst": "192.0.2.0/24", "gw": "10.0.0.9", "metric": 9}]',
        Refused(7, "'metric' is unknown"),
    ),
    ("an error", '{"dst": "192.0.2.0/24"}', Refused(7, "routes' is")),
    ("an error", '["192.0.2.0/24"]', Refused(7, "routes' is")),
    ("an error", "[null]", Refused(7, "routes' is")),
]


@pytest.mark.parametrize(("text", "expected"), table(KUBEOVN_ROUTES))
def test_routes_of_kube_ovn(text: str, expected: object) -> None:
    """A route of kube-ovn's annotation is what its `configureContainerNic` makes of it: without a gateway it is on the link."""
    said = {**GIVEN, f"{OVN}routes": text, f"{OVN}default_route": "false"}
    agrees(expected, lambda: read_addresses_noted(said, ETH0).routes)


@pytest.mark.parametrize(
    ("interface", "value", "expected"),
    [
        (ETH0, "", (DEFAULT,)),
        (ETH0, "true", (DEFAULT,)),
        (ETH0, "false", ()),
        (NET1, "", ()),
        (NET1, "true", (DEFAULT,)),
        (NET1, "false", ()),
        (ETH0, "False", Refused(7, "default_route' is 'False'")),
        (NET1, "yes", Refused(7, "default_route' is 'yes'")),
    ],
)
def test_the_default_route_of_kube_ovn(interface: PodInterface, value: str, expected: object) -> None:
    """Its `handleAdd`: "true" and "false" decide at every interface, else the default interface has it."""
    prefix = OVN if interface is ETH0 else "podnet.blue.ovn.kubernetes.io/"
    said = {key.replace(OVN, prefix): text for key, text in {**GIVEN, f"{OVN}default_route": value}.items()}
    agrees(expected, lambda: read_addresses_noted(said, interface).routes)


@pytest.mark.parametrize(
    ("address", "cidr", "expected"),
    [
        ("10.0.0.7", "10.0.0.0/16", ("10.0.0.7/16",)),
        ("10.0.0.7,fd00::7", "10.0.0.0/16,fd00::/64", ("10.0.0.7/16", "fd00::7/64")),
        ("fd00::7, 10.0.0.7", "10.0.0.0/16, fd00::/64", ("fd00::7/64", "10.0.0.7/16")),
        ("10.0.0.7/24", "", ("10.0.0.7/24",)),
        ("10.0.0.7", "", Refused(7, "ip_address' is '10.0.0.7'")),
        ("10.1.0.7", "10.0.0.0/16", Refused(7, "ip_address' is '10.1.0.7'")),
        ("10.0.0.7", "10.0.0.0", Refused(7, "ip_address' is '10.0.0.7'")),
        ("10.0.0.7;10.0.0.8", "10.0.0.0/16", Refused(7, "ip_address' is '10.0.0.7;10.0.0.8'")),
    ],
)
def test_addresses_of_kube_ovn(address: str, cidr: str, expected: object) -> None:
    """Its `GetIPAddrWithMask`: an address has the prefix length of its subnet, both families are separated by a comma."""
    said = {f"{OVN}ip_address": address, f"{OVN}cidr": cidr}
    agrees(expected, lambda: tuple(ip["address"] for ip in read_addresses_noted(said, ETH0).ips))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", None), ("0", None), ("100", 100), ("4095", Refused(7, "'4095'")), ("-1", Refused(7, "'-1'")), ("x", Refused(7, "'x'"))],
)
def test_the_vlan_of_kube_ovn(value: str, expected: object) -> None:
    """Its controller writes the id of the Vlan, 0 for none."""
    agrees(expected, lambda: read_noted({f"{OVN}vlan_id": value}, ETH0).vlan)
