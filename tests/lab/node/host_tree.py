"""A host's root of a test's own, for an agent in a container: a directory with what a node has.

It has the machine's programs and processes, and, at their paths on the machine, the directories of a test's node and of its
switch. So the agent's run directory and socket are at their usual place on this host, and the machine's are untouched; mounts in
the node's directory are visible on both.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.node.node import Node
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.switch.switch import Switch

_DIRECTORIES = ("etc/userspace-cni", "opt/cni/bin", "proc", "run", "tmp", "usr", "var/lib")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin", "var/run": "/run"}


class TreeNode(Node):
    """A node whose plugin is the binary installed on the host `tree`, run with `tree` as its root.

    Its calls have a runtime's environment, without any setting of this project.
    """

    tree: Path
    ports: tuple[int, int]
    """Ports for metrics and health, because those of the cluster's settings may be in use on the machine."""

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    @property
    def settings_of_the_host(self) -> Mapping[str, str]:
        """What the host's settings file says: everything below the node's directory, but for the run directory."""
        assert self.switch
        return {
            "ovsdb": self.switch.ovsdb,
            "ovs_rundir": self.switch.rundir,
            "switch_netns": self.switch.netns,
            "state_dir": str(self.state),
            "short_dir": str(self.short),
            "default_shared_dir": str(self.shared),
            "kubelet_dir": str(self.kubelet),
            "legacy_state_dir": str(self.directory / "legacy"),
            "metrics_listen": f"127.0.0.1:{self.ports[0]}",
            "health_listen": f"127.0.0.1:{self.ports[1]}",
        }

    def furnish(self, tree: Path) -> None:
        """Make `tree` the host: with its settings file, and what runs the binary in it."""
        self.tree = tree
        self.ports = _free_port(), _free_port()
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in self.settings_of_the_host.items()]
        (tree / "etc/userspace-cni/config.toml").write_text("".join(lines))
        Path(self.plugin).write_text(f'#!/bin/sh\nexec chroot "{tree}" /opt/cni/bin/userspace\n')


@contextmanager
def host_tree(switch: Switch, directory: Path) -> Iterator[TreeNode]:
    """A node in `directory` with a host of its own, whose mounts are shared with containers that ask for that."""
    node = TreeNode(directory / "n", switch)
    with TemporaryDirectory(prefix="uc-host-") as made, shared_mounts(directory):
        tree = Path(made)
        with shared_mounts(tree):
            for name in _DIRECTORIES:
                (tree / name).mkdir(parents=True)
            for link, target in _LINKS.items():
                (tree / link).symlink_to(target)
            _mount("-t", "proc", "proc", str(tree / "proc"))
            _mount("--bind", "--make-private", "/usr", str(tree / "usr"))
            for seen in (directory, switch.dir):
                there = tree / seen.relative_to("/")
                there.mkdir(parents=True)
                _mount("--rbind", str(seen), str(there))  # with the namespace that is mounted there
            node.furnish(tree)
            yield node


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
