"""Our own part of a network configuration: the `host` and `container` blocks and what the runtime asks for. Strict and pure.

Formats are those of the former plugin of CNI type `userspace`, so its manifests work unchanged: keys match without regard to
case, unknown keys are ignored with a warning, and a `host` block without `vhost.mode` means server. This plugin is stricter in
two cases, in which the former one silently made the wrong port: a key that is nearly a known one (`keys`) is refused, and so is
a `vhost.mode` that is neither `client` nor `server`.

What is understood but cannot be served is refused before any effect (UnsupportedField, 2); an invalid value is InvalidConfig (7);
a value of the wrong JSON type is Undecodable (6).

The consumer of the interface, key `consumer`, has terms of its own for these keys. They are passed in: this module must never
know a consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from userspace_cni.base.errors import BadEnvironment, InvalidConfig, Undecodable, UnsupportedField
from userspace_cni.base.log import LEVELS
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.port_kinds import PortKind
from userspace_cni.base.vlans import VLAN_MAX, Vlan, vlan_ranges, vlans_of
from userspace_cni.cni import keys
from userspace_cni.cni.bandwidth import Bandwidth, read_bandwidth, require_possible, require_possible_by_ovn
from userspace_cni.cni.interface_keys import LinkOptions, choose_kernel_port, read_link, require_no_addresses_needed
from userspace_cni.cni.json_values import read_typed, unicast
from userspace_cni.cni.mirror_keys import read_mirror_output, read_mirrors
from userspace_cni.cni.network_keys import SOCKET_FILE_MAX, TABLE, key_at, names, read
from userspace_cni.cni.ovn_keys import OvnOptions, asked_port, read_ovn, source_of_addresses
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import ADDRESSES_MAX
from userspace_cni.pod.mac import six_octets

Role = Literal["client", "server"]
Warn = Callable[[str], object]

DEFAULT_BRIDGE: Final = "br0"
DEFAULT_CONSUMER: Final = "pod"
_MODES: Final = ("", "client", "server")
_OF_ONE_VLAN: Final = ("access", "dot1q-tunnel")
_NOTED: Final = "annotations"
_ADDRESS_FORM: Final = "it must be addresses of one machine, such as 192.0.2.7/24 or 2001:db8::7/64"


@dataclass(frozen=True)
class Access:
    """Who may use the directory and the socket: names or decimal ids, permission bits, an SELinux label; empty for no change."""

    user: str = ""
    group: str = ""
    directory_mode: int | None = None
    socket_mode: int | None = None
    selinux_label: str = ""


@dataclass(frozen=True)
class PodOptions:
    """What the pod asks for; empty where it asks for nothing."""

    mac: str = ""
    ips: tuple[str, ...] = ()
    device_info_file: str = ""
    device_id: str = ""


@dataclass(frozen=True)
class Application:
    """The application's side: the `container` block with its keys canonically spelled, its mode, and what DPDK takes."""

    block: Mapping[str, Any] = field(default_factory=dict)
    queues: int | None = None
    queue_size: int | None = None
    mode: str = ""


@dataclass(frozen=True)
class Options:
    """What the network and the runtime ask of this plugin. `ovs_role`: OVS's side of the connection; `consumer`: its name.

    `role_given`: there is a `host` block, which has meant server where it says no mode; `mode_given`: it says one. `link`: what
    it says of a kernel link, None for a vhost-user interface. `addresses_noted`: the addresses are in the pod's annotations.
    `ovn`: the logical port that the interface is, None for none; its `bridge` is OVN's, unless the network names one.
    `bridge_given`: the network names its bridge.
    """

    ovs_role: Role
    role_given: bool
    mode_given: bool
    bridge: str
    vlan: Vlan
    mtu: int | None
    socket_file: str
    access: Access
    application: Application
    asked: PodOptions
    kubeconfig: str
    shared_dir: str
    consumer: str
    dns: Mapping[str, Any]
    link: LinkOptions | None = None
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    mirrors: tuple[MirrorSource, ...] = ()
    mirror_output: str = ""
    addresses_noted: bool = False
    ovn: OvnOptions | None = None
    bridge_given: bool = False

    @property
    def mirror_outputs(self) -> tuple[str, ...]:
        """The mirrors whose output the interface is: one, or none."""
        return (self.mirror_output,) if self.mirror_output else ()


