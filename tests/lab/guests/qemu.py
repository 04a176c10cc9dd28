"""QEMU as KubeVirt's libvirt would run it, without libvirt: a process, its monitor, and the output of its guest.

The machine listens at the socket of each interface and does not wait for connections. Its process ends with the `with`. When it
has ended by itself, a wait for it fails with its last output.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.guests import guest, trixie
from tests.lab.guests.qemu_process import QemuProcess
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.launcher import MOUNT, QEMU_ID

BOOT_SECONDS = 180.0
"""Seconds to wait for a guest that is usable after 3 s on a quiet machine."""
_SHOWN = 20


@dataclass(frozen=True)
class VhostNic:
    """One vhost-user interface. `socket`: where QEMU listens, as QEMU sees it. `mtu`: the device's `host_mtu`, 0 for none."""

    socket: str
    mac: str
    mtu: int = 0
    queues: int = 1
    ring: int = 1024


@dataclass(frozen=True)
class Machine:
    """What is to run. `incoming`: it waits for `migrate-incoming`; `paused`: for `cont`. `shared`: memory that OVS can see."""

    append: str
    nics: tuple[VhostNic, ...]
    memory_mib: int = guest.MEMORY_MIB
    vcpus: int = 1
    incoming: bool = False
    paused: bool = False
    shared: bool = True


@dataclass(frozen=True)
class Emulator:
    """A QEMU: in which Debian root it is, whether it can have MSI-X, and which user and group it is to be.

    Up to Debian 12's, QEMU without KVM crashes where vhost-user takes an interrupt vector.
    """

    tree: Callable[[], Path]
    msix: bool
    user: int = QEMU_ID


HERE = Emulator(lambda: Path("/"), msix=False)
"""Debian 12's, which the machine has on which the tests run."""
TRIXIE = Emulator(trixie.root, msix=True)


@dataclass
class Qemu(QemuProcess):
    """A running machine with no more of the host than a launcher pod has: `public` at MOUNT.

    Its files are in `directory`: monitor, the guest's serial line, QEMU's own output. Machines between which a guest is to move
    have theirs in one directory, which every user may read.
    """

    directory: Path
    machine: Machine
    public: Path
    emulator: Emulator = TRIXIE

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        user = self.emulator.user
        os.chown(self.directory, user, user)
        self.serial = self.directory / "serial"
        argv = arguments(self.machine, self.directory, msix=self.emulator.msix)
        argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", *argv]
        binds = [
            str(self.directory.parent),
            str(guest.CACHE),
            f"{self.public}={MOUNT.removeprefix('/var')}",
        ]  # /var/run is a link to /run
        argv = ["unshare", "--mount", "--propagation=private", *trixie.entered(self.emulator.tree(), argv, binds)]
        super().__init__(argv, self.directory)

    @property
    def said(self) -> list[str]:
        """The complete lines that the guest has printed."""
        with suppress(FileNotFoundError):
            return self.serial.read_text(errors="replace").replace("\r", "").split("\n")[:-1]
        return []

    @property
    def words(self) -> str:
        """QEMU's own output, and the last lines of the guest."""
        return f"{super().words}\nthe guest: {self.said[-_SHOWN:]}"

    def until(self, words: str, seconds: float = BOOT_SECONDS, *, after: int = 0) -> str:
        """The first line of the guest with these words; `after`: so many lines are skipped.

        AssertionError with the output of guest and QEMU when it does not come.
        """
        try:
            return str(wait_until(lambda: next((line for line in self._said(after) if words in line), None), seconds, words))
        except AssertionError as error:
            error.add_note(f"{self.words}\n{self._state()}")
            raise

    def _said(self, after: int) -> list[str]:
        self.require_alive()
        return self.said[after:]

    def _state(self) -> str:
        """Its run state, and where each processor is, for a guest that prints nothing."""
        try:
            shown = self.monitor.run("human-monitor-command", command_line="info registers -a")
            places = [line for line in str(shown).splitlines() if line.startswith(("CPU#", "RIP="))]
            return f"{self.status()}: {places}"
        except (AssertionError, OSError) as error:
            return f"its monitor does not answer: {error!r}"


def arguments(machine: Machine, directory: Path, *, msix: bool) -> list[str]:
    """The command, whose monitor and serial line are in the directory."""
    size = f"size={machine.memory_mib}M,share={'on' if machine.shared else 'off'}"
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-machine", "q35,accel=tcg,memory-backend=ram", "-cpu", "max", "-smp", str(machine.vcpus)]
    argv += ["-m", str(machine.memory_mib), "-object", f"memory-backend-memfd,id=ram,{size}"]
    argv += ["-kernel", str(guest.kernel()), "-initrd", str(guest.initramfs()), "-append", machine.append]
    argv += ["-qmp", f"unix:{directory}/monitor,server=on,wait=off", "-serial", f"file:{directory}/serial"]
    argv += ["-incoming", "defer"] if machine.incoming else []
    argv += ["-S"] if machine.paused else []
    for number, nic in enumerate(machine.nics):
        argv += _nic(number, nic, msix=msix)
    return argv


def _nic(number: int, nic: VhostNic, *, msix: bool) -> list[str]:
    rings = f"rx_queue_size={nic.ring},tx_queue_size={nic.ring}"
    device = f"virtio-net-pci,netdev=n{number},id=ua-{number},mac={nic.mac},disable-legacy=on,{rings}"
    device += f",host_mtu={nic.mtu}" if nic.mtu else ""
    device += ",mq=on" if nic.queues > 1 else ""
    device += f",vectors={2 * nic.queues + 2 if msix else 0}"
    return [
        *("-chardev", f"socket,id=c{number},path={nic.socket},server=on,wait=off"),
        *("-netdev", f"vhost-user,id=n{number},chardev=c{number},queues={nic.queues}"),
        *("-device", device),
    ]


def migrate(source: Qemu, target: Qemu, seconds: float = BOOT_SECONDS) -> dict[str, Any]:
    """Move the guest to a machine that was made with `incoming`; what `query-migrate` tells.

    Milliseconds in it: `total-time`, `downtime`. The source is left as migration leaves it, in `postmigrate`.
    """
    uri = f"unix:{target.directory}/migration"
    target.monitor.run("migrate-incoming", uri=uri)
    source.monitor.run("migrate", uri=uri)
    told: dict[str, Any] = wait_until(source.migration, seconds, "the migration to end")
    wait_until(lambda: target.status() == "running", seconds, "the target to run")
    return told
