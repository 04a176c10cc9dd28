"""Every key that is read of a network: its place, its values, its default, and its purpose. Pure.

One table for all who need it: `keys` (spelling, and what a misspelt key is meant to be), the readers of values, the JSON Schema
of `userspace-cni schema network` and the table in docs/network.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from userspace_cni.base.limits import RATE_MAX, RATE_MIN
from userspace_cni.base.logical_ports import NODE_SWITCH, PORT_NAME_MAX, SWITCH_NAME
from userspace_cni.base.mirrors import MIRRORS_MAX
from userspace_cni.base.mirrors import NAME as MIRROR_NAME
from userspace_cni.base.port_kinds import CHOICES
from userspace_cni.base.settings import MTU_MAX, MTU_MIN
from userspace_cni.base.vlans import BRIDGE_MAX, VLAN_MAX
from userspace_cni.cni.json_values import (
    IDENTIFIER,
    NAME,
    NETWORK_NAME_MAX,
    OBJECT,
    OCTAL,
    PATH_MAX,
    absolute,
    in_range,
    matching,
    object_name,
    permissions,
    printable,
    read_typed,
)
from userspace_cni.cni.result import ADDRESSES_MAX, ROUTES_MAX, SUPPORTED_VERSIONS

Bounds = tuple[int, int]

SOCKET_FILE_MAX: Final = 80
_BRIDGE_NAME: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{BRIDGE_MAX - 1}}}"
_MAC: Final = "([0-9A-Fa-f]{2}((:[0-9A-Fa-f]{2}){5}|(-[0-9A-Fa-f]{2}){5})|[0-9A-Fa-f]{4}([.][0-9A-Fa-f]{4}){2})"
_QUEUES_MAX: Final = 128
_QUEUE_SIZES: Final = tuple(2**power for power in range(6, 16))
_VLAN_MODES: Final = ("access", "native-tagged", "native-untagged", "trunk", "dot1q-tunnel")
_SERVICES_MAX: Final = 64
_DELAY_MAX: Final = 60_000
_QUEUE_MAX: Final = 1_000_000


@dataclass(frozen=True)
class Key:
    """One key. `place`: the object that holds it, as host.vhost; "" at the top.

    `kind`: its JSON type, str, int, bool, list or dict, NoneType for none, object for any, for what others read, too; null is as
    good as absent. `choices`: the values that it can have, beside "" for none said. `bounds`: the least and the largest number,
    or length of a text, or number of items of a list; `unset`: a number outside of them that stands for none. `pattern`: what a
    whole text matches; `check` judges it instead, where there is more to say of it. `also`: another JSON type that is taken.
    `default`: what holds without it, as people write it. `item`: the form of a list's items, as JSON Schema says it. `beside`:
    by the paths of other keys, what they have to say where this one says something; SAME for the same, ANY for whatever.
    `standard`: a key of other programs, read under exactly this name, and judged by them. `since`: the first release that reads
    it.
    """

    name: str
    kind: type[Any]
    help: str
    place: str = ""
    default: str = ""
    choices: tuple[str | int | bool, ...] = ()
    bounds: Bounds | None = None
    unset: int | None = None
    pattern: str = ""
    check: Callable[[str, str], str] | None = None
    also: type[Any] | None = None
    item: Mapping[str, Any] | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    standard: bool = False
    required: bool = False
    since: str = "0.1.0"

    @property
    def path(self) -> str:
        """The key with the names of the objects that hold it, as host.vhost.mode."""
        return f"{self.place}.{self.name}" if self.place else self.name


def _later(value: str, where: str) -> str:  # noqa: ARG001 - as each check
    """A MAC is judged where it is known which of several places decides."""
    return value


def _told(place: str, kind: type[Any], *names: str) -> tuple[Key, ...]:
    return tuple(Key(name, kind, "passed on to the application unchanged", place) for name in names)


_VLAN_ID: Final = {"type": "integer", "minimum": 0, "maximum": VLAN_MAX}
_TRUNK: Final[Mapping[str, Any]] = {
    "anyOf": [
        _VLAN_ID,
        {"type": "string", "pattern": r"^[0-9]{1,4}(-[0-9]{1,4})?$"},
        {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {
                "^([iI][dD]|[mM][aA][xX][iI][dD])$": {**_VLAN_ID, "type": ["integer", "null"]},
                "^[mM][iI][nN][iI][dD]$": {**_VLAN_ID, "type": ["integer", "null"], "minimum": 1},
            },
            "additionalProperties": False,
        },
    ]
}
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}


BURST_MAX: Final = 2**64 - 1
"""What Go's libraries take, in bits; from limits.NOT_GIVEN on a burst stands for none."""
_BURST: Final = (8 * MTU_MIN, BURST_MAX)
SAME: Final = "(the same)"
ANY: Final = "(any)"
_KERNEL_LINK: Final = {"host.iftype": "veth"}
_ADDRESSED_LINK: Final = {**_KERNEL_LINK, "ipam.type": ANY}
TABLE: Final[tuple[Key, ...]] = (
    Key("kubeconfig", str, "credentials for pods and their annotations, where plugin and agent have none",
        bounds=(0, PATH_MAX), pattern="/.*", check=absolute),
    Key("sharedDir", str, "base of the socket directory of pods without the volume", bounds=(0, PATH_MAX), pattern="/.*",
        check=absolute),
    Key("logFile", str, "ignored: see stderr"),
    Key("logLevel", str, "least important level that is logged of this network's calls", default="that of the settings"),
    Key("host", dict, "the node's side: bridge, VLANs, socket"),
    Key("container", dict, "the application's side"),
    Key("consumer", str, "who uses the interfaces", default="pod"),
    Key("addresses", str, "source of addresses, MAC and VLAN instead of ipam: the pod's annotations; unknown for a logical port "
        "whose addresses only its pod knows", choices=("annotations", "unknown")),
    Key("ovn", dict, "the port is a logical port of OVN"),
    Key("subnet", str, "the Subnet object that says bridge, VLAN, MTU, addresses and gateway", pattern=OBJECT.pattern,
        check=object_name),
    Key("bandwidth", dict, "limits of the interface, towards the pod (ingress) and from it"),
    Key("netem", dict, "a line made worse, towards the pod", beside=_KERNEL_LINK),
    Key("mirrors", list, "mirrors of which the interface is a source", bounds=(0, MIRRORS_MAX)),
    Key("mirrorOutput", str, "the mirror whose output the interface is", pattern=MIRROR_NAME.pattern),
    Key("gatewayCheck", bool, "refuse unless the gateways answer", default="false", beside=_ADDRESSED_LINK),
    Key("duplicateCheck", bool, "refuse an address for which another machine answers", default="false", beside=_ADDRESSED_LINK),
    Key("nodeRoutes", bool, "routes to this node's own addresses by the first gateway", default="false", beside=_ADDRESSED_LINK),
    Key("serviceCIDRs", list, 'routes to these networks by the first gateway; "node" for that of the node\'s file',
        bounds=(0, _SERVICES_MAX), item={**_TEXT, "pattern": "/"}, beside=_ADDRESSED_LINK),
    Key("cniVersion", str, "version of the CNI specification, 0.3.0 to 1.1.0", choices=SUPPORTED_VERSIONS, standard=True,
        required=True),
    Key("name", str, "name of the network", bounds=(1, NETWORK_NAME_MAX), pattern=IDENTIFIER.pattern, standard=True,
        required=True),
    Key("type", str, "this plugin: userspace", standard=True, required=True),
    Key("ipam", dict, "the IPAM plugin that leases the addresses, and its keys; any but dhcp", standard=True),
    Key("ipMasq", bool, "refused when true", choices=(False,), standard=True),
    Key("dns", dict, "repeated in the result", standard=True),
    Key("capabilities", dict, "what may be passed in runtimeConfig: mac, ips, bandwidth, CNIDeviceInfoFile", standard=True),
    Key("runtimeConfig", dict, "what the runtime passes", standard=True),
    Key("args", object, "what Multus passes: args.cni has mac, ips and OvnPort", standard=True),
    Key("prevResult", dict, "ADD's result, which the runtime passes", standard=True),
    Key("disableCheck", bool, "the runtime does not call CHECK", standard=True),
    Key("disableGC", bool, "the runtime does not call GC", standard=True),
    Key("cniVersions", list, "versions from which the runtime chooses", standard=True),
    Key("loadOnlyInlinedPlugins", bool, "of lists of plugins", standard=True),
    Key("deviceID", str, "the device that a device plugin or a claim has given", standard=True),
    Key("pciBusID", str, "the same, of older Multus", standard=True),
    Key("ingressRate", int, "limit towards the pod, in bit/s; 0 is none", "bandwidth", bounds=(RATE_MIN, RATE_MAX), unset=0),
    Key("ingressBurst", int, "burst towards the pod, in bits; 0 is 100 ms of the rate", "bandwidth", bounds=_BURST,
        unset=0, beside={"bandwidth.ingressRate": RATE_MIN, "host.mtu": MTU_MIN}),
    Key("egressRate", int, "limit from the pod, in bit/s; 0 is none", "bandwidth", bounds=(RATE_MIN, RATE_MAX), unset=0),
    Key("egressBurst", int, "burst from the pod, in bits; 0 is 100 ms of the rate", "bandwidth", bounds=_BURST,
        unset=0, beside={"bandwidth.egressRate": RATE_MIN, "host.mtu": MTU_MIN}),
    Key("shapedSubnets", list, "refused: limits hold for all traffic", "bandwidth", bounds=(0, 0)),
    Key("unshapedSubnets", list, "refused: limits hold for all traffic", "bandwidth", bounds=(0, 0)),
    Key("latency_ms", int, "delay of each frame, in ms", "netem", "0", bounds=(0, _DELAY_MAX)),
    Key("jitter_ms", int, "by how much the delay varies, in ms", "netem", "0", bounds=(0, _DELAY_MAX),
        beside={"netem.latency_ms": 1}),
    Key("loss_percent", int, "frames that are lost, in percent", "netem", "0", bounds=(0, 100)),
    Key("limit", int, "frames that wait, at most", "netem", "the kernel's", bounds=(0, _QUEUE_MAX)),
    Key("switch", str, "the logical switch: node for the node's own, or the name of another", "ovn", NODE_SWITCH,
        pattern=SWITCH_NAME),
    Key("wait", str, "ADD ends when OVN has installed the port, or when the interface is open", "ovn", "installed",
        ("installed", "port")),
    Key("portSecurity", bool, "OVN drops what the pod sends from other addresses than its own", "ovn", "true"),
    Key("requestedChassis", bool, "only the pod's node may have the logical port", "ovn", "true"),
    Key("limits", str, "who limits the port: the node's switch, or OVN by rows that the controller writes", "ovn", "node",
        ("node", "ovn")),
    Key("name", str, "the mirror", "mirrors", pattern=MIRROR_NAME.pattern, required=True),
    Key("from", bool, "frames that come from the pod", "mirrors", "true, unless another direction is said"),
    Key("to", bool, "frames that go to the pod", "mirrors", "true, unless another direction is said"),
    Key("ingress", bool, "ovs-cni's word for from", "mirrors"),
    Key("egress", bool, "ovs-cni's word for to", "mirrors"),
    Key("engine", str, "the datapath of the bridge", "host", "ovs-dpdk", ("ovs-dpdk", "ovs"), beside=_KERNEL_LINK),
    Key("iftype", str, "a vhost-user socket, or a kernel link for ordinary pods", "host", "vhostuser", ("vhostuser", "veth")),
    Key("netType", str, "a port is on a bridge", "host", "bridge", ("bridge",)),
    Key("memif", dict, "ignored", "host"),
    Key("vhost", dict, "the socket", "host"),
    Key("bridge", dict, "bridge and VLANs", "host"),
    Key("mtu", int, "MTU of the interface, in bytes", "host", "that of the node, or 1500", bounds=(MTU_MIN, MTU_MAX)),
    Key("mac", str, "one MAC for all ports of the network", "host", pattern=_MAC, check=_later),
    Key("bandwidth", type(None), "refused: write it at the top", "host"),
    Key("port", str, "how OVS opens the host end of a kernel link", "host", "the setting kernel_port", CHOICES,
        beside=_KERNEL_LINK),
    Key("mode", str, "OVS's side of the connection; server is deprecated in OVS", "host.vhost",
        "server in a host block, else client", ("client", "server")),
    Key("socketfile", str, "the socket's file name", "host.vhost", "<container ID>-<interface>", bounds=(1, SOCKET_FILE_MAX),
        pattern=NAME.pattern),
    Key("user", str, "owner of directory and socket, by name or number", "host.vhost", also=int, pattern=NAME.pattern),
    Key("group", str, "group of directory and socket, by name or number", "host.vhost", also=int, pattern=NAME.pattern),
    Key("dirmode", str, 'permission bits of a directory that is made, as "0775"', "host.vhost", pattern=OCTAL.pattern,
        check=permissions),
    Key("socketmode", str, 'permission bits of a socket that OVS makes, as "0660"', "host.vhost", pattern=OCTAL.pattern,
        check=permissions),
    Key("selinuxLabel", str, "SELinux label of directory and socket", "host.vhost", pattern="[ -~]*", check=printable),
    Key("queues", object, "ignored: see container.vhost", "host.vhost"),
    Key("queueSize", object, "ignored: see container.vhost", "host.vhost"),
    Key("bridgeName", str, "the bridge; a missing one is made", "host.bridge", "br0", pattern=_BRIDGE_NAME),
    Key("bridgeId", object, "ignored, as in networks of the former plugin", "host.bridge"),
    Key("vlanId", int, "the port's tag; 0 is none", "host.bridge", "0", bounds=(0, VLAN_MAX)),
    Key("trunks", list, 'VLANs of a trunk, as [5, "100-110", {"minID": 1, "maxID": 9}]', "host.bridge", bounds=(0, VLAN_MAX),
        item=_TRUNK),
    Key("vlanMode", str, "vlan_mode of the port", "host.bridge", "access with a vlanId, else trunk", _VLAN_MODES),
    *_told("container", str, "engine"),
    Key("iftype", str, "as that of host", "container", "that of host", ("vhostuser", "veth"), beside={"host.iftype": SAME}),
    *_told("container", str, "netType"),
    *_told("container", dict, "memif"),
    Key("vhost", dict, "what the application reads about the socket", "container"),
    Key("bridge", dict, "passed on to the application unchanged", "container"),
    *_told("container", object, "mtu", "mac"),
    Key("bandwidth", type(None), "refused: write it at the top", "container"),
    Key("mode", str, "the application's side of the connection", "container.vhost", "the other than OVS's", ("client", "server")),
    *_told("container.vhost", object, "socketfile", "user", "group", "dirmode", "socketmode", "selinuxLabel"),
    Key("queues", int, "queue pairs that the application makes; OVS follows it", "container.vhost", bounds=(1, _QUEUES_MAX)),
    Key("queueSize", int, "descriptors of a queue of the application", "container.vhost", choices=_QUEUE_SIZES),
    *_told("container.bridge", object, "bridgeName", "bridgeId", "vlanId", "trunks", "vlanMode"),
    Key("type", str, "the IPAM plugin", "ipam", standard=True),
    Key("addresses", object, "addresses, of static", "ipam", bounds=(0, ADDRESSES_MAX), standard=True),
    Key("ranges", object, "ranges of addresses, of host-local", "ipam", bounds=(0, ADDRESSES_MAX), standard=True),
    Key("routes", object, "routes of the interface", "ipam", bounds=(0, ROUTES_MAX), standard=True),
    Key("domain", str, "the domain", "dns"),
    *(Key(name, list, text, "dns", item=_TEXT) for name, text in (
        ("nameservers", "addresses of servers"), ("search", "domains that are searched"), ("options", "the resolver's options"))),
    Key("mac", str, "the MAC", "runtimeConfig", pattern=_MAC, check=_later, standard=True),
    Key("ips", list, "addresses that the IPAM plugin is asked for", "runtimeConfig", bounds=(0, ADDRESSES_MAX), item=_TEXT,
        standard=True),
    Key("bandwidth", dict, "limits, before those of the network", "runtimeConfig", standard=True),
    Key("CNIDeviceInfoFile", str, "where device-info is written", "runtimeConfig", bounds=(0, PATH_MAX), pattern="/.*",
        check=absolute, standard=True),
    Key("deviceID", str, "the device that a device plugin or a claim has given", "runtimeConfig", standard=True),
    Key("cni", object, "what the pod's network selection says", "args", standard=True),
    Key("mac", str, "the MAC", "args.cni", pattern=_MAC, check=_later),
    Key("ips", object, "addresses that the IPAM plugin is asked for", "args.cni"),
    Key("OvnPort", str, "the logical port of OVN that the interface is", "args.cni", bounds=(0, PORT_NAME_MAX),
        pattern="[ -~]*"),
)  # fmt: skip
_BY_PATH: Final[Mapping[str, Key]] = {key.path: key for key in TABLE}


def key_at(path: str) -> Key:
    """The key of that path. Raises KeyError for none."""
    return _BY_PATH[path]


def read(held: Mapping[str, Any], path: str) -> Any:
    """The value at that path, of the object that holds it, canonically spelled: as its row says, None where it is not said.

    Raises Undecodable for another type, InvalidConfig for a value that it cannot have.
    """
    key = key_at(path)
    value: Any = held.get(key.name)
    if value is None and not key.required:
        return None
    if key.also and isinstance(value, key.also) and not isinstance(value, bool):
        value = str(value)
    else:
        value = read_typed(held, key.name, key.kind, None, path=f"{key.place}." if key.place else "")
    if key.kind is int and key.bounds:
        return in_range(value, key.bounds, path)
    if key.kind is str and key.pattern and (value or key.required):
        return key.check(value, path) if key.check else matching(value or "", re.compile(key.pattern), path)
    return value


def names(place: str, *, standard: bool | None = None) -> tuple[str, ...]:
    """The keys of a place, in the table's order: all, those of ours, or those of the specification."""
    return tuple(key.name for key in TABLE if key.place == place and standard in (None, key.standard))