class ConsumerRules(Protocol):
    """The rules of a consumer for a network's keys. Pure."""

    @property
    def default_role(self) -> Role:
        """OVS's role where a `host` block names none."""
        ...

    def check(self, top: Mapping[str, Any], vhost: Mapping[str, Any], warn: Warn) -> None:
        """Raise InvalidConfig for what the consumer cannot have; call `warn` for what it ignores.

        `top`, `vhost`: the configuration and its `host.vhost`, with the keys of ours canonically spelled.
        """
        ...

    def access(self, access: Access) -> Access:
        """Who may use the directory and the socket, given what the network says."""
        ...


def read_options(request: Request, consumers: Mapping[str, ConsumerRules], warn: Warn, advise: Warn | None = None) -> Options:
    """Read and validate everything that ADD needs of the configuration; `warn` is called for what is ignored.

    `consumers`: the terms of each, by its name in key `consumer`. With `advise`, as of `warn_of_role`, that is told of the role
    which the network gives OVS; ADD tells it of the one that OVS has, once that is known.
    """
    raw = request.network.raw
    keys.check(raw, warn)
    _require_leasable(request)
    top = keys.normalize_keys(raw, keys.TOP, "")
    runtime = read_typed(raw, "runtimeConfig", dict, {})
    host, container = _block(top, "host"), _block(top, "container")
    link = read_link(top, host, container, warn)
    vhost, bridge = _part(host, "vhost"), _part(host, "bridge")
    consumer = read(top, "consumer") or DEFAULT_CONSUMER
    if consumer not in consumers:
        raise InvalidConfig(f"key 'consumer' is {consumer!r}", f"it can be {' or '.join(map(repr, consumers))}")
    if link and consumer != DEFAULT_CONSUMER:
        raise InvalidConfig(
            f"key 'consumer' is {consumer!r} with 'host.iftype' 'veth': a kernel link is in the pod's own namespace",
            f"remove one of the two: only consumer {DEFAULT_CONSUMER!r} has kernel links",
        )
    terms = consumers[consumer]
    terms.check(top, vhost, warn)
    role_given = "host" in top and not link
    asked_mode = _read_mode_of(vhost, "host")
    mode = asked_mode or terms.default_role
    ovs_role: Role = "client" if not role_given or mode == "client" else "server"
    for key in ("queues", "queueSize"):
        if key in vhost:
            warn(
                f"key 'host.vhost.{key}' is ignored: OVS takes it from the application, which is told by 'container.vhost.{key}'"
            )
    if read(top, "logLevel") and not read_log_level(raw):
        warn(f"key 'logLevel' is {top['logLevel']!r} and ignored: it can be one of {', '.join(LEVELS)}")
    own = _read_mode_of(_part(container, "vhost"), "container")
    if advise and not link:
        warn_of_role(ovs_role, own, warn, advise)
    if read(top, "logFile"):
        warn("key 'logFile' is ignored: a path from a network's configuration is not written to as root; see stderr")
    ovn = read_ovn(top, bridge, request.network.ipam, asked_port(request.environment.args, raw))
    bandwidth = _read_limits(top, runtime, link, {"host": host, "container": container}, by_ovn=bool(ovn and ovn.limits))
    mirrors = read_mirrors(top, warn)
    output = read_mirror_output(top, mirrors)
    source = source_of_addresses(top, request.network.ipam, is_logical=ovn is not None)
    return Options(
        ovs_role=ovs_role,
        role_given=role_given,
        mode_given=bool(asked_mode),
        bridge=read(bridge, "host.bridge.bridgeName") or ("" if ovn else DEFAULT_BRIDGE),
        vlan=_read_vlan(bridge),
        mtu=read(host, "host.mtu"),
        socket_file=_read_socket_file(vhost),
        access=terms.access(_read_access(vhost)),
        application=_read_application(container, own),
        asked=_read_asked(request, host, runtime, warn),
        kubeconfig=read(top, "kubeconfig") or "",
        shared_dir=read(top, "sharedDir") or "",
        consumer=consumer,
        dns=_read_dns(read_typed(raw, "dns", dict, {})),
        link=link,
        bandwidth=bandwidth,
        mirrors=mirrors,
        mirror_output=output,
        addresses_noted=_read_addressing(request, source, link, output),
        ovn=ovn,
        bridge_given=bool(read(bridge, "host.bridge.bridgeName")),
    )


