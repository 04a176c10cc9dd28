"""What the plugin prints: CNI results and errors, each in the version of the specification that the caller asked for.

Results have one internal form, that of 1.x with all four keys (`interfaces`, `ips`, `routes`, `dns`): every result that is read
is converted to it, every result that is printed is made from it. Keys that the specification does not name are dropped, as
libcni's own structs drop them: a result never carries state. Pure: it must never touch files, processes or the clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from userspace_cni.base.errors import DelegateBroken, InvalidConfig, Undecodable, UserspaceError, shorten

if TYPE_CHECKING:
    from ipaddress import IPv4Interface, IPv6Interface

SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
LATEST = SUPPORTED_VERSIONS[-1]

_INTERFACE_KEYS: Mapping[str, type] = {"name": str, "mac": str, "mtu": int, "sandbox": str, "socketPath": str, "pciID": str}
_INTERFACE_KEYS_SINCE_1_0 = frozenset({"mtu", "socketPath", "pciID"})
_ROUTE_NUMBERS = ("mtu", "advmss", "priority", "table", "scope")
ROUTE_KEYS = ("dst", "gw", *_ROUTE_NUMBERS)
LINK_SCOPE = 253
"""RT_SCOPE_LINK: a route with this `scope` and without `gw` is on the link."""
_DNS_LISTS = ("nameservers", "search", "options")
_KEYS = {
    key.lower(): key
    for keys in (
        ("cniVersion", "interfaces", "ips", "routes", "dns"),
        _INTERFACE_KEYS,
        ("address", "gateway", "interface"),
        ROUTE_KEYS,
    )
    for key in (*keys, "domain", *_DNS_LISTS)
}
ADDRESSES_MAX = 64
ROUTES_MAX = 1024
"""What an IPAM plugin can give an interface: each is made in the pod, looked at by CHECK, and kept in the record."""
_CODE_MAX = 2**32 - 1
"""libcni decodes `code` into Go's uint, which has 32 bits on a 32-bit machine."""


@dataclass(frozen=True)
class ResultAddresses:
    """The addresses that a delegate leased, in the 1.x form: `address` in CIDR, `gateway` plain, no `version` or `interface`."""

    ips: tuple[Mapping[str, Any], ...] = ()
    routes: tuple[Mapping[str, Any], ...] = ()
    dns: Mapping[str, Any] = field(default_factory=dict)


EMPTY = ResultAddresses()


@dataclass(frozen=True)
class ResultInterface:
    """An end of an attachment; `sandbox` "" for the host's, `mtu` in bytes, `socket_path` as the host sees it."""

    name: str
    sandbox: str
    mac: str
    mtu: int | None = None
    socket_path: str | None = None


class _Malformed(Exception):
    """Why a value is no CNI result: the key, what is wrong with it, and whether that is its JSON type."""

    def __init__(self, key: str, problem: str, *, wrong_type: bool = False) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.wrong_type = wrong_type


def read_addresses(answer: object, config_version: str) -> ResultAddresses:
    """Read a delegate's ADD answer. Without a cniVersion it counts as the config's; its `interfaces` are ignored.

    Raises DelegateBroken naming the key, also when there is no address in it; InvalidConfig for more than an interface can have.
    """
    spelled = _spelled(answer) if isinstance(answer, Mapping) else {}
    for key, most in (("ips", ADDRESSES_MAX), ("routes", ROUTES_MAX)):
        listed = spelled.get(key)
        if isinstance(listed, list) and len(listed) > most:
            raise InvalidConfig(
                f"the IPAM plugin gave {len(listed)} {key}, an interface can have {most} at most", "the network's ipam"
            )
    try:
        result = _read(answer, config_version, with_interfaces=False)
        if not result["ips"]:
            raise _Malformed("ips", "no address in it")
        _require_usable(result["ips"])
    except _Malformed as error:
        raise DelegateBroken(f"reading the answer of the IPAM plugin: {error}", "expected a CNI result") from None
    ips = tuple({key: value for key, value in ip.items() if key != "interface"} for ip in result["ips"])
    return ResultAddresses(ips, tuple(result["routes"]), result["dns"])


def read_prev_result(raw: object, config_version: str) -> dict[str, Any]:
    """Read the previous plugin's result into the internal form. Without a cniVersion it counts as the config's.

    Raises Undecodable or InvalidConfig naming the key. For ADD and CHECK; DEL works without it.
    """
    try:
        return _read(raw, config_version, with_interfaces=True)
    except _Malformed as error:
        kind = Undecodable if error.wrong_type else InvalidConfig
        raise kind(f"reading prevResult: {error}", "it must be a CNI result of a supported version") from None


