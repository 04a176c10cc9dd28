"""Where the addresses of attachments come from: the IPAM plugin that a network names, and the Subnet that it may name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import Lease
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DelegateFailed, NotServing, UserspaceError
from userspace_cni.cni.request import Request, Verb
from userspace_cni.node.installation import Installation

if TYPE_CHECKING:
    from userspace_cni.host.runtimes.leases import LeaseDriver
    from userspace_cni.node.known_subnets import Subnets


class LocalAddresses:
    """`attachment.node.Addresses` of this installation. `subnets` is asked for when a network first names one."""

    def __init__(self, installation: Installation, subnets: Callable[[], Subnets]) -> None:
        self._root = installation.root
        self._subnets = subnets

    @cached_property
    def leases(self) -> LeaseDriver:
        from userspace_cni.host.runtimes.leases import LeaseDriver

        return LeaseDriver(self._root)

    def complete(self, request: Request, deadline: Deadline) -> Request:
        """The request with what the Subnet gives that its network names."""
        return self._subnets().complete(request, deadline) if request.network.subnet else request

    def as_leased(self, request: Request, lease: Lease | None = None) -> Request:
        """The request as the IPAM plugin is to have it for another verb than ADD."""
        return self._subnets().as_leased(request, lease) if request.network.subnet else request

    def require_delegate(self, request: Request) -> None:
        """Raise unless the network's IPAM plugin can be run."""
        from userspace_cni.host.runtimes.ipam import find
        from userspace_cni.host.runtimes.leases import require_path

        find(request.network.ipam, require_path(request.network.ipam, request.environment.variables), self._root)

    def lease(self, step: Lease, deadline: Deadline, lock: int) -> object:
        """Call ADD of the IPAM plugin; returns its decoded answer."""
        return self.leases.lease(step, deadline, lock)

    def forward(self, verb: Verb, request: Request, deadline: Deadline) -> None:
        """Call CHECK, GC or STATUS of the IPAM plugin, if there is one that knows the verb."""
        if not request.network.ipam:
            return
        from userspace_cni.host.runtimes.leases import delegate

        plugin = delegate(Lease(request.network.ipam, request.stdin.decode(), request.environment.variables), self._root)
        if not plugin.knows(verb, deadline):
            return
        calls = {"CHECK": plugin.check, "GC": plugin.gc, "STATUS": plugin.status}
        try:
            calls[verb](request.stdin, deadline)
        except UserspaceError as error:
            if verb != "STATUS":
                raise
            code = error.code if isinstance(error, DelegateFailed) and error.code in (50, 51) else 50
            raise NotServing(error.message, error.details, code=code) from error