def read_log_level(raw: Mapping[str, Any]) -> str:
    """`logLevel` of a configuration, a key of log.LEVELS; "" when absent or unknown. Never fails: DEL uses it too."""
    for key, value in raw.items():
        if key.lower() == "loglevel" and isinstance(value, str) and value.lower() in LEVELS:
            return value.lower()
    return ""


def warn_of_role(role: Role, own: str, warn: Warn, advise: Warn) -> None:
    """Tell what is wrong with OVS's role, and with the mode `own` of the network's `container` block, which may be "".

    `warn` is called for ignored keys, `advise` for keys that are served but should be changed.
    """
    if role == "server":
        advise("OVS is the vhost-user server (host.vhost.mode is not 'client'): deprecated in OVS, the pod must restart with it")
    if own and (own == "client") == (role == "client"):
        warn(f"key 'container.vhost.mode' is {own!r}, OVS's own role, and ignored: the application is told the other one")


def _block(top: Mapping[str, Any], name: str) -> dict[str, Any]:
    block = keys.normalize_keys(read_typed(top, name, dict, {}), keys.PLACES[name], name)
    for part in ("vhost", "bridge"):
        if part in block:
            place = keys.path_of(name, part)
            block[part] = keys.normalize_keys(read_typed(block, part, dict, {}, path=f"{name}."), keys.PLACES[place], place)
    read_typed(block, "memif", dict, {}, path=f"{name}.")  # the application's own: only passed on
    return block


def _part(block: Mapping[str, Any], name: str) -> dict[str, Any]:
    part: dict[str, Any] = block.get(name) or {}
    return part


def _read_addressing(request: Request, said: str, link: LinkOptions | None, output: str) -> bool:
    """Whether the addresses are in the pod's annotations; `said`: the source that the network names, "" for none or an `ipam`.

    Raises for sources of addresses that exclude one another or cannot be, and for keys that lack one.
    """
    ipam = request.network.ipam
    if output and (said or ipam):
        source = f"'addresses' {said!r}" if said else f"'ipam.type' {ipam!r}"
        raise UnsupportedField(
            f"key 'mirrorOutput' is {output!r} beside {source}: what an output sends is dropped, it can use no address",
            "remove one of the two",
        )
    if ipam == "dhcp":
        reason = "its lease comes before the interface that it needs" if link else "it needs a kernel interface in the pod"
        raise UnsupportedField(f"key 'ipam.type' is 'dhcp': {reason}", "use host-local or static")
    if read(request.network.raw, "ipMasq"):
        raise UnsupportedField(
            "key 'ipMasq' is true: an interface at a bridge of OVS has no address on the host to masquerade", "remove it"
        )
    if link and not (said == _NOTED or ipam):
        require_no_addresses_needed(link)
    return said == _NOTED


def _read_limits(
    top: Mapping[str, Any],
    runtime: Mapping[str, Any],
    link: LinkOptions | None,
    blocks: Mapping[str, Mapping[str, Any]],
    *,
    by_ovn: bool,
) -> Bandwidth:
    """Read the limits, as far as the kind of port is known here: how OVS opens a link may be the node's decision."""
    for name, block in blocks.items():
        if block.get("bandwidth"):
            raise UnsupportedField(
                f"key '{name}.bandwidth' is {block['bandwidth']!r}", "write 'bandwidth' at the top of the network"
            )
    bandwidth = read_bandwidth(top, runtime)
    kind: PortKind | None = "vhostuser"
    if link:
        kind = choose_kernel_port(link, link.opened_as) if link.opened_as or link.datapath == "system" else None
    mtu = blocks["host"].get("mtu")
    if by_ovn:  # those of the network were judged where its `ovn` was read
        require_possible_by_ovn(bandwidth.runtime, mtu, "runtimeConfig.bandwidth.")
        return bandwidth
    require_possible(bandwidth.network, kind, mtu, "bandwidth.")
    require_possible(bandwidth.runtime, kind, mtu, "runtimeConfig.bandwidth.")
    return bandwidth


