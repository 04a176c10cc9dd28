"""How a pod's kernel link is now, when a person asks why its network does not work: both ends, and what the pod made of it.

Nothing is changed. Neighbours are asked by probes, which change no cache, for two seconds at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import Link
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import ContainerGone
from userspace_cni.base.routing import Inside
from userspace_cni.host.netlink.netns import Netns, open_pod_netns
from userspace_cni.host.pod_net.neighbour_queries import ask_neighbours, find_duplicates, wire
from userspace_cni.host.pod_net.pod_links import ListedLinks
from userspace_cni.host.pod_net.pod_routes import PodNamespace, PodRoutes
from userspace_cni.host.pod_net.pod_states import PodState, read_pod_state

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation

_DUPLICATE_S: Final = 0.15
_GATEWAYS_S: Final = 1.5
_GATEWAYS_MAX: Final = 16


@dataclass(frozen=True)
class SeenLink:
    """`host`: the name of the host end now, "" where ovs-vswitchd opens its ports there is none; `host_up`: it is up; `foreign`:
    the alias of another link that has the host end's name. `gone`: why the pod's namespace is no more, "" while it is there.

    `end`: the name of the pod's end now, "" where it is not in the pod; `taken`: another link of the pod has its name. The rest
    as of `PodState`. `inside`: links, addresses and routes of the pod, but for those of Route objects. `duplicates`: MACs of
    machines that answer for addresses of the pod; `silent`: next hops of its routes that do not answer; both None where they were
    not asked.
    """

    host: str = ""
    host_up: bool = False
    foreign: str = ""
    gone: str = ""
    end: str = ""
    end_up: bool = False
    carrier: bool = False
    taken: bool = False
    offload: bool = False
    failed: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    rp_filter: int = 0
    without_ipv6: bool = False
    reverse_path_drops: int = 0
    inside: Inside = field(default_factory=Inside)
    duplicates: Mapping[str, str] | None = None
    silent: tuple[str, ...] | None = None


def see_link(step: Link, here: Installation, deadline: Deadline) -> SeenLink:
    """Look at both ends of the link, and ask the neighbours. Raises UserspaceError."""
    deadline.require(f"looking at interface {step.name}")
    found = ListedLinks(step.switch_netns, here.root)()
    named = found.get(step.host)
    host = next((each for each in found.values() if each.alias == step.alias), None)
    outside: dict[str, Any] = {
        "host": host.name if host else "",
        "host_up": bool(host and host.up),
        "foreign": (named.alias or "no alias") if named and named.alias != step.alias else "",
    }
    try:
        with open_pod_netns(step.netns, step.netns_inode, here.root) as pod:
            state = read_pod_state(step, host, pod)
            routes = PodRoutes(here.settings.route_protocol, (here.settings.switch_netns,), here.root)
            inside = routes.look(PodNamespace(step.netns, step.netns, step.netns_inode))
            asked = _ask(step, state, inside, pod, deadline)
    except ContainerGone as error:
        return SeenLink(**outside, gone=error.message)
    end = state.end
    return SeenLink(
        **outside,
        end=end.name if end else "",
        end_up=bool(end and end.up),
        carrier=bool(end and end.carrier),
        taken=state.is_taken,
        offload=state.offload,
        failed=state.failed,
        rules=state.rules,
        rp_filter=state.rp_filter,
        without_ipv6=state.without_ipv6,
        reverse_path_drops=state.reverse_path_drops,
        inside=replace(inside, routes=inside.others(routes.protocol)),
        **asked,
    )


def _ask(step: Link, state: PodState, inside: Inside, pod: Netns, deadline: Deadline) -> dict[str, Any]:
    """Who else has the addresses of the link, and which next hops do not answer; nothing where the link is down, or goes."""
    if state.end is None or not state.end.up:
        return {}
    name, mac = state.end.name, state.end.mac
    has = inside.links[name].addresses if name in inside.links else ()
    own = [each for each in map(ip_interface, step.addresses) if each in has]
    hops = [each.via for each in inside.routes if each.dev == name and each.via is not None]
    gateways = [each for each in dict.fromkeys(hops) if not each.is_link_local][:_GATEWAYS_MAX]
    try:
        with wire(pod, name, listening=True) as opened:
            twice = find_duplicates(opened, mac, [each.ip for each in own], deadline.within(_DUPLICATE_S)) if own else {}
            answer_s = deadline.within(_GATEWAYS_S)
            silent = ask_neighbours(opened, mac, [str(each) for each in has], gateways, answer_s) if gateways else []
    except OSError:
        return {}
    others = {str(address): other for address, other in twice.items() if other not in state.macs}
    return {"duplicates": others, "silent": tuple(map(str, silent))}
