"""Processes of the program that need no start: forked from one that has imported everything and has no other threads."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from functools import cache
from multiprocessing.context import ForkServerContext
from pkgutil import walk_packages
from typing import Final

import userspace_cni

OF_OTHERS: Final = ("prometheus_client", "pyroute2", "urllib3.util.ssl_", "yaml")
"""Modules to be imported at their first use. gRPC is not among them, because it does not survive a fork."""
ROOMS: Final = (
    *("agent", "attachment", "base", "cli", "cni", "consumers"),
    *("host", "kube", "network", "node", "probe", "routes", "switch", "tap"),
)
OF_TESTS: Final = ("tests.lab.node.forked_node", "tests.lab.node.inside", "tests.lab.node.served", "tests.agent.living")


def server() -> ForkServerContext:
    """A server that forks such processes; what they run is imported from its own module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*imported(), *OF_TESTS])
    return context


@cache
def imported() -> list[str]:
    """The modules that a command, a verb or an agent imports, most of them when they are first used."""
    found = [each.name for each in walk_packages(userspace_cni.__path__, f"{userspace_cni.__name__}.", onerror=lambda _: None)]
    ours = [name for name in found if name.split(".")[1] in ROOMS and not name.endswith("_pb2")]
    return ["userspace_cni.__main__", "userspace_cni.fastpath.tap", *ours, *OF_OTHERS]


def died(work: Callable[..., None], *args: object) -> bool:
    """Whether a process that does the work was killed by SIGKILL, which it may send itself.

    If not, it must have ended normally.
    """
    process = server().Process(target=work, args=args)
    process.start()
    process.join(60)
    code = process.exitcode
    assert code in (0, -signal.SIGKILL), code
    process.close()
    return code != 0