def _read_mode_of(vhost: Mapping[str, Any], block: str) -> str:
    mode: str = read_typed(vhost, "mode", str, "", path=f"{block}.vhost.")
    if mode not in _MODES:
        raise InvalidConfig(f"key '{block}.vhost.mode' is {mode!r}", "it can be 'client' or 'server'")
    return mode


def _read_vlan(bridge: Mapping[str, Any]) -> Vlan:
    path = "host.bridge."
    tag = read(bridge, f"{path}vlanId")
    mode = read(bridge, f"{path}vlanMode") or ""
    modes = key_at(f"{path}vlanMode").choices
    if mode and mode not in modes:
        raise InvalidConfig(f"key '{path}vlanMode' is {mode!r}", f"it can be one of {', '.join(map(str, modes))}")
    items = read_typed(bridge, "trunks", list, [], path=path)
    if len(items) > VLAN_MAX:
        raise InvalidConfig(f"key '{path}trunks' has {len(items)} items", f"there are no more than {VLAN_MAX} VLANs")
    trunks = vlans_of(each for item in items for each in vlan_ranges(item, f"key '{path}trunks'"))
    both = "remove one of the two, or say 'vlanMode': 'native-tagged' or 'native-untagged' for a port with both"
    if trunks and (mode in _OF_ONE_VLAN or (tag and not mode)):
        said = f"'{path}vlanMode' is {mode!r}" if mode else f"'{path}vlanId' is {tag}"
        raise InvalidConfig(f"key {said} and '{path}trunks' has VLANs: OVS leaves the trunks of such a port out", both)
    if tag and mode == "trunk":
        raise InvalidConfig(
            f"key '{path}vlanId' is {tag} and '{path}vlanMode' is 'trunk': OVS leaves the tag of such a port out", both
        )
    return Vlan(tag or None, trunks, mode)


def _read_access(vhost: Mapping[str, Any]) -> Access:
    path = "host.vhost."
    return Access(
        user=read(vhost, f"{path}user") or "",
        group=read(vhost, f"{path}group") or "",
        directory_mode=_read_mode(vhost, "dirmode"),
        socket_mode=_read_mode(vhost, "socketmode"),
        selinux_label=read(vhost, f"{path}selinuxLabel") or "",
    )


def _read_mode(vhost: Mapping[str, Any], key: str) -> int | None:
    text: str = read(vhost, f"host.vhost.{key}") or ""
    return int(text.removeprefix("0o"), 8) if text else None


def _read_socket_file(vhost: Mapping[str, Any]) -> str:
    name: str = read(vhost, "host.vhost.socketfile") or ""
    if name.startswith("configData-"):
        raise InvalidConfig(
            f"key 'host.vhost.socketfile' is {name!r}", "files named configData-… beside it tell the application of it"
        )
    if len(name) > SOCKET_FILE_MAX:
        raise InvalidConfig(
            f"key 'host.vhost.socketfile' has {len(name)} characters", f"at most {SOCKET_FILE_MAX} fit a socket path"
        )
    return name


def _read_application(container: Mapping[str, Any], mode: str) -> Application:
    vhost = _part(container, "vhost")
    path = "container.vhost."
    queues, size = read(vhost, f"{path}queues"), read(vhost, f"{path}queueSize")
    if size is not None and size not in key_at(f"{path}queueSize").choices:
        raise InvalidConfig(f"key '{path}queueSize' is {size}", "it must be a power of two from 64 to 32768")
    return Application(container, queues, size, mode)


def _read_asked(request: Request, host: Mapping[str, Any], runtime: Mapping[str, Any], warn: Warn) -> PodOptions:
    """Read what the pod asks for: runtimeConfig before args.cni before CNI_ARGS before the network's own default."""
    return PodOptions(
        mac=_asked_mac(request, host, runtime),
        ips=_asked_ips(request, runtime, warn),
        device_info_file=read(runtime, "runtimeConfig.CNIDeviceInfoFile") or "",
        device_id=read(runtime, "runtimeConfig.deviceID") or read(request.network.raw, "deviceID") or "",
    )


