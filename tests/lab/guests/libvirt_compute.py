"""A launcher pod's container `compute`: libvirt for one VM, set up as virt-launcher does it, in namespaces of its own.

libvirtd is root here, as in KubeVirt's root launchers; QEMU runs as user and group 107, without libvirt's own namespaces, cgroups
or security labels, and the pod's volume `public` is at /var/run/kubevirt. What libvirt and QEMU write stays in a mount namespace,
but for the logs; all processes are in one PID namespace and end with its first. What it tells comes from virsh, /proc and logs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.lab.guests import guest, roots, trixie
from tests.lab.node.below import files_below
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.launcher import MOUNT, QEMU_ID

START_SECONDS = 60
VIRSH_SECONDS = 60
LOGS = "/var/log/libvirt"
KERNEL = "/var/lib/libvirt/boot/vmlinuz"
INITRAMFS = "/var/lib/libvirt/boot/initramfs"
"""The lab's guest, as domains must name it."""

_QEMU_CONF = f"""user = "+{QEMU_ID}"
group = "+{QEMU_ID}"
dynamic_ownership = 1
remember_owner = 0
namespaces = []
cgroup_controllers = []
security_driver = "none"
stdio_handler = "file"
"""
_LIBVIRTD_CONF = f"""unix_sock_group = "root"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:file:{LOGS}/libvirtd.log"
"""
_NEW = ("--mount", "--propagation=private", "--net", "--pid", "--uts")
_VIRSH = ("virsh", "--quiet", "--connect", "qemu:///system")
_INIT = "echo {name} >/proc/sys/kernel/hostname; libvirtd & wait"
"""The first process has to reap the processes that QEMU's start leaves behind. libvirt migrates to hosts of another name."""
_SPACES = ("setpriv", "--pdeathsig=KILL", "unshare", *_NEW, "--fork", "--kill-child")
"""The pod gets SIGKILL when the thread that started it ends, so that it never outlives the tests."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def console(name: str) -> str:
    """The file of a domain's serial line, as the domain must name it."""
    return f"{LOGS}/console-{name}.log"


class VirshFailed(Exception):
    """virsh failed, with its stderr."""


