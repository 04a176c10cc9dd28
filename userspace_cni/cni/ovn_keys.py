"""What a network and its pod say of a logical port of OVN: key `ovn`, and `OvnPort` of ovs-cni and the forks. Pure.

The logical port itself is the controller's: it makes that of each pod, with the port security and the chassis of these keys, and
the limits where the network says so, and says addresses in the pod's annotations. ADD gives the port on the integration bridge
the logical port's name, and waits. Both read a network here: what ADD refuses, or takes in another spelling, is the same for the
controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.logical_ports import NODE_SWITCH, PORT_NAME_MAX
from userspace_cni.cni import keys
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.cni.bandwidth import Bandwidth, limits_of, read_bandwidth, require_possible_by_ovn, resolve
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.network_keys import key_at, read

ANNOTATIONS: Final = "annotations"
UNKNOWN: Final = "unknown"
IPAM: Final = "ipam"
_ASKED_PORT: Final = "ovnport"
_PLACE: Final = "ovn"
_OF_BRIDGE: Final = ("vlanId", "trunks", "vlanMode")
"""Keys of host.bridge that a logical port has from its switch, or not at all."""
_NO_SOURCE: Final = "use 'annotations', 'unknown', or an IPAM plugin in 'ipam'"


@dataclass(frozen=True, slots=True)
class OvnLimits:
    """Limits that the controller sets by rows of OVN. `network`: what the network says; `mtu`: its own, None for the usual one;
    `may_ask`: a pod can ask for some where it selects the network (capability bandwidth), which Multus passes to ADD."""

    network: Limits = UNLIMITED
    mtu: int | None = None
    may_ask: bool = False

    def of_pod(self, annotations: Mapping[str, str], interface: PodInterface, asked: Limits) -> Limits:
        """The limits of a pod's interface; `asked`: where it selects the network. Raises InvalidConfig, UnsupportedField."""
        runtime = asked if self.may_ask else UNLIMITED
        limits = resolve(Bandwidth(runtime, self.network), limits_of(annotations, interface))
        require_possible_by_ovn(limits, self.mtu)
        return limits


@dataclass(frozen=True)
class OvnOptions:
    """A logical port. `switch`: NODE_SWITCH, or the name of one that an administrator made; "" where only the port is named.

    `port`: its name as the pod has it, "" for the usual one. `waits`: ADD ends when OVN has installed the port, not when the
    interface is open. `port_security` and `requested_chassis`: what the controller writes into the logical port. `source`: where
    its addresses are from, ANNOTATIONS, UNKNOWN or IPAM; "" for nowhere. `limits`: those that the controller sets; None where
    the node's switch does.
    """

    switch: str = NODE_SWITCH
    port: str = ""
    waits: bool = True
    port_security: bool = True
    requested_chassis: bool = True
    source: str = ANNOTATIONS
    limits: OvnLimits | None = None

    @property
    def without_security(self) -> str:
        """The key, with its value, by which the network asks for a port that can send from any address; "" for none."""
        if self.source == UNKNOWN:
            return "'addresses' is 'unknown'"
        return "" if self.port_security else "'ovn.portSecurity' is false"


def read_definition(raw: Mapping[str, Any]) -> OvnOptions | None:
    """The logical ports of a network that is read without a call, None for none. Raises as `read_ovn`, and for misspelt keys."""
    keys.check(raw, lambda _: None)
    top = keys.normalize_keys(raw, keys.TOP, "")
    host = keys.normalize_keys(read_typed(top, "host", dict, {}), keys.PLACES["host"], "host")
    bridge = keys.normalize_keys(read_typed(host, "bridge", dict, {}, path="host."), keys.PLACES["host.bridge"], "host.bridge")
    ipam = read_typed(read_typed(raw, IPAM, dict, {}), "type", str, "", path="ipam.")
    found = read_ovn(top, bridge, ipam, asked_port({}, raw))
    if found is None or found.limits is None:
        return found
    may_ask = read_typed(raw, "capabilities", dict, {}).get("bandwidth") is True
    return replace(found, limits=replace(found.limits, may_ask=may_ask))


