"""The link of an internal port as the node uses it, and the node's routes: the drivers of NodeLink and NodeRoute.

The switch makes the link and keeps its MTU and MAC. Only what carries our protocol number is removed: an address or a route that
an administrator adds beside ours stays. Router advertisements are not heard there: every pod of the bridge could send them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import Driver, NodeLink, NodeRoute, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.node_kernel import (
    MARKS_ADDRESSES,
    NODE_PROTOCOL,
    Kernel,
    KernelLook,
    NodeLook,
    at_node,
    has_ended,
    unless_gone,
    unless_there,
)
from userspace_cni.host.netlink.route_messages import FoundRoute

_SYSCTLS: Final = {"accept_ra": "0", "autoconf": "0"}


class NodeLinkDriver(Driver[NodeLink]):
    """Addresses of links that the switch makes."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: NodeLink, deadline: Deadline) -> None:
        """Set the link up with these addresses, and take from it those of ours that it is to have no more.

        Raises Unavailable while there is no such link.
        """
        deadline.require(_link(step))
        at_node(step.switch_netns, self._root, f"{_link(step)}: setting it up", lambda kernel: _set_up(kernel, step))

    def undo(self, step: NodeLink, deadline: Deadline) -> None:
        """Take the addresses of ours from the link, if it is still there: mostly it goes with its port."""
        deadline.require(_link(step))
        if has_ended(step.switch_netns, self._root):
            return
        at_node(step.switch_netns, self._root, f"{_link(step)}: taking its addresses", lambda kernel: _clear(kernel, step, ()))

    def check(self, step: NodeLink, deadline: Deadline) -> list[Drift]:
        """The link is there and up, with every address."""
        deadline.require(_link(step))
        look = f"in the switch's network namespace: ip address show {step.name}"
        return [Drift(_link(step), *each, look) for each in _differences(step, NodeLook(step.switch_netns, self._root)())]

    def is_lost(self, step: NodeLink, seen: SharedReads, deadline: Deadline) -> bool:
        deadline.require(_link(step))
        return bool(_differences(step, seen.once(NodeLook(step.switch_netns, self._root))))


class NodeRouteDriver(Driver[NodeRoute]):
    """Routes of the node's main table."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: NodeRoute, deadline: Deadline) -> None:
        """Add the route, or replace the one of ours that leads there. Raises StepFailed where another program's leads there."""
        deadline.require(_route(step))
        at_node(step.switch_netns, self._root, f"{_route(step)}: adding it", lambda kernel: _lead(kernel, step))

    def undo(self, step: NodeRoute, deadline: Deadline) -> None:
        deadline.require(_route(step))
        if has_ended(step.switch_netns, self._root):
            return

        def remove(kernel: Kernel) -> None:
            for each in _of_step(kernel.routes(protocol=NODE_PROTOCOL), step):
                unless_gone(partial(kernel.remove_route, each))

        at_node(step.switch_netns, self._root, f"{_route(step)}: removing it", remove)

    def check(self, step: NodeRoute, deadline: Deadline) -> list[Drift]:
        deadline.require(_route(step))
        found = _of_step(NodeLook(step.switch_netns, self._root)().routes, step)
        if any(_gateway(each) == step.gw for each in found):
            return []
        look = f"in the switch's network namespace: ip route show {step.dst}"
        return [Drift(_route(step), "", step.gw, _gateway(found[0]) if found else Absent(), look)]

    def is_lost(self, step: NodeRoute, seen: SharedReads, deadline: Deadline) -> bool:
        deadline.require(_route(step))
        routes = seen.once(NodeLook(step.switch_netns, self._root)).routes
        return not any(_gateway(each) == step.gw for each in _of_step(routes, step))


def _set_up(kernel: Kernel, step: NodeLink) -> None:
    link = kernel.links().get(step.name)
    if link is None:
        raise Unavailable(f"{_link(step)}: there is no link of that name", "ovs-vswitchd makes it: ovs-vsctl show, and its log")
    for key, value in _SYSCTLS.items():
        _write(link, key, value)
    if any(":" in each for each in step.addresses):
        _write(link, "disable_ipv6", "0")
    for each in step.addresses:
        unless_there(partial(kernel.add_address, link, each))
    _clear(kernel, step, step.addresses)
    if not link.up:
        kernel.set_up(link)


def _clear(kernel: Kernel, step: NodeLink, keep: tuple[str, ...]) -> None:
    """Take from the link the addresses of ours that are not to be kept.

    A kernel that keeps no protocol of addresses shows none of ours: there only those of the step count, so that one of an
    administrator stays, and so does one of ours that a changed spec names no more.
    """
    link = kernel.links().get(step.name)
    found = [each for each in kernel.addresses() if link and each.index == link.index]
    for each in found:
        address = str(each.interface)
        if address not in keep and (each.protocol == NODE_PROTOCOL if MARKS_ADDRESSES else address in step.addresses):
            unless_gone(partial(kernel.remove_address, each))


def _write(link: FoundLink, key: str, value: str) -> None:
    """Write a sysctl of the link's IPv6, unless it says so already: /proc/sys may be read-only. Without IPv6 there is none."""
    path = Path(f"/proc/sys/net/ipv6/conf/{link.name}/{key}")
    with suppress(FileNotFoundError):
        if path.read_text(encoding="ascii").strip() != value:
            with path.open("r+", encoding="ascii") as file:
                file.write(value)


def _differences(step: NodeLink, found: KernelLook) -> list[tuple[str, str | Absent, str | Absent]]:
    """Field, expected and found of each difference."""
    link = found.links.get(step.name)
    if link is None:
        return [("", "a link", Absent())]
    there = {str(each.interface) for each in found.of_link(step.name)}
    missing: list[tuple[str, str | Absent, str | Absent]] = [
        ("address", each, Absent()) for each in step.addresses if each not in there
    ]
    return [*([] if link.up else [("state", "up", "down")]), *missing]


def _lead(kernel: Kernel, step: NodeRoute) -> None:
    ours = _of_step(kernel.routes(protocol=NODE_PROTOCOL), step)
    if any(_gateway(each) == step.gw for each in ours):
        return
    if ours:
        kernel.replace_route(step.dst, step.gw)
    elif not unless_there(lambda: kernel.add_route(step.dst, step.gw)):
        raise StepFailed(f"{_route(step)}: the node has another program's route to {step.dst}", f"ip route show {step.dst}")


def _of_step(routes: list[FoundRoute], step: NodeRoute) -> list[FoundRoute]:
    return [each for each in routes if str(each.route.dst) == step.dst]


def _gateway(found: FoundRoute) -> str:
    return str(found.route.gw or "")


def _link(step: NodeLink) -> str:
    return f"link {step.name}"


def _route(step: NodeRoute) -> str:
    return f"route to {step.dst}"
