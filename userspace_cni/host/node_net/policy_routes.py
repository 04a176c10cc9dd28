"""Policy routing to an egress gateway: the driver of PolicyRoute. Tables and rules of other programs are never changed.

Two rules for each source, both with our protocol number: the first uses the main table without its default route, which keeps
other subnets, the node's own networks and the gateway's answers to its pods on their direct way; the second leads everything
else to the table, whose only route is the default one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import Driver, PolicyRoute, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.node_kernel import (
    NODE_PROTOCOL,
    Kernel,
    at_node,
    has_ended,
    unless_gone,
    unless_there,
)
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.host.netlink.rule_messages import FoundRule

T = TypeVar("T")


class PolicyRouteDriver(Driver[PolicyRoute]):
    """Rules and the routing table of an egress gateway."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: PolicyRoute, deadline: Deadline) -> None:
        """Make the default route, then the rules. Raises StepFailed where the table has routes of another program."""
        deadline.require(_what(step))
        self._at(step, "making it", lambda kernel: _make(kernel, step))

    def undo(self, step: PolicyRoute, deadline: Deadline) -> None:
        """Remove the rules of ours that lead to the table or stand for it, then the routes of ours in it."""
        deadline.require(_what(step))
        if has_ended(step.switch_netns, self._root):
            return

        def remove(kernel: Kernel) -> None:
            for rule in _rules_of_ours(kernel.rules(), step):
                unless_gone(partial(kernel.remove_rule, rule))
            for route in kernel.routes(table=step.table, protocol=NODE_PROTOCOL):
                unless_gone(partial(kernel.remove_route, route))

        self._at(step, "removing it", remove)

    def check(self, step: PolicyRoute, deadline: Deadline) -> list[Drift]:
        """The table has the default route, and all rules stand."""
        deadline.require(_what(step))
        look = f"in the switch's network namespace: ip rule, and ip route show table {step.table}"
        return [Drift(_what(step), *each, look) for each in self._at(step, "looking at it", lambda kernel: _look(kernel, step))]

    def is_lost(self, step: PolicyRoute, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - its table is no other step's
        deadline.require(_what(step))
        return bool(self._at(step, "looking at it", lambda kernel: _look(kernel, step)))

    def _at(self, step: PolicyRoute, doing: str, work: Callable[[Kernel], T]) -> T:
        return at_node(step.switch_netns, self._root, f"{_what(step)}: {doing}", work)


def _make(kernel: Kernel, step: PolicyRoute) -> None:
    foreign = [each for each in kernel.routes(table=step.table) if each.protocol != NODE_PROTOCOL]
    if foreign:
        raise StepFailed(
            f"{_what(step)}: routing table {step.table} has routes of another program, to {foreign[0].route.dst} first",
            f"ip route show table {step.table}; give the egress gateway a table of its own",
        )
    link = kernel.links().get(step.link) if step.link else None
    if step.link and link is None:
        raise StepFailed(f"{_what(step)}: there is no link {step.link}", "ip link")
    kernel.replace_route(_everything(step), step.via, table=step.table, index=link.index if link else 0)
    wanted, there = _wanted(step), kernel.rules()
    for rule in wanted:
        if rule not in there:
            unless_there(partial(kernel.add_rule, rule))
    for rule in _rules_of_ours(there, step):
        if rule not in wanted:
            unless_gone(partial(kernel.remove_rule, rule))


def _wanted(step: PolicyRoute) -> list[FoundRule]:
    near = [FoundRule(each, MAIN, step.priority - 1, NODE_PROTOCOL, 0) for each in step.sources]
    return [*near, *(FoundRule(each, step.table, step.priority, NODE_PROTOCOL, None) for each in step.sources)]


def _rules_of_ours(rules: list[FoundRule], step: PolicyRoute) -> list[FoundRule]:
    """The rules of ours that lead to the table, at whichever priority, behind those that stand before them.

    So do those that stand before the step's own: a process that died between the two has left them. Others that lead to the main
    table are of another installation.
    """
    ours = [each for each in rules if each.protocol == NODE_PROTOCOL]
    far = [each for each in ours if each.table == step.table]
    before = {each.priority - 1 for each in far} | {step.priority - 1}
    return [*(each for each in ours if each.table == MAIN and each.priority in before), *far]


def _look(kernel: Kernel, step: PolicyRoute) -> list[tuple[str, Value, Value]]:
    """Field, expected and found of each difference."""
    routes = [each.route for each in kernel.routes(table=step.table) if not each.route.dst.prefixlen]
    found: list[tuple[str, Value, Value]] = []
    gateways = [str(each.gw or "") for each in routes]
    if step.via not in gateways:
        found.append(("default route", step.via, gateways[0] if gateways else Absent()))
    there = kernel.rules()
    return found + [("rule", _shown(rule), Absent()) for rule in _wanted(step) if rule not in there]


def _everything(step: PolicyRoute) -> str:
    return "::/0" if ":" in step.via else "0.0.0.0/0"


def _shown(rule: FoundRule) -> str:
    suppressed = "" if rule.suppresses is None else f" suppress_prefixlength {rule.suppresses}"
    return f"from {rule.source} lookup {rule.table}{suppressed} priority {rule.priority}"


def _what(step: PolicyRoute) -> str:
    return f"egress gateway {step.via}"
