"""The agent's drivers in a real container, made by runc, on a host of its own (a mount and a process-ID namespace).

The container has what deploy/cluster/base asks for: the host's / at /host with shared mounts, the host's process IDs and network,
and exactly those capabilities that the agent reports when they are missing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.host.contained import SEEN_AT
from tests.host.places import connects, listening
from userspace_cni.base.settings import Settings
from userspace_cni.node.surroundings import missing

REPOSITORY = Path(__file__).resolve().parents[2]
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE")
DIRECTORIES = ("usr", "etc", "proc", "dev", "tmp", "host")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
DELEGATE = """#!/bin/sh
echo '{"root": "'$(ls -d /host /proc/1 2>/dev/null)'", "directory": "'$PWD'"}'
"""


@dataclass(frozen=True)
class Host:
    """A host: its init process, and a directory of the test's own at the same path as on this machine."""

    init: int
    room: Path

    def run(self, *command: str) -> str:
        """Run a program on the host; its output."""
        done = subprocess.run(self.entered(*command), check=True, capture_output=True, text=True, timeout=60)
        return done.stdout

    def entered(self, *command: str) -> list[str]:
        """The command line that runs a program on the host."""
        return ["nsenter", f"--target={self.init}", "--mount", "--pid", "--wd=/", *command]

    def mounts_at(self, path: Path) -> list[set[str]]:
        """The options of each mount on exactly `path`."""
        lines = (line.split() for line in self.run("cat", "/proc/1/mountinfo").splitlines())
        return [set(fields[5].split(",")) for fields in lines if fields[4] == str(path)]


@dataclass(frozen=True)
class Spec:
    """What a container gets."""

    capabilities: tuple[str, ...] = CAPABILITIES
    namespaces: tuple[str, ...] = ("mount",)
    propagation: str = "rshared"
    root_propagation: str = "rshared"
    host: str = "/"
    without: tuple[str, ...] = field(default=())

    def write(self, bundle: Path, room: Path) -> None:
        """A bundle as runc takes it (OCI runtime specification)."""
        top = bundle / "rootfs"
        for name in DIRECTORIES:
            (top / name).mkdir(parents=True)
        for link, target in LINKS.items():
            (top / link).symlink_to(target)
        (top / "etc" / "ld.so.cache").touch()
        capabilities = [f"CAP_{name}" for name in self.capabilities if name not in self.without]
        document = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [sys.executable, "-m", "tests.host.contained"],
                "env": ["PYTHONDONTWRITEBYTECODE=1", "PATH=/nowhere"],
                "cwd": str(REPOSITORY),
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            },
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                *(
                    {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", "rprivate"]}
                    for path in ("/usr", "/dev", "/etc/ld.so.cache", str(REPOSITORY))
                ),
                {"destination": SEEN_AT, "type": "bind", "source": self.host, "options": ["rbind", self.propagation]},
            ],
            "linux": {
                "namespaces": [{"type": name} for name in self.namespaces],
                "rootfsPropagation": self.root_propagation,
                "cgroupsPath": f"/{room.name}",
            },
        }
        (bundle / "config.json").write_text(json.dumps(document))


Ask = Callable[[str], Any]


