"""Gateways: a port of the node itself on a bridge, with addresses, routes and address translation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from userspace_cni.base.limits import UNLIMITED, Limits


@dataclass(frozen=True)
class StaticRoute:
    """A route of the node to `dst` by `gw`: the pods of another node, say."""

    dst: str
    gw: str


@dataclass(frozen=True)
class EgressGateway:
    """Where frames from the gateway's subnets leave the node: by `via`, in the routing table `table`, for which a policy rule of
    that `priority` stands."""

    via: str
    table: int
    priority: int


@dataclass(frozen=True)
class Gateway:
    """What this node is to have: the internal port `port` of `bridge`.

    `addresses` are with prefix length; their networks are the gateway's subnets. `mac` "" is OVS's own choice, `mtu` 0 the
    bridge's, `vlan` None for untagged frames. `masquerade`: what leaves these subnets for elsewhere gets the node's address;
    `not_masqueraded` are destinations that keep the pod's. `sole`: only this node has the gateway, so that the bridge may have an
    uplink. `limits`: "to the pod" is from the node to the bridge. `said_by`: where the wish stands, for messages.
    """

    port: str
    bridge: str
    addresses: tuple[str, ...]
    mac: str = ""
    mtu: int = 0
    vlan: int | None = None
    masquerade: bool = False
    not_masqueraded: tuple[str, ...] = ()
    clamp_mss: bool = False
    routes: tuple[StaticRoute, ...] = ()
    sole: bool = False
    egress_gateway: EgressGateway | None = None
    limits: Limits = UNLIMITED
    said_by: str = field(default="", compare=False)
