"""The host of a private container runtime: a network namespace, plugins, networks, a cgroup of its own.

A runtime in it may let Debian's plugins make bridges and firewall rules: they go with the namespace. It stays in its caller's
mount namespace, as runtimes do, so that plugin and switch see each other's mounts.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tests.lab.node.below import all_below
from tests.lab.node.node import PLUGINS, Node
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until

CGROUPS = Path("/sys/fs/cgroup")


class RuntimeHost:
    """One such host beside the directory of `node`, in the network namespace `path`; `runtime_host` makes and removes it."""

    def __init__(self, node: Node, path: str) -> None:
        self.node = node
        self.netns = path
        self.directory = node.directory.parent / "host"
        self.cgroup = f"/{node.directory.parent.name}"
        for directory in (self.bin, self.networks_dir):
            directory.mkdir(parents=True)
        (self.bin / "userspace").symlink_to(node.plugin)
        for plugin in Path(PLUGINS).iterdir():
            (self.bin / plugin.name).symlink_to(plugin)

    @property
    def bin(self) -> Path:
        """Where the runtime finds plugins: ours, and Debian's."""
        return self.directory / "bin"

    @property
    def networks_dir(self) -> Path:
        return self.directory / "net.d"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the runtime and so of its plugins: its shim and its runc are those beside the containerd in PATH."""
        beside = Path(str(shutil.which("containerd"))).parent
        return {**self.node.environ, "PATH": f"{beside}:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(self.directory)}

    def command(self, *argv: str) -> list[str]:
        """A command in the host's network namespace."""
        return ["nsenter", f"--net={self.netns}", *argv]

    def write_networks(self, *lists: Mapping[str, Any]) -> None:
        """Replace all network lists by these; a runtime that uses the first gets the first given."""
        for path in self.networks_dir.iterdir():
            path.unlink()
        for number, each in enumerate(lists):
            (self.networks_dir / f"{number:02}-{each['name']}.conflist").write_text(json.dumps(each))

    def links(self, namespace: str = "") -> set[str]:
        """Names of the links in this namespace, by default the host's own."""
        return {link["ifname"] for link in json.loads(self.run("ip", "-json", "link", "show", namespace=namespace))}

    def run(self, *argv: str, namespace: str = "") -> str:
        """What a command prints in this network namespace, by default the host's own."""
        entered = ["nsenter", f"--net={namespace or self.netns}", *argv]
        return subprocess.run(entered, capture_output=True, text=True, check=True).stdout

    def clean(self) -> None:
        """End what the runtime left running, and remove its mounts and cgroups; the runtime itself must have ended."""
        for pid in _naming(str(self.directory)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _naming(str(self.directory)), what="the runtime's own processes to end")
        for point in mount_points(self.directory):
            subprocess.run(["umount", "--lazy", point], check=True)
        remove_cgroup(self.cgroup)


def remove_cgroup(name: str) -> None:
    """End the processes in the cgroup `name`, which begins with a slash, and remove it with all below it."""
    tops = [top for controller in CGROUPS.iterdir() if (top := controller / name[1:]).is_dir()]
    below = {top: [path for path in all_below(top) if path.is_dir()] for top in tops}
    for pid in {pid for top in tops for path in (top, *below[top]) for pid in _processes(path)}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for top in tops:
        for path in (*reversed(below[top]), top):
            wait_until(lambda: _removed(path), what=f"the processes in {path} to end")  # noqa: B023 -- called at once


@contextmanager
def runtime_host(node: Node, namespace: str = "") -> Iterator[RuntimeHost]:
    """A host for one runtime of this node, in this network namespace or one of its own; whatever the runtime left is removed."""
    with nullcontext(namespace) if namespace else netns() as path:
        subprocess.run(["nsenter", f"--net={path}", "ip", "link", "set", "lo", "up"], check=True)
        host = RuntimeHost(node, path)
        try:
            yield host
        finally:
            host.clean()


@contextmanager
def shared_mounts(directory: Path) -> Iterator[None]:
    """Make mounts below `directory` visible in mount namespaces made later, and those made there visible here.

    systemd sets up "/" in this way; a node's agent in a container needs the same for its mounts.
    """
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    try:
        subprocess.run(["mount", "--make-shared", str(directory)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _naming(text: str) -> list[int]:
    """Processes with `text` in an argument: containerd's shims and podman's monitors name a directory of their runtime."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def mount_points(directory: Path) -> list[str]:
    """Mount points below a directory, the latest first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4] for line in lines]
    return [point for point in reversed(points) if Path(point).is_relative_to(directory)]


def _processes(cgroup: Path) -> list[int]:
    """The processes in a cgroup; none when it was removed meanwhile, which a read reports by another error than an open."""
    try:
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV}:
            return []
        raise


def _removed(cgroup: Path) -> bool:
    """Whether an empty cgroup could be removed."""
    with suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()
