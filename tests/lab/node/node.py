"""One node for a black-box test: the plugin as a runtime executes it, on directories of its own and a real switch.

Everything that an attachment may leave is below `directory` or in the switch, so that `leftovers` can tell all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.lab.node.below import all_below, files_below
from tests.lab.node.links import drop_guards, left_of_ours
from tests.lab.node.stored import live
from tests.lab.runtimes.runtime import Call, call
from tests.lab.switch.switch import Switch

CONTAINER = "c0ffee0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
PLUGINS = "/usr/lib/cni"


@dataclass
class Node:
    """Directories, environment and switch of one node. `settings` are added to the environment of every call."""

    directory: Path
    switch: Switch | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin.mkdir(parents=True)
        plugin = Path(self.plugin)
        plugin.write_bytes(launcher())
        plugin.chmod(0o755)
        self.ipam_dir.mkdir()

    @property
    def bin(self) -> Path:
        """Where the plugin is installed as `userspace`."""
        return self.directory / "bin"

    @property
    def plugin(self) -> str:
        return str(self.bin / "userspace")

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def short(self) -> Path:
        """Mounts of pod directories."""
        return self.directory / "short"

    @property
    def shared(self) -> Path:
        return self.directory / "shared"

    @property
    def kubelet(self) -> Path:
        return self.directory / "kubelet"

    @property
    def device_info(self) -> Path:
        return self.directory / "devinfo"

    @property
    def cdi(self) -> Path:
        """What runtimes read of claims' devices."""
        return self.directory / "cdi"

    @property
    def ipam_dir(self) -> Path:
        """host-local's leases (`dataDir`)."""
        return self.directory / "leases"

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which a runtime of this node runs its plugins, but for CNI_*."""
        switch = self.switch
        return {
            "PATH": os.defpath,
            "USERSPACE_CNI_OVSDB": switch.ovsdb if switch else f"unix:{self.directory}/no-such-db.sock",
            "OVS_RUNDIR": switch.rundir if switch else str(self.directory),
            "USERSPACE_CNI_SWITCH_NETNS": switch.netns if switch else "",
            "USERSPACE_CNI_STATE_DIR": str(self.state),
            "USERSPACE_CNI_RUN_DIR": str(self.directory / "run"),
            "USERSPACE_CNI_SHORT_DIR": str(self.short),
            "USERSPACE_CNI_DEFAULT_SHARED_DIR": str(self.shared),
            "USERSPACE_CNI_KUBELET_DIR": str(self.kubelet),
            "USERSPACE_CNI_DEVICE_INFO_DIR": str(self.device_info),
            "USERSPACE_CNI_CDI_DIR": str(self.cdi),
            "USERSPACE_CNI_KUBECONFIG_DIRS": str(self.directory),
            "USERSPACE_CNI_LEGACY_STATE_DIR": str(self.directory / "legacy"),
            "USERSPACE_CNI_CONFIG": str(self._config_file()),
            **self.settings,
        }

    def _config_file(self) -> Path:
        path = self.directory / "config.toml"
        path.touch()
        return path

    def network(self, version: str = "1.1.0", **keys: Any) -> dict[str, Any]:
        """A network configuration of this plugin: a client port on br-test, with `keys` over it."""
        host = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "client"}, "bridge": {"bridgeName": "br-test"}}
        return {"cniVersion": version, "name": "net", "type": "userspace", "host": host, **keys}

    def host_local(self, subnet: str = "10.56.0.0/24") -> dict[str, Any]:
        """`ipam` for Debian's host-local, its leases below this node's directory."""
        return {"type": "host-local", "dataDir": str(self.ipam_dir), "ranges": [[{"subnet": subnet}]]}

    def variables(
        self, command: str, netns: str = "", container: str = CONTAINER, ifname: str = "net1", **environ: str
    ) -> dict[str, str]:
        """The environment of one call: all six variables set, `environ` over them."""
        return {
            **self.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": netns,
            "CNI_IFNAME": ifname,
            "CNI_ARGS": "",
            "CNI_PATH": f"{self.bin}:{PLUGINS}",
            **environ,
        }

    def run(
        self,
        command: str,
        network: Mapping[str, Any] | bytes,
        netns: str = "",
        container: str = CONTAINER,
        ifname: str = "net1",
        **environ: str,
    ) -> Call:
        """One call as a runtime makes it; see `variables`."""
        stdin = network if isinstance(network, bytes) else json.dumps(network).encode()
        return self.called(command, self.variables(command, netns, container, ifname, **environ), stdin)

    def called(self, command: str, environ: Mapping[str, str], stdin: bytes) -> Call:
        """One call of the plugin as a runtime executes it, to its end."""
        return call(self.plugin, command, environ, stdin)

    def empty_dir(self, uid: str, volume: str = "shared-dir") -> Path:
        """An emptyDir volume of a pod, made as the kubelet makes it."""
        path = self.kubelet / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / volume
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def leftovers(self) -> dict[str, list[str]]:
        """What attachments left: bridges and rows beside them, host ends and guards, records, resources, mounts, sockets and
        directories, leases. Empty when clean."""
        leases = [str(path) for path in files_below(self.ipam_dir) if path.name[0].isdigit()]
        found = {
            **(self._left_in(self.switch) if self.switch else {}),
            "records": _files(self.state / "attachments"),
            "places": [str(path) for path in [*live(self.directory / "run", "places"), *(self.state / "places").glob("*")]],
            "mounts": mounts_below(self.directory),
            "short": _files(self.short),
            "shared": _files(self.shared),
            "volumes": [str(path) for path in all_below(self.kubelet / "pods") if path.name == "vhostuser" or not path.is_dir()],
            "leases": leases,
            "cdi": _files(self.cdi),
        }
        return {kind: items for kind, items in found.items() if items}

    def _left_in(self, switch: Switch) -> dict[str, list[str]]:
        """What attachments left in the switch and in its network namespace."""
        return switch.held() | left_of_ours(switch.netns)


@cache
def launcher() -> bytes:
    """What `install` writes, the same for every node; it takes as long as an ADD."""
    with TemporaryDirectory(prefix="uc-") as directory:
        argv = [sys.executable, "-m", "userspace_cni", "install", "--standalone", "--bin-dir", directory]
        installed = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert installed.returncode == 0, installed.stderr
        return (Path(directory) / "userspace").read_bytes()


def _files(directory: Path) -> list[str]:
    return [str(path) for path in all_below(directory)]


def mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory, the latest first; namespaces of the test's own sandboxes are not counted."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]:
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if Path(point).is_relative_to(directory) and not right.startswith("nsfs"):
            points.append(point)
    return points[::-1]


@contextmanager
def clean(node: Node) -> Iterator[Node]:
    """The node, whose bridges, rows beside them, guards and mounts are removed whatever the test left."""
    try:
        yield node
    finally:
        if node.switch:
            node.switch.clear()
            drop_guards(node.switch.netns)
        for point in mounts_below(node.directory):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
