"""What of an ordinary pod's kernel link can be the cause: its two ends, what the pod has made of them, the neighbours. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.drift import Absent, sentence
from userspace_cni.attachment.listing import addresses
from userspace_cni.attachment.steps import Guard, Link, Shaper
from userspace_cni.base.findings import Finding
from userspace_cni.base.routing import Network, PodRoute
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

if TYPE_CHECKING:
    from userspace_cni.node.seen_link import SeenLink

_ON_NODE: Final = "on the node, in the network namespace of ovs-vswitchd:"
_NETDEV: Final = "netdev"
_IPV6_METRIC: Final = 1024
_STRICT: Final = 1
_SHOWN: Final = 3
_CHANGED: Final = {
    "mac": ("link-mac-changed", "neighbours, and what checks the pod's MAC address, know the former one"),
    "mtu": ("link-mtu-changed", "larger frames than the smaller MTU of the path are dropped"),
    "queue": ("link-queue-changed", "bursts are dropped earlier, or wait longer, than was asked for"),
}
"""By a drift's field: the finding's name, and why it matters."""


def judge_link(sight: AttachmentSight) -> Findings:
    """Both ends of the veth, and the addresses and routes at the pod's."""
    step, link = sight.record.link, known(sight.link)
    if step is None:
        return
    drifts = sight.drifts.get(Link.kind, ())
    if link is None:
        for each in drifts:
            yield sight.found("link-differs", sentence(each), each.details)
        return
    wrong = [*_host_end(sight, step, link), *_pod_end(sight, step, link)]
    for each in drifts:
        if each.field in _CHANGED:
            name, why = _CHANGED[each.field]
            wrong.append(
                sight.found(
                    name, f"{sentence(each)}: a program or a person has changed it", f"{each.details}; or {_anew(sight)}", why
                )
            )
    if link.end and not link.gone:
        wrong += [
            *_offload(sight, link),
            *_addresses(sight, step, link),
            *_routes(sight, step, link),
            *_neighbours(sight, link),
        ]
        wrong += [*_policies(sight, step, link)]
    yield from wrong
    if not any(each.severity != "note" for each in wrong):
        yield sight.well("link", f"both ends of the veth, {step.name} in the pod and {step.host} at the switch")


def judge_guard(sight: AttachmentSight) -> Findings:
    """The chain that keeps the node's own stack from the pod's frames."""
    for each in sight.drifts.get(Guard.kind, ()):
        gone = isinstance(each.found, Absent)
        what = "is gone" if gone else f"is not what it was: {sentence(each)}"
        message = f"the nftables chain that drops the pod's frames before the node's own stack ({each.subject}) {what}"
        why = "the node answers ARP for its own addresses there and forwards what the pod sends, past the VLAN of the port"
        remedy = (
            "a running agent makes it again; find what removes it, which is mostly a firewall that flushes all tables "
            "(`systemctl status nftables firewalld`; `nft list tables`)"
        )
        yield sight.found("guard-missing" if gone else "guard-changed", message, remedy, why)


def judge_shaper(sight: AttachmentSight) -> Findings:
    """The limit for what leaves the pod, at the pod's own end."""
    step = sight.record.link
    for each in sight.drifts.get(Shaper.kind, ()):
        if step is None or not each.field:
            continue  # of the pod's namespace, which `judge_link` words
        message = f"the limit for what leaves the pod by {step.name} is not in force: {sentence(each)}"
        shown = f"`{_inside(step)} tc qdisc show dev {shlex.quote(step.name)}`"
        remedy = (
            f"a running agent sets it again; something in the pod with NET_ADMIN has changed it ({shown} shows what is there)"
        )
        yield sight.found("limit-missing", message, remedy, "the pod can send more than its network allows")


def _host_end(sight: AttachmentSight, step: Link, link: SeenLink) -> Iterator[Finding]:
    if link.foreign:
        message = f"the name of the host end, {step.host}, is that of a link of another program ({link.foreign})"
        remedy = (
            f"{_ON_NODE} rename that link, or delete it if nothing needs it (`ip -d link show {step.host}`); then {_anew(sight)}"
        )
        yield sight.found("host-end-foreign", message, remedy, "the switch sends the pod's frames there")
    elif not link.host:
        message = f"the host end {step.host} of the pod's veth is gone from where ovs-vswitchd opens its ports"
        remedy = f"a running agent makes the pair again while the pod lives; without one, {_anew(sight)}"
        yield sight.found("host-end-missing", message, remedy, "both ends of a veth go together: the pod has none")
    elif link.host != step.host:
        message = f"the host end {step.host} of the pod's veth is called {link.host} now: a program or a person has renamed it"
        remedy = f"{_ON_NODE} `sh -c {shlex.quote(_renaming(link.host, step.host))}`"
        yield sight.found("host-end-renamed", message, remedy, "OVS opens the host end by its name")
    elif not link.host_up:
        message = f"the host end {step.host} of the pod's veth is down"
        remedy = f"{_ON_NODE} `ip link set {step.host} up`; a running agent does that, too"
        yield sight.found("host-end-down", message, remedy, "neither end carries a frame")