def _asked_mac(request: Request, host: Mapping[str, Any], runtime: Mapping[str, Any]) -> str:
    if requested := read(runtime, "runtimeConfig.mac"):
        return unicast(requested, "key 'runtimeConfig.mac'")
    if mac := read(_asked_by_args(request), "args.cni.mac"):
        return unicast(mac, "key 'args.cni.mac'")
    if mac := request.environment.args.get("MAC", ""):
        if not six_octets(mac):
            raise BadEnvironment(f"CNI_ARGS holds MAC={mac!r}", "it must be six octets in hexadecimal, such as 02:00:00:00:00:01")
        return unicast(mac, "CNI_ARGS MAC")
    own: str = read(host, "host.mac") or ""
    return unicast(own, "key 'host.mac'") if own else ""


def _asked_ips(request: Request, runtime: Mapping[str, Any], warn: Warn) -> tuple[str, ...]:
    ips = read_typed(runtime, "ips", list, [], path="runtimeConfig.")
    _require_few(ips, ADDRESSES_MAX, "runtimeConfig.ips")
    for ip in ips:
        why = _why_no_address(ip)
        if why is None or why:
            raise InvalidConfig(f"key 'runtimeConfig.ips' holds {ip!r}{f': {why}' if why else ''}", _ADDRESS_FORM)
    if ips and not request.network.ipam:
        raise InvalidConfig(
            f"key 'runtimeConfig.ips' asks for {', '.join(ips)}", "the network has no 'ipam' that could assign it"
        )
    asked = _asked_by_args(request).get("ips") or request.environment.args.get("IP")
    if asked and not request.network.ipam:
        warn(f"address {asked!r} is asked for, but the network has no 'ipam' that could assign it: ignored")
    return tuple(ips)


def _require_leasable(request: Request) -> None:
    """Refuse what the IPAM plugin could only answer with more than an interface has, or with what none has, before it is run."""
    ipam = read_typed(request.network.raw, "ipam", dict, {})
    if written := next((key for key in ipam if key != "type" and keys.fold_case(key) == "type"), ""):
        raise keys.Misspelt("ipam", written, "ipam.type")  # the plugin would take it, but none would be run
    for key in TABLE:
        if key.place == "ipam" and key.bounds and isinstance(held := ipam.get(key.name), list):
            _require_few(held, key.bounds[1], key.path)
    addresses = ipam.get("addresses")
    for each in addresses if isinstance(addresses, list) else ():
        address = each.get("address") if isinstance(each, dict) else None
        if why := _why_no_address(address):  # what is no address at all may be a word of the plugin's
            raise InvalidConfig(f"key 'ipam.addresses' holds {address!r}: {why}", _ADDRESS_FORM)


def _require_few(items: list[Any], most: int, where: str) -> None:
    if len(items) > most:
        raise InvalidConfig(f"key '{where}' has {len(items)} items", f"an interface can have {most} at most")


def _why_no_address(text: object) -> str | None:
    """Why an interface cannot have the address, with or without a prefix length; "" if it can, None for what is none."""
    from ipaddress import ip_interface

    from userspace_cni.base.addresses import why_not_in_subnet

    try:
        if not isinstance(text, str) or "%" in text:
            return None
        return why_not_in_subnet(ip_interface(text))
    except ValueError:
        return None


def _asked_by_args(request: Request) -> Mapping[str, Any]:
    """What `args.cni` asks for: the bridge plugin and ovs-cni take these keys in any case."""
    return keys.normalize_keys(keys.args_cni(request.network.raw), names("args.cni"), "args.cni")


def _read_dns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read `dns` for the result; a wrong type there would make the runtime refuse the whole answer."""
    raw = keys.normalize_keys(given, names("dns"), "dns")
    dns: dict[str, Any] = {"domain": read(raw, "dns.domain")}
    for key in names("dns")[1:]:
        dns[key] = read_typed(raw, key, list, [], path="dns.")
        if not all(isinstance(value, str) for value in dns[key]):
            raise Undecodable(f"key 'dns.{key}' holds something else than strings", "it must be a list of strings")
    return {key: value for key, value in dns.items() if value}