def read_ovn(top: Mapping[str, Any], bridge: Mapping[str, Any], ipam: str, named: str) -> OvnOptions | None:
    """The logical port that the network or its pod asks for, None for none; `top` and `bridge` are canonically spelled.

    `ipam`: the IPAM plugin, "" for none; `named`: the `asked_port`. Raises UnsupportedField for what a logical port cannot have,
    InvalidConfig and Undecodable for a value that cannot be.
    """
    said: dict[str, Any] | None = read_typed(top, _PLACE, dict, None)
    if said is None and not named:
        return None
    held = keys.normalize_keys(said or {}, keys.PLACES[_PLACE], _PLACE)
    because = "key 'ovn'" if said is not None else "the logical port that the pod names"
    refused = {each: top.get(each) for each in ("subnet", "mirrorOutput")}
    refused |= {f"host.bridge.{key}": bridge.get(key) for key in _OF_BRIDGE}
    for key, value in refused.items():
        if value:
            raise UnsupportedField(
                f"key '{key}' is {value!r} beside {because}: OVN's logical switch says where its frames go",
                "remove one of the two",
            )
    wait = _choose(held, "ovn.wait") or "installed"
    security, chassis = (read(held, f"ovn.{key}") for key in ("portSecurity", "requestedChassis"))
    return OvnOptions(
        switch=(read(held, "ovn.switch") or NODE_SWITCH) if said is not None else "",
        port=named,
        waits=wait == "installed",
        port_security=security is not False,
        requested_chassis=chassis is not False,
        source=source_of_addresses(top, ipam, is_logical=True) or (IPAM if ipam else ""),
        limits=_read_limits(top) if _choose(held, "ovn.limits") == "ovn" else None,
    )


def _choose(held: Mapping[str, Any], path: str) -> str:
    """The value of a key of `ovn` that can have some values only, "" for none. Raises InvalidConfig for another one."""
    value, choices = read(held, path) or "", key_at(path).choices
    if value and value not in choices:
        raise InvalidConfig(f"key '{path}' is {value!r}", f"it can be {' or '.join(map(repr, choices))}")
    return str(value)


def _read_limits(top: Mapping[str, Any]) -> OvnLimits:
    """The limits of a network that are OVN's. Raises UnsupportedField for what OVN cannot do, InvalidConfig."""
    limits = read_bandwidth(top, {}).network
    host = keys.normalize_keys(read_typed(top, "host", dict, {}), keys.PLACES["host"], "host")
    mtu: int | None = read(host, "host.mtu")
    require_possible_by_ovn(limits, mtu, "bandwidth.")
    return OvnLimits(limits, mtu)


def source_of_addresses(top: Mapping[str, Any], ipam: str, *, is_logical: bool) -> str:
    """The value of key `addresses` that holds: a logical port's network without a word of them has them in the annotations.

    Raises InvalidConfig for a value that there is not, or not for this network, and for a second source.
    """
    said: str = read(top, "addresses") or ""
    choices = key_at("addresses").choices
    if said not in ("", *choices):
        raise InvalidConfig(
            f"key 'addresses' is {said!r}", f"it can be {' or '.join(map(repr, choices))}; an IPAM plugin is named in 'ipam'"
        )
    if said == "unknown" and not is_logical:
        raise InvalidConfig("key 'addresses' is 'unknown', and the network has no 'ovn'", f"remove it; {_NO_SOURCE}")
    if said and ipam:
        raise InvalidConfig(
            f"key 'addresses' is {said!r} beside 'ipam.type' {ipam!r}: addresses come from one place", "remove one of the two"
        )
    return said or (ANNOTATIONS if top.get(_PLACE) is not None and not ipam else "")


def asked_port(args: Mapping[str, str], raw: Mapping[str, Any]) -> str:
    """The logical port that CNI_ARGS or `args.cni` of the network names, where keys match without regard to case; "" for none.

    Raises InvalidConfig for what is no name.
    """
    told = (("CNI_ARGS holds {}={!r}", args), ("key 'args.cni.{}' is {!r}", keys.args_cni(raw)))
    for words, held in told:
        named = {key: value for key, value in held.items() if keys.fold_case(key) == _ASKED_PORT and value not in (None, "")}
        for key, value in named.items():
            if len(named) > 1:
                raise InvalidConfig(words.format(key, value), "it is given in two spellings: keep one")
            if not isinstance(value, str) or len(value) > PORT_NAME_MAX or not (value.isascii() and value.isprintable()):
                raise InvalidConfig(
                    words.format(key, value), f"it must be the name of a logical port, of {PORT_NAME_MAX} characters at most"
                )
            return value
    return ""
