"""A process that makes, changes or undoes a gateway is killed after each effect on the kernel: the next one finishes it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.cni.spec import switch_of
from tests.lab.network.gateways import BOTH_HOLD, GATEWAY, OUTSIDE, Site, everything, kept, routed
from tests.lab.node.forked import died
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute
from userspace_cni.base.settings import load
from userspace_cni.host.netlink.node_kernel import Kernel
from userspace_cni.host.node_net import nft_program
from userspace_cni.node.local_node import LocalNode

FULL = replace(
    GATEWAY,
    clamp_mss=True,
    routes=(StaticRoute("10.57.0.0/24", OUTSIDE[0]), StaticRoute("fd00:57::/64", OUTSIDE[1])),
    egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042),
)
CHANGED = replace(
    FULL,
    addresses=("10.58.0.1/24", "fd00:56::1/64"),
    routes=(StaticRoute("10.57.0.0/24", "192.0.2.2"), StaticRoute("10.59.0.0/24", OUTSIDE[0])),
    egress_gateway=EgressGateway("192.0.2.2", 1042, 500),
)
EFFECTS = ("set_up", "add_address", "remove_address", "add_route", "replace_route", "remove_route", "add_rule", "remove_rule")
MOST = 40
"""More effects than any of these changes has."""


@pytest.fixture
def site(node: Node) -> Iterator[Site]:
    """The node's own network, with a NIC."""
    place = switch_of(node).netns
    with routed(place), kept(node, place) as made:
        yield made


def killed(node: Node, gateways: tuple[Gateway, ...], after: int) -> bool:
    """Whether a process that reconciles these gateways had so many effects, and was killed after the last of them."""
    return died(_die, node.environ, switch_of(node).netns, gateways, after)


def _die(environ: dict[str, str], place: str, gateways: tuple[Gateway, ...], after: int) -> None:
    left = after

    def counted(effect: Callable[..., Any]) -> Callable[..., Any]:
        def work(*given: Any, **named: Any) -> Any:
            nonlocal left
            done = effect(*given, **named)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return work

    for name in EFFECTS:
        setattr(Kernel, name, counted(getattr(Kernel, name)))
    nft_program.load = counted(nft_program.load)
    with closing(LocalNode(load(environ), {}, resident=True)) as local:
        Site(local, place).keep(*gateways)


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (FULL,)), ((FULL,), (CHANGED,)), ((FULL,), ())],
    ids=["made", "changed", "undone"],
)
def test_killed_after_each_effect(node: Node, site: Site, before: tuple[Gateway, ...], after: tuple[Gateway, ...]) -> None:
    """At whatever point a process died, the next one completes the change, or reverts it if the spec has changed back."""

    def bring(gateways: tuple[Gateway, ...]) -> dict[str, list[str]]:
        assert site.keep(*gateways) == (BOTH_HOLD if gateways else {})
        return everything(site.place)

    bare, ready, first = bring(()), bring(after), bring(before)
    number = 0
    while killed(node, after, number := number + 1):
        assert number < MOST
        desired, wanted = (after, ready) if number % 2 else (before, first)
        wait_until(lambda: bring(desired) == wanted, what=f"the node as desired after effect {number}")  # noqa: B023
        if desired != before:
            bring(before)
    assert number > 4
    wait_until(lambda: bring(()) == bare, what="the node as it was")
