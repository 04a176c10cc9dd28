"""The driver of leases: what a delegated IPAM plugin granted, and how it is released.

A lease is released with the stdin and variables of the ADD that got it, also when the configuration has changed since. It must be
released on every DEL and every failed ADD. A plugin that refused the ADD (for its version, its arguments) refuses the DEL too,
and holds no lease.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, Lease
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadEnvironment, DelegateFailed, StepFailed
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.cni.request import DELEGATED
from userspace_cni.host.runtimes.ipam import Delegate

_VERSION_REFUSED = 1


class LeaseDriver(Driver[Lease]):
    """Leases and releases; `lease` runs before the plan, because the plan needs the addresses."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        """Run ADD of the plugin; returns its decoded answer. The plugin keeps the descriptor `lock` open while it runs."""
        return delegate(step, self._root).add(step.stdin.encode(), deadline, (lock,))

    def apply(self, step: Lease, deadline: Deadline) -> None:  # noqa: ARG002
        """Do nothing for a granted lease; raise StepFailed for another: it cannot be granted after the plan."""
        if not step.granted:
            raise StepFailed(f"the lease of the IPAM plugin {step.plugin} was never granted", "DEL, and ADD again")

    def undo(self, step: Lease, deadline: Deadline) -> None:
        """Run DEL of the plugin. Raises the plugin's error, unless it granted nothing."""
        try:
            delegate(step, self._root).delete(step.stdin.encode(), deadline)
        except DelegateFailed as error:
            nothing_leased = step.granted is False or (step.granted is None and error.code == _VERSION_REFUSED)
            if not nothing_leased:
                raise
            say("info", "the IPAM plugin refuses DEL of what it did not grant", plugin=step.plugin, error=error)

    def check(self, step: Lease, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """Nothing: the verb CHECK itself asks the plugin, with the caller's stdin."""
        return []


def delegate(step: Lease, root: HostRoot = HERE) -> Delegate:
    """The plugin with the environment of ADD: this process's own variables, and those that came with the call."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CNI_")}
    variables = {**own, **step.variables, DELEGATED: "1"}
    return Delegate(step.plugin, require_path(step.plugin, step.variables), variables, root)


def require_path(plugin: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The directories of CNI_PATH, where `plugin` is looked for. Raises BadEnvironment when there are none."""
    path = tuple(part for part in variables.get("CNI_PATH", "").split(":") if part)
    if not path:
        raise BadEnvironment(
            "required environment variables are missing: [CNI_PATH]", f"the IPAM plugin '{plugin}' is looked for there"
        )
    return path