class Compute:
    """libvirt on the programs in `tree` (`trixie.root()`, or "/"), for a VM whose pod has `public` as that volume.

    `directory` becomes its own, for logs and configuration. `binds`: more of the host, as `trixie.entered` takes it.
    """

    def __init__(self, tree: Path, directory: Path, public: Path, binds: Sequence[str] = ()) -> None:
        self._tree = tree
        self._binds = binds
        self._uuid = str(uuid.uuid4())
        self._logs = directory / "log"
        self._etc = directory / "libvirt"
        self._boot = directory / "boot"
        self._public = public
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Self:
        self._prepare()
        binds = [f"{self._etc}=/etc/libvirt", f"{self._logs}={LOGS}", f"{self._boot}={Path(KERNEL).parent}"]
        binds += [f"{self._cache()}=/var/cache/libvirt", f"{self._public}={MOUNT.removeprefix('/var')}"]  # /var/run is /run
        inner = trixie.entered(self._tree, ["bash", "-c", _INIT.format(name=self._uuid)], [*binds, *self._binds])
        with (self._logs / "pod.log").open("wb") as told:
            self._outer = subprocess.Popen(
                [*_SPACES, *inner], stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=_ENVIRONMENT
            )
        try:
            self._init = wait_until(self._child, START_SECONDS, "the pod's first process")
            wait_until(self._serves, START_SECONDS, "libvirtd to answer")
        except BaseException as error:
            error.add_note(self.log())
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.add_note(self.log())
        self.stop()

    def stop(self) -> None:
        """End everything in the pod at once; its mounts go with it."""
        if self._outer is None:
            return
        if self._init:
            os.kill(self._init, signal.SIGKILL)
        else:
            self._outer.kill()
        self._outer.wait(START_SECONDS)
        self._outer, self._init = None, 0

    def define(self, xml: str) -> None:
        """`virsh define --validate`; VirshFailed."""
        self.virsh("define", "--validate", "/dev/stdin", stdin=xml)

    def start(self, name: str, *, paused: bool = False, seconds: float = VIRSH_SECONDS) -> None:
        """`virsh start`; VirshFailed, or subprocess.TimeoutExpired after `seconds`."""
        self.virsh("start", name, *(["--paused"] if paused else []), seconds=seconds)

    def destroy(self, name: str) -> None:
        self.virsh("destroy", name)

    def clear(self) -> None:
        """Power all domains off and forget them."""
        for name in self.virsh("list", "--name").split():
            self.destroy(name)
        for name in self.virsh("list", "--all", "--name").split():
            self.undefine(name)

    def state(self, name: str) -> str:
        return self.virsh("domstate", name).strip()

    def dumpxml(self, name: str, *options: str) -> str:
        """The domain as libvirt has it, by default the live one."""
        return self.virsh("dumpxml", name, *options)

    def qemu_ids(self, name: str) -> tuple[int, int]:
        """User and group as which the domain's QEMU runs."""
        status = self.run("sh", "-c", f"cat /proc/$(cat /run/libvirt/qemu/{name}.pid)/status").stdout
        found = re.search(r"^Uid:\s+(\d+).*\nGid:\s+(\d+)", status, re.MULTILINE)
        assert found, status
        return int(found[1]), int(found[2])

    def qemu_log(self, name: str) -> str:
        """The domain's log since it was defined: QEMU's command line, an option a line, and its messages."""
        return _text(self._qemu_log(name))

    def console(self, name: str) -> str:
        """What the domain's guest wrote to its serial line."""
        return _text(self._console(name))

    def undefine(self, name: str) -> None:
        """Forget it, with its logs; it must not run."""
        self.virsh("undefine", name)
        self._qemu_log(name).unlink(missing_ok=True)
        self._console(name).unlink(missing_ok=True)

    def validate(self, xml: str) -> str:
        """`virt-xml-validate` by libvirt's own schema: "" when it is valid, else what it says."""
        done = self.run("sh", "-c", "cat >/tmp/domain.xml && virt-xml-validate /tmp/domain.xml domain", stdin=xml)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def virsh(self, *arguments: str, stdin: str = "", seconds: float = VIRSH_SECONDS) -> str:
        """Its stdout; VirshFailed with its stderr."""
        done = self.run(*_VIRSH, *arguments, stdin=stdin, seconds=seconds)
        if done.returncode:
            raise VirshFailed(done.stderr.strip())
        return done.stdout

    def run(self, *argv: str, stdin: str = "", seconds: float = VIRSH_SECONDS) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "--target", str(self._init), "--mount", "--net", "--pid", "--root", "--wd"]
        return subprocess.run([*enter, *argv], input=stdin, capture_output=True, text=True, timeout=seconds, check=False)

    def log(self) -> str:
        """The ends of all logs in the pod, for a failing test."""
        files = [path for path in files_below(self._logs) if path.suffix == ".log"]
        return "\n".join(f"--- {path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in files)

    def _prepare(self) -> None:
        for directory in (self._logs, self._etc, self._boot):
            directory.mkdir(parents=True)
        os.chown(self._logs, QEMU_ID, QEMU_ID)
        (self._etc / "qemu.conf").write_text(_QEMU_CONF)
        (self._etc / "libvirtd.conf").write_text(f'{_LIBVIRTD_CONF}host_uuid = "{self._uuid}"\n')
        for name, file in ((KERNEL, guest.kernel()), (INITRAMFS, guest.initramfs())):
            shutil.copy(file, self._boot / Path(name).name)  # a copy, because libvirt gives it to QEMU's user

    def _qemu_log(self, name: str) -> Path:
        return self._logs / f"qemu/{name}.log"

    def _console(self, name: str) -> Path:
        return self._logs / Path(console(name)).name

    def _cache(self) -> Path:
        """What libvirt found out about QEMU's abilities: once per tree, because it takes a second."""
        name = "host" if self._tree == Path("/") else self._tree.name
        path = roots.CACHE / f"libvirt-{name}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _child(self) -> int:
        assert self._outer is not None
        assert self._outer.poll() is None, "the pod ended"
        children = psutil.Process(self._outer.pid).children()
        return children[0].pid if children else 0

    def _serves(self) -> bool:
        assert self._outer is not None
        assert self._outer.poll() is None, "the pod ended"
        # until this log exists, the pod's first process may still be in the host's root, where another libvirt may serve
        return (self._logs / "libvirtd.log").exists() and self.run(*_VIRSH, "version").returncode == 0


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
