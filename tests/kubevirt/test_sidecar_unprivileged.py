"""The sidecar as KubeVirt runs it: user 107, no capability, a filesystem that cannot be written, process 1 of its container."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guests.hooks import CONTAINER, HookManager, Sidecar, vmi
from tests.lab.guests.sidecar_image import interpreter, lay_out
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.launcher import QEMU_ID

DOMAIN = "<domain><name>default_vm1</name><memoryBacking><hugepages/></memoryBacking><devices/></domain>"
UNPRIVILEGED = [
    *("setpriv", f"--reuid={QEMU_ID}", f"--regid={QEMU_ID}", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"),
]
READ_ONLY = 'mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
"""A shell script: its first argument is the one directory that stays writable, the others the command to become."""


@pytest.fixture(scope="module")
def image() -> Iterator[dict[str, str]]:
    """The environment of a process with the image's files, which any user can read."""
    with tempfile.TemporaryDirectory(prefix="uk-image-") as directory:
        Path(directory).chmod(0o755)
        yield lay_out(Path(directory) / "sidecar")


@pytest.fixture
def volume() -> Iterator[Path]:
    """The hooks volume, as the kubelet makes it for a pod with fsGroup 107."""
    with tempfile.TemporaryDirectory(prefix="uk-") as directory:
        part = Path(directory) / CONTAINER
        part.mkdir()
        os.chown(directory, 0, QEMU_ID)
        os.chown(part, 0, QEMU_ID)
        Path(directory).chmod(0o2775)
        part.chmod(0o2775)
        yield Path(directory)


def facts(pid: int) -> dict[str, str]:
    """A process's rights, from the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def contained(volume: Path) -> list[str]:
    """Python as in its container: without rights, and everything but its part of the volume is read-only."""
    return ["unshare", "--mount", "sh", "-c", READ_ONLY, str(volume / CONTAINER), *UNPRIVILEGED, *interpreter()]


def test_without_any_right(image: dict[str, str], volume: Path) -> None:
    """It serves, defines and ends as user 107 without capabilities, on a filesystem where it can write nothing but its socket."""
    with Sidecar(volume, **image).start(python=contained(volume)) as sidecar:
        rights = facts(sidecar.pid)
        assert set(rights["Uid"].split()) == set(rights["Gid"].split()) == {str(QEMU_ID)}
        assert {rights[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert rights["NoNewPrivs"] == "1"
        mounts = Path(f"/proc/{sidecar.pid}/mounts").read_text().splitlines()
        assert any(line.split()[1] == "/" and line.split()[3].startswith("ro") for line in mounts)
        manager = HookManager(volume).collect()
        assert sidecar.socket.stat().st_uid == QEMU_ID
        assert "vhostuser" in manager.on_define_domain(DOMAIN, vmi(net1="vhostuser"))
        manager.shutdown()
        assert sidecar.end(None) == 0
        assert list(sidecar.hooks.iterdir()) == []


def test_a_directory_that_it_cannot_write(image: dict[str, str], volume: Path) -> None:
    """Where user 107 may not write, the sidecar's error names path and user, and it ends with 1."""
    (volume / CONTAINER).chmod(0o755)
    with Sidecar(volume, **image).start(wait=False, python=[*UNPRIVILEGED, *interpreter()]) as sidecar:
        assert sidecar.end(None) == 1
        assert "Permission denied (as uid 107, gid 107)" in sidecar.log
        assert "trap=no-hook-directory" in sidecar.log


def test_as_the_first_process(image: dict[str, str], volume: Path) -> None:
    """As process 1 of its container, where the kernel has no default for signals, SIGTERM ends it too."""
    first = ["unshare", "--pid", "--fork", "--kill-child", *UNPRIVILEGED, *interpreter()]
    with Sidecar(volume, **image).start(python=first) as sidecar:
        children = Path(f"/proc/{sidecar.pid}/task/{sidecar.pid}/children")
        (child,) = wait_until(lambda: children.read_text().split(), what="the child")
        assert facts(int(child))["NSpid"].split() == [child, "1"]
        assert "pid=1" in sidecar.log
        HookManager(volume).collect()
        os.kill(int(child), signal.SIGTERM)
        assert sidecar.end(None) == 0
        assert list(sidecar.hooks.iterdir()) == []
