"""The values of which a Route consists: what it leads to, by which device and gateway. Pure.

Each value becomes a part of a message by which root's agent changes what pods reach. So a value is refused here that the kernel
would silently take and that no pod is the better for: a route to loopback, to the metadata address, by a gateway of another
family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, Literal

from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.base.object_fields import known_fields
from userspace_cni.base.routing import Address, Network
from userspace_cni.routes.prefixes import Prefix, host, prefix

AUTO: Final = "auto"
"""As a gateway: that of the pod's own routes."""
DEFAULT: Final = "default"
ALL: Final = "*"
"""As the name of a Service: all of its namespace; of all namespaces where that is the namespace, too."""
Via = Address | Literal["auto", ""]
"""A gateway; "" where the entry names none."""

DEFAULTS: Final[Mapping[int, Network]] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_DEV_MAX: Final = 15
_DEV: Final = re.compile(r"[!-.0-9;-~]+")
"""Visible ASCII but "/" and ":", which the kernel takes in no name of a link."""
_NETWORK: Final = re.compile(r"[0-9A-Fa-f.:]+/[0-9]{1,3}")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NEVER: Final = tuple(
    (prefix(ip_network(text)), what)
    for text, what in (
        ("0.0.0.0/8", "this network"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local addresses"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("::/128", "the unspecified address"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4 addresses in IPv6 form"),
        ("fe80::/10", "link-local addresses"),
        ("ff00::/8", "multicast"),
    )
)
"""To what no route of ours leads: it breaks the pod, or hides the metadata address."""
_LINK_LOCAL: Final = tuple(never for never, what in _NEVER if what == "link-local addresses")
"""Of these a gateway can be: Calico's is 169.254.1.1."""


@dataclass(frozen=True)
class NetworkEntry:
    """An entry of `spec.route`. `place`: where it stands, for messages."""

    dst: Network
    dev: str
    via: Via = ""
    place: str = ""


@dataclass(frozen=True)
class ServiceEntry:
    """An entry of `spec.svc`. `name` is `ALL` for all Services of the namespace, or with `ALL` as the namespace for those of all.

    `place`: where it stands, for messages.
    """

    namespace: str
    name: str
    dev: str
    via: Via = ""
    place: str = ""


def read_network_entry(value: object, place: str) -> NetworkEntry:
    """Read an entry of `spec.route`. Raises InvalidConfig naming place, field and value."""
    fields = known_fields(value, ("dst", "dev", "via"), {}, place)
    dev, via = read_dev(fields.get("dev"), f"{place}: 'dev'"), read_via(fields.get("via"), f"{place}: 'via'")
    dst = read_dst(fields.get("dst"), via, f"{place}: 'dst'")
    require_possible(dst, via, f"{place}: 'via'")
    return NetworkEntry(dst, dev, via, place)


def read_service_entry(value: object, place: str) -> ServiceEntry:
    """Read an entry of `spec.svc`. Raises InvalidConfig naming place, field and value."""
    fields = known_fields(value, ("namespace", "name", "dev", "via"), {}, place)
    namespace, name = fields.get("namespace"), fields.get("name")
    if namespace == ALL and name != ALL:
        raise InvalidConfig(
            f"{place}: 'namespace' is '*', and 'name' {quote(name)}", "with all namespaces goes the name '*' alone"
        )
    if namespace != ALL:
        namespace = read_label(namespace, f"{place}: 'namespace'")
    if name != ALL:
        name = read_label(name, f"{place}: 'name'")
    dev, via = read_dev(fields.get("dev"), f"{place}: 'dev'"), read_via(fields.get("via"), f"{place}: 'via'")
    return ServiceEntry(namespace, name, dev, via, place)


def read_dst(value: object, via: Via, where: str) -> Network:
    """Read a destination: a network as 10.0.0.0/8, or `default`, which is of its gateway's family, of IPv4 without one.

    Raises InvalidConfig naming `where` and the value.
    """
    text = value.strip() if isinstance(value, str) else ""
    if text == DEFAULT:
        return DEFAULTS[via.version if not isinstance(via, str) else 4]
    if not _NETWORK.fullmatch(text):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a network as 10.0.0.0/8 or fd00::/8, or 'default'")
    try:
        dst = ip_network(text)
    except ValueError as error:
        raise InvalidConfig(f"{where} is {quote(value)}", f"it is no network: {error}") from None
    if dst.prefixlen and (why := why_never(prefix(dst))):
        raise InvalidConfig(f"{where} is {quote(value)}", why)
    return dst


def why_never(dst: Prefix) -> str:
    """Why there is never a route of ours to the destination; "" where there may be one."""
    return next((f"routes to {what} ({never}) are never made" for never, what in _NEVER if dst.overlaps(never)), "")


def read_dev(value: object, where: str) -> str:
    """Read the name of a device in the pod. Raises InvalidConfig naming `where` and the value."""
    if not isinstance(value, str) or not _DEV.fullmatch(value) or len(value) > _DEV_MAX or value in (".", ".."):
        raise InvalidConfig(f"{where} is {quote(value)}", f"it must be the name of a device: 1 to {_DEV_MAX} ASCII characters")
    if value == "lo":
        raise InvalidConfig(f"{where} is 'lo'", "nothing leaves a pod by it")
    return value


def read_via(value: object, where: str) -> Via:
    """Read a gateway: an address, `auto`, or nothing. Raises InvalidConfig naming `where` and the value."""
    text = value.strip() if isinstance(value, str) else value
    if text is None or text == "":
        return ""
    if text == AUTO:
        return AUTO
    try:
        if not isinstance(text, str) or "%" in text:
            raise ValueError
        address = ip_address(text)
    except ValueError:
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be an address as 10.0.0.1, or 'auto'") from None
    for never, what in _NEVER:
        if never not in _LINK_LOCAL and never.covers(host(address)):
            raise InvalidConfig(f"{where} is {quote(value)}", f"no gateway has an address of {what} ({never})")
    return address


def require_possible(dst: Network, via: Via, where: str) -> None:
    """Raise InvalidConfig unless the gateway can be one for the destination."""
    if isinstance(via, str):
        return
    if via.version != dst.version:
        raise InvalidConfig(f"{where} is {via}, but the route leads to {dst}", "both must be of one family of addresses")
    if host(via) == prefix(dst):
        raise InvalidConfig(f"{where} is {via}, to which the route itself leads", "a gateway is reached without it")


def read_label(value: object, where: str) -> str:
    """Read the name of a namespace or Service. Raises InvalidConfig naming `where` and the value."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a name: 1 to 63 of a-z, 0-9 and -")
    return value


def read_name(value: object, where: str) -> str:
    """Read the name of any other object. Raises InvalidConfig naming `where` and the value."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be a name: 1 to 253 of a-z, 0-9, - and .")
    return value


def read_labels(value: object, where: str) -> Mapping[str, str]:
    """Read labels, each with its value; at least one. Raises InvalidConfig naming `where` and the value."""
    if not isinstance(value, dict) or not value or not _are_texts(value) or not _are_texts(value.values()):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be an object of texts, and not empty")
    return dict(value)


def is_link_local6(address: Address) -> bool:
    """Whether it is of fe80::/10, which is reached on any device with IPv6."""
    return isinstance(address, IPv6Address) and address.is_link_local


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in values)
