"""Mirrors of the node itself: what each is made of, and what keeps a bridge from having one.

Its output is a port of the bridge; where there is none of that name, one is made, which has the mirror with itself. Without its
output there is no mirror.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import Spec
from userspace_cni.attachment.steps import EVERYTHING, HostEnd, Internal, MirrorOutput, OvsPort, Step, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import LinkNameTaken, NameTaken, Unavailable
from userspace_cni.host.node_net.mtu import USUAL
from userspace_cni.host.node_net.switch_links import SwitchLinks
from userspace_cni.network.spec_list import MIRROR

if TYPE_CHECKING:
    from userspace_cni.base.mirrors import NodeMirror
    from userspace_cni.node.local_node import LocalNode

_LOOK_S: Final = 5.0


def specs(mirrors: Iterable[tuple[str, NodeMirror]], node: LocalNode) -> Iterator[Spec]:
    """The specs of these mirrors, each with its source. A bridge that comes, or goes, makes another spec: it is tried at once."""
    for source, each in mirrors:
        content = each, node.switch.ports.has_bridge(each.bridge)
        yield Spec(MIRROR, f"{each.name} on {each.bridge}", source, "[[mirror]]", partial(_plan, each, node), content)


def _plan(mirror: NodeMirror, node: LocalNode, _: Record | None) -> tuple[Step, ...]:
    """The steps, after a look at bridge and output. Unavailable: there is no such bridge. NameTaken: the output has an owner."""
    from userspace_cni.switch.ovsdb.port_states import look_at_output

    look = partial(look_at_output, bridge=mirror.bridge, name=mirror.output)
    found = node.switch.ports.look(look, {}, f"bridge {mirror.bridge}: looking at it", Deadline.after(_LOOK_S))
    if not found.datapath:
        raise Unavailable(f"there is no bridge {mirror.bridge}", "the mirror waits for it and does not make it")
    marks = node_marks(MIRROR, f"{mirror.name} on {mirror.bridge}", node.store.journal.identity())
    mine = marks.items() <= found.marks.items()
    shows = EVERYTHING if mirror.select == "all" else ""
    if found.is_there and (not found.on_bridge or (found.owned and not mine)):
        raise NameTaken(
            f"port {mirror.output} is a pod's, an uplink or a gateway, or on another bridge",
            f"ovs-vsctl list Port {mirror.output}; 'output' names it",
        )
    if found.is_there and not mine:
        return (MirrorOutput(mirror.bridge, mirror.output, mirror.name, shows, marks),)
    internal = found.type == "internal" if mine else not _has_link(mirror.output, node)
    port = OvsPort(
        bridge=mirror.bridge,
        name=mirror.output,
        interface=Internal(mtu=USUAL) if internal else HostEnd("system"),
        marks=marks,
        foreign_bridge=True,
        datapath="system" if found.datapath == "system" else "netdev",
        mirror_outputs=(mirror.name,),
        shows=shows,
    )
    return (port,)


def _has_link(name: str, node: LocalNode) -> bool:
    """Whether the kernel has a link of that name that is no port's: of one that was deleted just now, ours or another program's,
    ovs-vswitchd is about to remove the link, which is awaited. Raises Unavailable."""
    links = SwitchLinks(node.installation.settings.switch_netns, node.installation.root)
    if not links.index(name):
        return False
    try:
        node.switch.ports.require_free((name,), Deadline.after(_LOOK_S))
    except LinkNameTaken:
        return True
    return False
