"""What this installation is, as this process has it: its settings, the host, and the accounts of API servers.

Heavy modules are imported when they are first used: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import Settings

if TYPE_CHECKING:
    from userspace_cni.host.files.device_directories import DeviceDirectories
    from userspace_cni.kube.pod_requests import Clients


@dataclass(frozen=True)
class Installation:
    """Settings and environment of this process. `resident`: it lives on, and sees the host below the setting `host_root`."""

    settings: Settings
    environ: Mapping[str, str]
    resident: bool = False

    @cached_property
    def root(self) -> HostRoot:
        """The host's root as this process sees it."""
        return HostRoot(self.settings.host_root) if self.resident else HERE

    @property
    def name(self) -> str:
        """What the API calls this node."""
        from socket import gethostname

        return self.settings.node_name or gethostname().lower()

    @property
    def has_account(self) -> bool:
        """Whether there are credentials of our own: the setting's, or those of the pod in which this process runs."""
        from userspace_cni.kube.pod_requests import in_cluster

        return bool(self.settings.kubeconfig) or in_cluster(self.environ)

    @cached_property
    def clients(self) -> Clients:
        """The clients of API servers, one per set of credentials."""
        from userspace_cni.kube.kubeconfig import KubeconfigBounds
        from userspace_cni.kube.pod_requests import Clients

        return Clients(KubeconfigBounds.of(self.settings), self.root, self.settings.kubeconfig)

    @cached_property
    def devices(self) -> DeviceDirectories:
        from userspace_cni.host.files.device_directories import DeviceDirectories

        return DeviceDirectories(self.settings.run_dir, self.root)