def _pod_end(sight: AttachmentSight, step: Link, link: SeenLink) -> Iterator[Finding]:
    inside = _inside(step)
    if link.gone:
        message = f"the pod's network namespace is gone: {link.gone}"
        remedy = "`userspace-cni gc` removes the attachment, once the runtime has let its sandbox go"
        yield sight.found("namespace-gone", message, remedy, "the pod's end went with it")
    elif not link.end and link.host:
        other = f", and {step.name} is another link there" if link.taken else ""
        message = (
            f"the pod's end of the veth is not in the pod's network namespace any more: a program or a person has moved it{other}"
        )
        remedy = f"move it back if you know where it is (`lsns -t net` lists namespaces), or {_anew(sight)}"
        yield sight.found("pod-end-moved", message, remedy, f"the pod has no {step.name}")
    elif link.end and link.end != step.name:
        message = f"the pod's end {step.name} is called {link.end} now: something in the pod has renamed it"
        remedy = f"`{inside} sh -c {shlex.quote(_renaming(link.end, step.name))}`; or {_anew(sight)}"
        yield sight.found("pod-end-renamed", message, remedy, "programs and routes go by the name")
    if link.end and not link.end_up:
        message = f"the pod's end {link.end} is down: something in the pod has set it so"
        up = f"`{inside} ip link set {shlex.quote(link.end)} up`"
        remedy = f"{up}; the routes through it are lost by now: if it had any, {_anew(sight)}"
        yield sight.found("pod-end-down", message, remedy, "neither end carries a frame")


def _offload(sight: AttachmentSight, link: SeenLink) -> Iterator[Finding]:
    step = sight.record.port
    if link.offload and step and step.datapath == _NETDEV and sight.record.link:
        message = f"checksum offload is on at the pod's end {link.end}: something in the pod has turned it on"
        why = "the switch completes no checksum, so that ping works and TCP never connects"
        remedy = f"`{_inside(sight.record.link)} ethtool -K {shlex.quote(link.end)} tx off`"
        yield sight.found("checksum-offload", message, remedy, why)


def _addresses(sight: AttachmentSight, step: Link, link: SeenLink) -> Iterator[Finding]:
    has = link.inside.links[link.end].addresses if link.end in link.inside.links else ()
    wanted = [ip_interface(each) for each in step.addresses]
    missing = [each for each in wanted if each not in has]
    end = shlex.quote(link.end)
    if missing:
        shown = ", ".join(map(str, missing))
        cut = link.without_ipv6 and all(each.version == 6 for each in missing)
        how = "IPv6 is off at it (sysctl disable_ipv6)" if cut else "something in the pod has taken it away"
        message = f"the pod's end {link.end} does not have {shown}: {how}"
        commands = [f"`{_inside(step)} ip address add {each} dev {end}`" for each in missing[:_SHOWN]]
        first = f"`{_inside(step)} sysctl {shlex.quote(f'net.ipv6.conf.{link.end}.disable_ipv6=0')}`, then " if cut else ""
        remedy = f"{first}{', '.join(commands)}, and its routes; or {_anew(sight)}"
        yield sight.found("address-missing", message, remedy, "the pod is reached at no such address")
    for each in link.failed:
        mac = (link.duplicates or {}).get(each, "")
        who, take = _holder(sight, mac, each)
        message = f"IPv6 does not use {each} at {link.end}: {who} was found to have it (dadfailed)"
        remedy = f"{take}, then {_anew(sight)}"
        yield sight.found("address-failed", message, remedy, "the kernel never uses such an address")


def _routes(sight: AttachmentSight, step: Link, link: SeenLink) -> Iterator[Finding]:
    lost = [each.expected for each in sight.drifts.get(Link.kind, ()) if each.field == "route"]
    if lost:
        message = (
            f"the pod lacks the route {', '.join(map(str, lost))} by {step.name}: something in the pod has removed or replaced it"
        )
        again = [f"`{_inside(step)} ip route add {each} dev {shlex.quote(link.end)}`" for each in lost[:_SHOWN]]
        why = "packets to there take another way, or none"
        yield sight.found("route-missing", message, f"{', '.join(again)}; or {_anew(sight)}", why)
    for own, other in list(_overriding(step, link))[:_SHOWN]:
        message = f"another route of the pod overrides the way to {own} by {link.end}: {other}, metric {other.metric}"
        ip = f"{_inside(step)} ip {'-6 ' if own.version == 6 else ''}route"
        remedy = f"`{ip} show`; if nothing needs it, `{ip} del {shlex.join(str(other).split())} metric {other.metric}`"
        yield sight.found("route-overridden", message, remedy, "packets to there do not leave by this interface")