@pytest.fixture
def host(room: Path) -> Iterator[Host]:
    """A host whose mounts are shared, as systemd shares them."""
    for name in ("pods/uid", "bin", "var/lib"):
        (room / name).mkdir(parents=True)
    (room / "bin" / "scripted").write_text(DELEGATE)
    (room / "bin" / "scripted").chmod(0o755)
    command = ["unshare", "--mount", "--propagation=shared", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen([*command, "sh", "-c", "echo ready; exec cat"], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        yield Host(int(children), room)


@contextmanager
def container(host: Host, spec: Spec) -> Iterator[Ask]:
    """A container that runs `contained`; it answers commands."""
    bundle = Path(tempfile.mkdtemp(dir=host.room))
    spec.write(bundle, host.room)
    # A mount of its own, as images are: runc makes the one below a container private, which must not be the host's /
    host.run("mount", "--bind", "--make-private", str(bundle / "rootfs"), str(bundle / "rootfs"))
    runc = ["runc", "--root", str(host.room / "runc")]
    command = host.entered(*runc, "run", "--bundle", str(bundle), host.room.name)
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        to, out = process.stdin, process.stdout
        assert to
        assert out

        def ask(line: str) -> Any:
            to.write(f"{line}\n")
            to.flush()
            return json.loads(out.readline())

        try:
            yield ask
        finally:
            to.close()
            process.wait(60)


def test_nothing_is_missing(host: Host) -> None:
    """A container as in the manifest has everything that is needed, with eight capabilities."""
    with container(host, Spec()) as ask:
        assert ask(f"lacking {host.room}") == []


def test_mounts_reach_the_host(host: Host) -> None:
    """Mounts that the agent makes for OVS are on the host with all flags, outlive the agent, and the next one undoes them."""
    target = host.room / "short" / "uid"
    with container(host, Spec()) as ask:
        assert ask(f"mount {host.room}") == []
        assert [options >= {"nosymfollow", "nosuid", "nodev", "noexec"} for options in host.mounts_at(target)] == [True]
        assert ask(f"ours {target}") is False
    assert len(host.mounts_at(target)) == 1
    with listening(host.room / "pods" / "uid" / "sock"):
        assert connects(Path(f"/proc/{host.init}/root{target}/sock"))
    with container(host, Spec()) as ask:
        assert ask(f"mount {host.room}") == []
        assert len(host.mounts_at(target)) == 1
        assert ask(f"unmount {host.room}") is False
        assert host.mounts_at(target) == []
        assert not target.exists()


def test_namespaces_made_later_are_seen(host: Host) -> None:
    """The agent sees a network namespace and a volume in memory that the host mounts while the agent runs."""
    netns = host.room / "netns"
    netns.touch()
    with container(host, Spec()) as ask:
        host.run("unshare", f"--net={netns}", "true")
        assert ask(f"netns {netns}") == [int(host.run("stat", "--format=%i", str(netns))), False]
        assert ask("netns /proc/1/ns/net") == [Path(f"/proc/{host.init}/ns/net").stat().st_ino, True]
        host.run("mount", "-t", "tmpfs", "memory", str(host.room / "pods" / "uid"))
        host.run("touch", str(host.room / "pods" / "uid" / "in-memory"))
        assert ask(f"mount {host.room}") == []
        assert host.run("ls", str(host.room / "short" / "uid")) == "in-memory\n"
        assert ask(f"unmount {host.room}") is False


def test_plugins_run_in_the_hosts_root(host: Host) -> None:
    """An IPAM plugin sees the host's root and /proc and nothing of the container."""
    with container(host, Spec()) as ask:
        assert ask(f"lease {host.room}") == {"root": "/proc/1", "directory": "/"}


def test_links_of_ordinary_pods(host: Host) -> None:
    """A pod's veth between two namespaces of the host, its guard, its limit, and the frames that tell neighbours of it."""
    switch, pod = host.room / "switch", host.room / "pod"
    with container(host, Spec()) as ask:
        for path in (switch, pod):
            path.touch()
            host.run("unshare", f"--net={path}", "true")
        assert ask(f"link {switch} {pod}") == []
        assert "10.9.0.2/24" in host.run("nsenter", f"--net={pod}", "ip", "address", "show", "dev", "eth0")
        assert "policy drop" in host.run("nsenter", f"--net={switch}", "nft", "list", "ruleset")


LACKS = [
    (Spec(namespaces=("mount", "pid")), ["the host's namespace of process ids (hostPID: true): this process has one of its own"]),
    (Spec(namespaces=("mount", "network")), ["the host's namespace of network (hostNetwork: true): this process has one"]),
    (Spec(propagation="rslave"), ["short_dir {room}/short: the mount /host, on which it is, is not shared"]),
    (
        Spec(root_propagation="rslave"),
        ["short_dir {room}/short: the mount /host, on which it is, is shared, but not with the host"],
    ),
    (
        Spec(propagation="rprivate"),
        [
            "short_dir {room}/short: the mount",
            "kubelet_dir {room}/pods: the mount /host, on which",
            "network namespaces in /var/run",
        ],
    ),
    (Spec(host="/usr"), ["the host's root is not seen at /host"]),
    *((Spec(without=(name,)), [f"capability CAP_{name}: "]) for name in CAPABILITIES if name != "SYS_PTRACE"),
]


@pytest.mark.parametrize(("spec", "named"), LACKS, ids=lambda value: value[0][:40] if isinstance(value, list) else "")
def test_what_is_missing_is_named(host: Host, spec: Spec, named: list[str]) -> None:
    """The agent names each thing that the container lacks, and nothing else."""
    with container(host, spec) as ask:
        found = ask(f"lacking {host.room}")
    assert len(found) == len(named), found
    found = [re.sub(r"the mount /host[^,]*,", "the mount /host,", text) for text in found]  # /tmp may be a mount of its own
    assert [text for text, start in zip(found, named, strict=True) if not text.startswith(start.format(room=host.room))] == []


def test_hidden_processes_are_named(host: Host) -> None:
    """When the agent may not see the host's processes, it says so, and names the namespaces that it cannot compare."""
    with container(host, Spec(without=("SYS_PTRACE",))) as ask:
        found = ask(f"lacking {host.room}")
    assert found[0].startswith("capability CAP_SYS_PTRACE")
    assert len(found) == 3
    assert all("it cannot be compared: /host/proc/1/ns/" in text for text in found[1:])


def test_read_only_state(host: Host) -> None:
    """A state directory on a read-only file system is named by its setting."""
    host.run("mount", "-t", "tmpfs", "-o", "ro", "memory", str(host.room / "var" / "lib"))
    with container(host, Spec()) as ask:
        found = ask(f"lacking {host.room}")
    assert [text.partition(":")[0] for text in found] == [f"state_dir {host.room}/var/lib/state"]


def test_without_a_container(room: Path) -> None:
    """On the host itself only the checks that apply there are made: nothing is missing for root."""
    assert os.geteuid() == 0
    assert missing(Settings(state_dir=f"{room}/state")) == []