def find_interface(prev: Mapping[str, Any], ifname: str, sandbox: str) -> dict[str, Any] | None:
    """The entry of this interface in this sandbox, in the result of `read_prev_result`; None when there is none."""
    for interface in prev["interfaces"]:
        if interface.get("name") == ifname and interface.get("sandbox") == sandbox:
            return dict(interface)
    return None


def build(
    version: str,
    ours: Sequence[ResultInterface],
    addresses: ResultAddresses = EMPTY,
    dns_override: Mapping[str, Any] | None = None,
    prev_result: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build ADD's answer at `version`: `prev_result` (of `read_prev_result`) and, after it, our interfaces and addresses.

    The last of ours is the container's, and has the addresses.

    Entries of `prev_result` keep their places, so its indices stay valid. Of several `dns` the config's own wins, then the
    previous plugin's, then the delegate's.
    """
    prev = prev_result or {}
    modern = _is_modern(version)
    interfaces = [*prev.get("interfaces", ()), *map(_entry_of, ours)]
    leased = [{**ip, "interface": len(interfaces) - 1} for ip in addresses.ips]
    ips = [*prev.get("ips", ()), *leased]
    routes = [*prev.get("routes", ()), *addresses.routes]
    dns = _first_set(dns_override, prev.get("dns"), addresses.dns)

    result: dict[str, Any] = {"cniVersion": version, "interfaces": [_interface_at(entry, modern) for entry in interfaces]}
    if ips:
        result["ips"] = [_ip_at(ip, modern) for ip in ips]
    if routes:
        result["routes"] = [dict(route) for route in routes]
    if dns or not modern:
        result["dns"] = dns
    return result


def encode(obj: object) -> bytes:
    """Encode one JSON document and a newline, in ASCII, so that no byte of an environment variable can make printing fail."""
    import json

    return json.dumps(obj, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def error_json(error: UserspaceError, version: str, *, for_del: bool = False) -> bytes:
    """Encode the error for stdout; `for_del` rewords what runtimes would take for success (`safe_for_del`)."""
    code = error.code if isinstance(error.code, int) and 0 <= error.code <= _CODE_MAX else error.default_code
    message, details = (_printable(shorten(text)) for text in (error.message, error.details))
    if for_del:
        message, details = safe_for_del(message), safe_for_del(details)
    answer: dict[str, Any] = {"cniVersion": version, "code": code, "msg": message}
    if details:
        answer["details"] = details
    return encode(answer)


def version_answer(requested: object) -> bytes:
    """Encode VERSION's answer: the cniVersion of the input when it has one, else our highest; and all that we support."""
    version = requested if isinstance(requested, str) and requested else LATEST
    return encode({"cniVersion": version, "supportedVersions": list(SUPPORTED_VERSIONS)})


def safe_for_del(text: str) -> str:
    """Replace the words by which go-cni ("not found") and Multus ("no such file …") take a failed DEL for done."""
    text = re.sub("no such file or directory", "path is absent", text, flags=re.IGNORECASE)
    return re.sub("not found", "absent", text, flags=re.IGNORECASE)


# -- from results of others to the internal form --------------------------------------------------------------------------


def _read(raw: object, config_version: str, *, with_interfaces: bool) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _Malformed("", "not a JSON object", wrong_type=True)
    raw = _spelled(raw)
    version = _typed(raw, "cniVersion", str) or config_version
    if version not in SUPPORTED_VERSIONS:
        raise _Malformed("cniVersion", f"{version!r} is not supported, only {', '.join(SUPPORTED_VERSIONS)}")
    return {
        "interfaces": _entries(raw, "interfaces", _read_interface) if with_interfaces else [],
        "ips": _entries(raw, "ips", _read_ip),
        "routes": _entries(raw, "routes", _read_route),
        "dns": _read_dns(raw.get("dns")),
    }


def _entries(raw: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any], str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Read every element of the list `raw[key]` with `read`; absent and null are an empty list, as Go prints them."""
    entries = raw.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise _Malformed(key, "not a list", wrong_type=True)
    result = []
    for index, entry in enumerate(entries):
        place = f"{key}[{index}]"
        if not isinstance(entry, dict):
            raise _Malformed(place, "not a JSON object", wrong_type=True)
        result.append(read(_spelled(entry), place))
    return result


def _spelled(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its keys as the specification writes them: libcni takes them in any case, of several the last."""
    return {_KEYS.get(key.lower(), key) if key.isascii() else key: value for key, value in raw.items()}


def _read_interface(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    result = {key: _typed(entry, key, kind, place) for key, kind in _INTERFACE_KEYS.items()}
    if not result["name"]:
        raise _Malformed(f"{place}.name", "missing")
    return {key: value for key, value in result.items() if value not in (None, "")}


def _read_ip(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    result: dict[str, Any] = {"address": _cidr(entry, "address", place)}
    gateway = _plain_address(entry, "gateway", place)
    if gateway:
        result["gateway"] = gateway
    index = _typed(entry, "interface", int, place)
    if index is not None:
        result["interface"] = index
    return result


def _read_route(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    result: dict[str, Any] = {"dst": _cidr(entry, "dst", place)}
    gateway = _plain_address(entry, "gw", place)
    if gateway:
        result["gw"] = gateway
    for key in _ROUTE_NUMBERS:
        number = _typed(entry, key, int, place)
        if number is not None:
            result[key] = number
    return result


def _read_dns(raw: object) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise _Malformed("dns", "not a JSON object", wrong_type=True)
    raw = _spelled(raw)
    result: dict[str, Any] = {"domain": _typed(raw, "domain", str, "dns")}
    for key in _DNS_LISTS:
        values = raw.get(key)
        if values is None:
            continue
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise _Malformed(f"dns.{key}", "not a list of strings", wrong_type=True)
        result[key] = list(values)
    return {key: value for key, value in result.items() if value}


def _typed(entry: Mapping[str, Any], key: str, kind: type, place: str = "") -> Any:
    """Return `entry[key]`, None when absent or null. JSON's true and false are no numbers."""
    value = entry.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        name = f"{place}.{key}" if place else key
        raise _Malformed(name, "not a string" if kind is str else "not an integer", wrong_type=True)
    return value


def _cidr(entry: Mapping[str, Any], key: str, place: str) -> str:
    """Return `entry[key]` if Go's net.ParseCIDR takes it: with a prefix length, without a mask or a zone."""
    value = _typed(entry, key, str, place)
    if not value:
        raise _Malformed(f"{place}.{key}", "missing")
    _, slash, length = value.partition("/")
    try:
        if not slash or not length.isdecimal() or "%" in value:
            raise ValueError
        _parse(value)
    except ValueError:
        raise _Malformed(f"{place}.{key}", f"{value!r} is not an address with a prefix length") from None
    return str(value)


def _require_usable(ips: Sequence[Mapping[str, Any]]) -> None:
    """Raise for an address that no machine can have: the kernel takes some of them."""
    from userspace_cni.base.addresses import why_not_in_subnet

    for index, ip in enumerate(ips):
        if why := why_not_in_subnet(_parse(ip["address"])):
            raise _Malformed(f"ips[{index}].address", f"{ip['address']!r}: {why}")


def _plain_address(entry: Mapping[str, Any], key: str, place: str) -> str:
    value = _typed(entry, key, str, place)
    if not value:
        return ""
    try:
        if "/" in value or "%" in value:
            raise ValueError
        _parse(value)
    except ValueError:
        raise _Malformed(f"{place}.{key}", f"{value!r} is not an IP address") from None
    return str(value)


def _parse(address: str) -> IPv4Interface | IPv6Interface:
    import ipaddress

    return ipaddress.ip_interface(address)


# -- from the internal form to a version ------------------------------------------------------------------------------------


def _is_modern(version: str) -> bool:
    """Whether the version is 1.0.0 or later: no `ips[].version`, more interface keys, no empty `dns`."""
    return not version.startswith("0.")


def _entry_of(interface: ResultInterface) -> dict[str, Any]:
    entry = {
        "name": interface.name,
        "mac": interface.mac.lower(),
        "mtu": interface.mtu,
        "sandbox": interface.sandbox,
        "socketPath": interface.socket_path,
    }
    return {key: value for key, value in entry.items() if value not in (None, "")}


def _interface_at(entry: Mapping[str, Any], modern: bool) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if modern or key not in _INTERFACE_KEYS_SINCE_1_0}


def _ip_at(ip: Mapping[str, Any], modern: bool) -> dict[str, Any]:
    if modern:
        return dict(ip)
    return {"version": str(_parse(ip["address"]).version), **ip}


def _first_set(*candidates: Mapping[str, Any] | None) -> dict[str, Any]:
    """The first that has a value that is not empty (Go's `omitempty`), without its empty ones."""
    for candidate in candidates:
        set_ones = {key: value for key, value in (candidate or {}).items() if value}
        if set_ones:
            return set_ones
    return {}


def _printable(text: str) -> str:
    """Spell out undecodable bytes (lone surrogates): strict JSON readers refuse them even when escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
