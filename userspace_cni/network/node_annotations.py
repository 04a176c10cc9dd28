"""The node's own port as kube-ovn's controller writes it into the annotations of a Node. Pure.

It is desired where the settings say on which bridge, and that kube-ovn's annotations are read. Where kube-ovn's own daemon runs,
it makes that port (ovn0): then this must not be asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_interface
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.gateways import LINK_NAME, Gateway, address, interface, mac_address, require_valid
from userspace_cni.cni.bandwidth import kubeovn_rates
from userspace_cni.network.spec_list import ANNOTATIONS, GATEWAY, Desired

if TYPE_CHECKING:
    from userspace_cni.base.settings import Settings

_PREFIX: Final = "ovn.kubernetes.io/"
_ADDRESS, _CIDR, _MAC, _GATEWAY, _PORT = (
    f"{_PREFIX}{key}" for key in ("ip_address", "cidr", "mac_address", "gateway", "port_name")
)
"""Both families stand in one annotation, separated by a comma. Rates and bursts are read beside these (`kubeovn_rates`)."""
SCOPE: Final = (
    "it has what the node's annotations say (port, addresses, MAC, router, rates), and neither masquerade nor clamp_mss nor "
    "routes to the subnets of pods: a [[gateway]] of the settings with its 'port' takes its place"
)
"""What is to be known of such a gateway where it is asked for."""
_UNNAMED: Final = "annotations"
"""What a gateway is told as that has no name."""


def read_desired(annotations: Mapping[str, str] | None, settings: Settings) -> Desired:
    """What the node's annotations spec; `annotations` is None while they are not known."""
    if not (settings.kubeovn_annotations and settings.gateway_bridge):
        return Desired(ANNOTATIONS, complete=True)
    if annotations is None:
        return Desired(ANNOTATIONS, complete=False)
    try:
        found = gateway_of(annotations, settings.gateway_bridge, is_of_ovn=settings.gateway_bridge == settings.ovn_bridge)
    except InvalidConfig as error:
        name = annotations.get(_PORT) or _UNNAMED
        return Desired(ANNOTATIONS, complete=False, refused={(GATEWAY, name): str(error)})
    return Desired(ANNOTATIONS, complete=True, gateways=(found,) if found else ())


def gateway_of(annotations: Mapping[str, str], bridge: str, *, is_of_ovn: bool = False) -> Gateway | None:
    """The gateway that they are about; None where none of them is there. Raises InvalidConfig naming the annotation.

    `is_of_ovn`: the bridge is OVN's, which knows the port by the name in the annotation.

    The routers `ovn.kubernetes.io/gateway` have to answer; they are the node's next hops for nothing. The rates become what
    kube-ovn's daemon makes of them: it writes `ingress_rate` into the QoS of the node's port and `egress_rate` into its policing
    columns. An internal port has both the other way round than a pod's: QoS limits what the node sends to the bridge.
    """
    if not any(annotations.get(key) for key in (_ADDRESS, _CIDR, _PORT)):
        return None
    addresses, subnets = _listed(annotations, _ADDRESS), _listed(annotations, _CIDR)
    if len(addresses) != len(subnets):
        raise InvalidConfig(
            f"{_named(_ADDRESS)} is {annotations.get(_ADDRESS)!r}, and {_named(_CIDR)} {annotations.get(_CIDR)!r}",
            "each family has one address and one subnet",
        )
    port = annotations.get(_PORT, "")
    if not re.fullmatch(LINK_NAME, port):
        raise InvalidConfig(f"{_named(_PORT)} is {port!r}", f"it is the name of a link, too, and must match {LINK_NAME}")
    hops = tuple(address(each, _named(_GATEWAY)) for each in _listed(annotations, _GATEWAY))
    if len(hops) > len(addresses) or len({ip_address(each).version for each in hops}) < len(hops):
        raise InvalidConfig(
            f"{_named(_GATEWAY)} is {annotations.get(_GATEWAY)!r}", "each family of addresses has one router at most"
        )
    return require_valid(
        Gateway(
            port=port,
            bridge=bridge,
            addresses=tuple(_in_subnet(each, subnet) for each, subnet in zip(addresses, subnets, strict=True)),
            mac=mac_address(annotations[_MAC], _named(_MAC)) if annotations.get(_MAC) else "",
            next_hops=hops,
            sole=True,
            limits=kubeovn_rates(lambda key: (_named(_PREFIX + key), annotations.get(_PREFIX + key, "").strip())),
            logical_port=port if is_of_ovn else "",
            said_by="annotations of the node",
        )
    )


def _listed(annotations: Mapping[str, str], key: str) -> list[str]:
    return [each.strip() for each in annotations.get(key, "").split(",") if each.strip()]


def _in_subnet(text: str, subnet: str) -> str:
    """The address with the subnet's prefix length. Raises InvalidConfig unless it lies there."""
    found = address(text, _named(_ADDRESS))
    full = interface(f"{found}/{subnet.partition('/')[2]}", _named(_ADDRESS))
    if str(ip_interface(full).network) != subnet:
        raise InvalidConfig(f"{_named(_ADDRESS)} is {text!r}, which is not in {_named(_CIDR)}, {subnet!r}")
    return full


def _named(key: str) -> str:
    return f"annotation '{key}' of the node"
