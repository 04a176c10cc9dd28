"""A pod with two networks in namespaces of the test's own: eth0 and eth1, each a veth to a network beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import inside, veth

NETS = {"eth0": ("10.1.0.{}/16", "fd01::{}/64"), "eth1": ("10.2.0.{}/16", "fd02::{}/64")}
"""Addresses by link; the pod has .2, the other end .1."""


@dataclass(frozen=True)
class DualPod:
    """The paths of two namespaces: the pod's, and the one to which its links lead."""

    path: str
    beyond: str

    def ip(self, *argv: str) -> str:
        return inside(self.path, "ip", *argv)

    def routes(self, version: int = 4, *more: str) -> list[str]:
        """The routes of the main table, without what the kernel makes by itself, as words in the kernel's order."""
        found: list[dict[str, Any]] = json.loads(self.ip("-json", "-details", f"-{version}", "-N", "route", "show", *more))
        return [
            f"{each['dst']} {each.get('gateway', '-')} {each.get('dev', '-')} {each['protocol']}"
            for each in found
            if str(each["protocol"]) not in ("2", "kernel")
        ]

    def way(self, address: str) -> str:
        """The link through which the pod reaches the address."""
        [found] = json.loads(self.ip("-json", "route", "get", address))
        return str(found["dev"])


@contextmanager
def dual_pod(nets: dict[str, tuple[str, ...]] | None = None) -> Iterator[DualPod]:
    """The pod, with default routes of both IP versions over eth0, as a CNI plugin makes them (protocol boot).

    Removed afterwards.
    """
    with netns() as path, netns() as beyond:
        for link, addresses in (nets or NETS).items():
            veth(beyond, f"to-{link}", path, link, *(each.format(2) for each in addresses))
            for each in addresses:
                inside(beyond, "ip", "address", "add", each.format(1), "dev", f"to-{link}", *(["nodad"] if ":" in each else []))
        inside(path, "ip", "link", "set", "lo", "up")
        if nets is None:
            inside(path, "ip", "route", "add", "default", "via", "10.1.0.1")
            inside(path, "ip", "-6", "route", "add", "default", "via", "fd01::1")
        yield DualPod(path, beyond)
