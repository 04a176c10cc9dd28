"""Processes of the program that cost no start: forked from one that has imported everything and has no other threads."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Final

IMPORTED: Final = (
    "userspace_cni.__main__",
    "userspace_cni.agent.service",
    "userspace_cni.attachment.link_plan",
    "userspace_cni.attachment.plan",
    "userspace_cni.attachment.verbs",
    "userspace_cni.base.log",
    "userspace_cni.cli.kubevirt.doctor",
    "userspace_cni.cli.main",
    "userspace_cni.cli.measure.probe",
    "userspace_cni.cli.node.attachments",
    "userspace_cni.cli.node.check",
    "userspace_cni.cli.node.gc",
    "userspace_cni.cli.node.status",
    "userspace_cni.cni.addressing",
    "userspace_cni.consumers",
    "userspace_cni.dataplane.node_ports",
    "userspace_cni.dataplane.ovsdb.commands",
    "userspace_cni.dataplane.ovsdb.session",
    "userspace_cni.dataplane.ports",
    "userspace_cni.fastpath.tap",
    "userspace_cni.host.device_info",
    "userspace_cni.host.leases",
    "userspace_cni.host.legacy",
    "userspace_cni.host.mounts",
    "userspace_cni.host.placement",
    "userspace_cni.host.switch_links",
    "userspace_cni.host.switch_taps",
    "userspace_cni.kube.notes",
    "userspace_cni.kube.watch",
    "userspace_cni.node.gathering",
    "userspace_cni.node.links",
    "userspace_cni.node.local",
    "userspace_cni.node.noted",
    "userspace_cni.node.provider_bridges",
    "userspace_cni.node.switch_sockets",
)
"""What a verb, an agent or a command about the node imports, most of it when it is first used."""


def server() -> ForkServerContext:
    """Where `Process` is such a one; what it runs is imported from its own module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [*IMPORTED, "tests.lab.node.inside", "tests.lab.node.served", "tests.agent.living", "tests.lab.node.forked_node"]
    )
    return context


def died(work: Callable[..., None], *args: object) -> bool:
    """Whether a process that does the work was killed by SIGKILL, which it may send itself; else it must have come to its end."""
    process = server().Process(target=work, args=args)
    process.start()
    process.join(60)
    code = process.exitcode
    assert code in (0, -signal.SIGKILL), code
    process.close()
    return code != 0
