"""What the node says for networks that leave it to the node: the MTU, and the network of Services. By a setting, or by a file.

openshift-sdn writes such a file (`{"mtu": 1450, "routableMTU": 1400}`; its older releases `{"mtu": 1450, "serviceNetworkCIDR":
"172.30.0.0/16"}`) once it knows the cluster's network. While it is absent neither is known yet, and nothing may be guessed: two
ends of a link that differ silently lose frames.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, Unavailable, quote
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import MTU_MAX, MTU_MIN, Settings
from userspace_cni.host.files.whole_files import read_of_root

USUAL: Final = 1500
_BYTES_MAX: Final = 64 << 10
_SERVICES: Final = "serviceNetworkCIDR"
_EXAMPLE: Final = 'it must look like {"mtu": 1450, "routableMTU": 1400, "serviceNetworkCIDR": "172.30.0.0/16"}'


@dataclass(frozen=True)
class NodeMtu:
    """In bytes. `routable`: what routes are to have, None for what links have; by it an MTU is lowered under running pods."""

    link: int = USUAL
    routable: int | None = None


def node_mtu(settings: Settings, root: HostRoot = HERE) -> NodeMtu:
    """What holds for a network that says no MTU: the setting `mtu`, else the file `mtu_file`, else 1500.

    Raises Unavailable while the file is not there or cannot be read now, InvalidConfig for a file that is not the
    administrator's or has no valid content.
    """
    if settings.mtu or not settings.mtu_file:
        return NodeMtu(settings.mtu or USUAL)
    what, held = _read(settings.mtu_file, root)
    link, routable = (held.get(key) for key in ("mtu", "routableMTU"))
    for key, value in (("mtu", link), ("routableMTU", routable)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not MTU_MIN <= value <= MTU_MAX):
            raise InvalidConfig(f"{what}: '{key}' is {value!r}", f"it must be from {MTU_MIN} to {MTU_MAX}")
    if link is None:
        raise InvalidConfig(f"{what}: it has no 'mtu'", _EXAMPLE)
    return NodeMtu(link, None if routable is None else min(link, routable))


def node_services(settings: Settings, root: HostRoot = HERE) -> str:
    """The network of the cluster's Services, as openshift-sdn's file says it; as its plugin does, without bits of a host.

    Raises InvalidConfig where there is no such setting or value, Unavailable as `node_mtu`.
    """
    if not settings.mtu_file:
        raise InvalidConfig(
            "key 'serviceCIDRs' is 'node', and the node's setting mtu_file names no file",
            'give the setting, or the networks themselves, as ["10.96.0.0/12"]',
        )
    what, held = _read(settings.mtu_file, root)
    said = held.get(_SERVICES)
    try:
        if not isinstance(said, str) or "/" not in said:
            raise ValueError
        return str(ip_network(said, strict=False))
    except ValueError:
        lack = f"it has no '{_SERVICES}'" if said is None else f"'{_SERVICES}' is {quote(said)}"
        remedy = "key 'serviceCIDRs' of the network is 'node': write the networks there if openshift-sdn is too new to write it"
        raise InvalidConfig(f"{what}: {lack}", remedy) from None


def _read(path: str, root: HostRoot) -> tuple[str, dict[str, Any]]:
    """How an error speaks of the file, and its values."""
    what = f"setting mtu_file, {path}"
    text = read_of_root(root.path(path), what, _BYTES_MAX + 1)
    if text is None:
        remedy = "which program writes this file? else give the setting mtu, and the networks of Services in 'serviceCIDRs'"
        raise Unavailable(f"{what}: it is not yet available", remedy)
    try:
        if len(text) > _BYTES_MAX:
            raise ValueError(f"more than {_BYTES_MAX} bytes")
        held = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{what}: {error}", _EXAMPLE) from None
    if not isinstance(held, dict):
        raise InvalidConfig(f"{what}: not a JSON object", _EXAMPLE)
    return what, held