def _overriding(step: Link, link: SeenLink) -> Iterator[tuple[Network, PodRoute]]:
    """The networks that the interface is to reach, each with the first route by another link that takes packets from it: a longer
    prefix within it, or the same with precedence. A route whose priority the network gives is meant to be second; and more
    particular routes than the default one are no such case."""
    asked = {ip_network(each["dst"], strict=False) for each in step.routes if not (each.get("priority") or each.get("table"))}
    routes = link.inside.routes
    for network in sorted({ip_interface(each).network for each in step.addresses} | asked, key=str):
        mine = [number for number, each in enumerate(routes) if each.dev == link.end and each.dst == network]
        others = [number for number, each in enumerate(routes) if each.dev != link.end and _takes(each, network)]
        for number in others:
            same = routes[number].dst == network
            first = min(((_metric(routes[each]), each) for each in mine), default=None)
            if network.prefixlen < network.max_prefixlen and (not same or (first and (_metric(routes[number]), number) < first)):
                yield network, routes[number]
                break


def _takes(route: PodRoute, network: Network) -> bool:
    """Whether it is for packets to that network, or to a part of it; of the default network only for all."""
    if route.dst.version != network.version:
        return False
    return route.dst == network or (bool(network.prefixlen) and route.dst.subnet_of(network))  # type: ignore[arg-type]  # one version


def _metric(route: PodRoute) -> int:
    return route.metric or (_IPV6_METRIC if route.dst.version == 6 else 0)


def _neighbours(sight: AttachmentSight, link: SeenLink) -> Iterator[Finding]:
    for address, mac in (link.duplicates or {}).items():
        if address in link.failed or _is_recorded(sight, mac, address):
            continue  # told of that address, and as duplicate-address
        who, take = _holder(sight, mac, address)
        why = "what is sent to the address reaches now the pod, now the other one"
        remedy = f"{take}; the network's key duplicateCheck refuses such a pod"
        yield sight.found("address-duplicate", f"{who} answers for the pod's address {address}", remedy, why)
    if link.silent:
        message = f"the next hop {', '.join(link.silent)} of the pod's routes by {link.end} does not answer"
        remedy = (
            "look at what lies between: the VLAN of the port (`userspace-cni show`), the uplink of its bridge "
            "(`userspace-cni network`), and the router itself"
        )
        yield sight.found("gateway-silent", message, remedy, "nothing beyond the network is reached")


def _holder(sight: AttachmentSight, mac: str, address: str) -> tuple[str, str]:
    """Who has an address of the pod, and how it is taken away there. `mac`: of the one who answers for it, "" for unknown."""
    traffic, step = known(sight.traffic), sight.record.port
    pods = sorted(each.pod for each in traffic.peers if mac and each.mac == mac and each.pod) if traffic else []
    if pods:
        return (
            f"pod {pods[0]} on this node (MAC {mac})",
            f"take {address} from pod {pods[0]}, or give this pod another one (ipam)",
        )
    table = f"`ovs-appctl fdb/show {step.bridge}`" if step else "the bridge's table of MACs"
    shows = f"find it: {table} has the port of each MAC that was seen"
    return f"another machine{f' (MAC {mac})' if mac else ''}", f"{shows}; give one of them another address"


def _is_recorded(sight: AttachmentSight, mac: str, address: str) -> bool:
    """Whether it is another pod of the node that was given the address, too."""
    traffic, mine = known(sight.traffic), sight.record
    return traffic is not None and any(
        other.port
        and other.port.mac.lower() == mac
        and (other.pod_namespace, other.pod_name) != (mine.pod_namespace, mine.pod_name)
        and address in {str(ip_interface(each).ip) for each in addresses(other)}
        for other in traffic.others
    )


def _policies(sight: AttachmentSight, step: Link, link: SeenLink) -> Iterator[Finding]:
    inside = _inside(step)
    if link.rp_filter == _STRICT and link.reverse_path_drops:
        message = (
            f"the sysctl rp_filter is strict at {link.end}, and has dropped {link.reverse_path_drops} "
            f"packet{'s' if link.reverse_path_drops > 1 else ''} in the pod whose answer would leave by another interface"
        )
        setting = shlex.quote(f"net.ipv4.conf.{link.end}.rp_filter=2")
        loose = f"`{inside} sysctl net.ipv4.conf.all.rp_filter=2 {setting}`"
        remedy = f"a route back by {link.end} (a Route object, docs/routes.md); or {loose}"
        yield sight.found("rp-filter", message, remedy, "connections from outside the network time out", "warning")
    if link.rules:
        message = f"the pod has policy rules that may take packets past its main table: {'; '.join(link.rules)}"
        remedy = f"`{inside} ip rule`, `{inside} ip route show table all`"
        yield sight.found("policy-rules", message, remedy, severity="note")


def _renaming(now: str, name: str) -> str:
    """The commands that give a link its name back: one that is up may have none other."""
    end, wanted = shlex.quote(now), shlex.quote(name)
    return f"ip link set {end} down; ip link set {end} name {wanted}; ip link set {wanted} up"


def _anew(sight: AttachmentSight) -> str:
    """How the pod gets a new link with all that ADD gives it."""
    record = sight.record
    if not record.pod_name:
        return "detach the container and attach it again"
    pod = shlex.join(["-n", record.pod_namespace or "default", "delete", "pod", record.pod_name])
    return f"delete the pod (`kubectl {pod}`): its owner recreates it, with a new link, its addresses and its routes"


def _inside(step: Link) -> str:
    """The beginning of a command in the pod's network namespace."""
    return f"nsenter --net={shlex.quote(step.netns)}"
