"""The network namespaces of containers, and what is left on the node of attachments without a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import Guard, LegacyRecord, LinkRef, Step, host_alias, host_end
from userspace_cni.base.errors import HostNamespace, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.cni.request import Environment
from userspace_cni.host.netlink import netns

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation


class LocalSandboxes:
    """`attachment.node.Sandboxes` of this node. `store`: the identity of the store."""

    def __init__(self, installation: Installation, store: Callable[[], str]) -> None:
        self._settings, self._root = installation.settings, installation.root
        self._store = store

    def inode(self, environment: Environment) -> int:
        """Inode of the network namespace CNI_NETNS. Raises HostNamespace when it is our own."""
        facts = netns.namespace(environment.netns, self._root)
        if netns.is_own(environment.netns, self._root) and not environment.netns_override:
            raise HostNamespace(
                f"CNI_NETNS {environment.netns!r} is the namespace that the runtime itself runs in",
                "a container with the host's network cannot be attached; CNI_NETNS_OVERRIDE=1 overrides",
            )
        return facts.inode

    def has_link(self, environment: Environment) -> bool:
        """Whether a kernel interface of this name is in the container."""
        return netns.link_exists(environment.netns, environment.ifname, self._root)

    def is_gone(self, path: str) -> bool:
        """Whether nothing is at `path` while another namespace is visible in the same directory."""
        return netns.is_gone(path, self._root)

    def legacy(self, container_id: str, ifname: str) -> LegacyRecord | None:
        from userspace_cni.host.runtimes.former_plugin import find_record

        return find_record(self._settings.legacy_state_dir, container_id, ifname, self._root)

    def link_traces(self, container_id: str, ifname: str) -> tuple[Step, ...]:
        """The guard and the host end of an attachment, if a link has the name that the plan derives for the host end.

        Most DELs without a record are of what was deleted before: they cost one question to the kernel. A guard whose link has
        gone is left to the sweep.
        """
        host, store, switch_netns = host_end(container_id, ifname), self._store(), self._settings.switch_netns
        try:
            if not netns.switch_has(switch_netns, host, self._root):
                return ()
        except UserspaceError as error:
            say("debug", "whether there is a host end cannot be seen", error=error)
        return Guard(host, store, switch_netns), LinkRef(host, host_alias(store, container_id, ifname), switch_netns)
