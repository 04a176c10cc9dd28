"""The mirrors of the node's own settings, which need the switch and the kernel's links at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.dataplane.node_mirrors import NodeMirrors

if TYPE_CHECKING:
    from userspace_cni.node.local import LocalNode

_KEEP_S: Final = 5.0


def keep(node: LocalNode, before: Mapping[str, str]) -> Mapping[str, str]:
    """Bring the switch to the mirrors of the settings; by mirror what keeps it from being made, said when it was not `before`.

    Never fails: what cannot be done now is done by a later pass.
    """
    from userspace_cni.host.switch_links import SwitchLinks

    wanted = node.mirrors
    try:
        known = SwitchLinks(node.settings.switch_netns, node.root)
        links = frozenset(each.output for each in wanted if known.index(each.output))
        mirrors = _mirrors(node)
        found = {
            f"{each.name} on {each.bridge}": why for each, why in mirrors.keep(wanted, links, Deadline.after(_KEEP_S)).items()
        }
    except UserspaceError as error:
        found = {"all": str(error)}
    for name, why in found.items():
        if before.get(name) != why:
            say("warning", "a mirror of the settings is not made yet", mirror=name, problem=why)
    return found


def remove(node: LocalNode) -> None:
    """Remove all of them. Raises Unavailable."""
    _mirrors(node).keep((), frozenset(), Deadline.after(_KEEP_S))


def _mirrors(node: LocalNode) -> NodeMirrors:
    return NodeMirrors(node.ports.client, node.ports.daemon, node.journal.identity)
