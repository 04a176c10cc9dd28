"""Probes as a command makes them: on the session with OVSDB of a node of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from userspace_cni.base.settings import Settings
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.probes import ProbePorts


@contextmanager
def probing(settings: Settings, purpose: str = "probe", **limits: float) -> Iterator[ProbePorts]:
    """The probes of one run, and the end of its session after them."""
    with (
        closing(LocalNode(settings, {}, resident=True)) as node,
        ProbePorts(node.installation, node, node.switch.ports, purpose, **limits) as ports,
    ):
        yield ports
