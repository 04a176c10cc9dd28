"""A QEMU guest with a full kernel, PCI NICs behind an IOMMU and two NUMA nodes: started, saved and restored.

Each NIC under test is wired to a second NIC, its "peer". Commands run in the guest as root, by a virtio-serial port. It takes two
cores while it boots, so only one runs at a time.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.lab.guests import trixie
from tests.lab.guests.qemu_process import QemuProcess
from tests.lab.hardware.root_image import INITRAMFS, KERNEL, ROOT
from tests.lab.switch.switch import wait_until

BOOT_S: Final = 300.0
COMMAND_S: Final = 300.0
_MEMORY_MIB: Final = 3072
_WORDS: Final = (
    "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on intel_iommu=on tsc=reliable "
    "security=selinux selinux=1 enforcing=0"
)
"""SELinux allows everything until a policy is loaded."""
_MAPPED: Final = [{"capability": "mapped-ram", "state": True}, {"capability": "multifd", "state": True}]
"""The file has the memory at its addresses, so that a restore reads what it needs, by several threads."""


@dataclass(frozen=True)
class PciNic:
    """A NIC under test: QEMU's model, its bus and slot, and its MAC. `polled`: bound to vfio-pci, for DPDK.

    Its peer's MAC has another last but one byte.
    """

    name: str
    model: str
    number: int
    node: int
    polled: bool

    @property
    def mac(self) -> str:
        return f"52:54:00:00:00:{self.number:02x}"

    @property
    def peer(self) -> str:
        """QEMU's name of the NIC at the other end of its wire."""
        return f"{self.name}peer"

    @property
    def peer_mac(self) -> str:
        """The MAC of the NIC at the other end of its wire."""
        return f"52:54:00:00:01:{self.number:02x}"


NICS: Final = (
    PciNic("p0", "igb", 1, node=1, polled=True),
    PciNic("p1", "igb", 2, node=1, polled=True),
    PciNic("k0", "e1000e", 3, node=0, polled=False),
    PciNic("k1", "e1000e", 4, node=0, polled=False),
)
"""DPDK receives whole frames from igb and vmxnet3, but not from e1000e."""


GROUPED: Final = ("52:54:00:00:02:01", "52:54:00:00:02:02")
"""Two NICs at one conventional PCI bus, and so in one IOMMU group; they have neither driver nor wire."""


@dataclass(frozen=True)
class Done:
    """The result of a command in the guest."""

    code: int
    stdout: str
    stderr: str


class FullGuest(QemuProcess):
    """The guest, whose files are in `directory`; it starts from `images` and `product`. It waits for `boot`, or with `saved` for
    `restore`.

    Its process ends with the `with`.
    """

    def __init__(self, directory: Path, images: Path, product: Path, *, saved: bool) -> None:
        self._ports: list[socket.socket] = []
        argv = _arguments(directory, images, product)
        super().__init__([*argv, "-incoming", "defer"] if saved else argv, directory)

    def end(self) -> None:
        """Kill it. May be called again."""
        self._close_port()
        super().end()

    @property
    def words(self) -> str:
        """QEMU's own output, and the end of the guest's console."""
        console = self.directory / "console"
        text = console.read_text(errors="replace") if console.exists() else ""
        return f"{super().words}\nconsole: {text[-3000:]}"

    def boot(self) -> Self:
        """Boot it, and wait until it accepts commands."""
        self.monitor.run("cont")
        assert self.run("true").code == 0
        return self

    def save(self, file: Path) -> None:
        """Write its whole state to a file, and leave it stopped."""
        self._close_port()
        self.monitor.run("stop")
        self.monitor.run("migrate-set-capabilities", capabilities=_MAPPED)
        self.monitor.run("migrate-set-parameters", multifd_channels=2)
        self.monitor.run("migrate", uri=f"file:{file}")
        wait_until(self.migration, BOOT_S, "the guest to be saved")

    def restore(self, file: Path) -> Self:
        """Continue from the state that `save` has written, on the same images."""
        self.monitor.run("migrate-set-capabilities", capabilities=_MAPPED)
        self.monitor.run("migrate-set-parameters", multifd_channels=2)
        self.monitor.run("migrate-incoming", uri=f"file:{file}")
        wait_until(lambda: self.status() == "paused", BOOT_S, "the guest to be restored")
        self.monitor.run("cont")
        return self

    def run(self, *argv: str, stdin: str = "", seconds: float = COMMAND_S) -> Done:
        """The result of the command. AssertionError with the guest's console when it cannot be run."""
        told = self._asked({"argv": argv, "stdin": stdin, "seconds": seconds}, seconds)
        return Done(told["code"], told["stdout"], told["stderr"])

    def do(self, *argv: str, stdin: str = "", seconds: float = COMMAND_S) -> str:
        """The output of a command, which has to succeed."""
        done = self.run(*argv, stdin=stdin, seconds=seconds)
        assert done.code == 0, f"{' '.join(argv)}: exit {done.code}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def shell(self, script: str, seconds: float = COMMAND_S) -> str:
        """The output of a script, which ends with the first command that fails, and has to succeed."""
        return self.do("sh", "-euc", script, seconds=seconds)

    def page(self, target: str, method: str = "GET") -> str:
        """A page of the agent in the guest. AssertionError unless it answers with 200."""
        status, body = self.answer(target, method)
        assert status == 200, (status, body)
        return body

    def answer(self, target: str, method: str = "GET") -> tuple[int, str]:
        """The status and the text with which the agent in the guest answers."""
        told = self._asked({"page": target, "method": method, "seconds": COMMAND_S}, COMMAND_S)
        return int(told["status"]), str(told["body"])

    def pull_out(self, nic: PciNic) -> None:
        """Take the NIC out of its slot; its peer has no carrier then. The guest's kernel agrees five seconds after the button is
        pressed, and when the program that has opened the NIC releases it.
        """
        self.monitor.events.clear()
        self.monitor.run("device_del", id=nic.name)
        self.until(lambda: self._is_out(nic), f"the guest's kernel to let go of {nic.name}")
        self.monitor.run("set_link", name=nic.peer, up=False)

    def put_back(self, nic: PciNic) -> None:
        """Put it into its slot again, and give its link its name."""
        device = {"driver": nic.model, "id": nic.name, "bus": f"r{nic.number}", "netdev": f"{nic.name}w", "mac": nic.mac}
        self.monitor.run("device_add", **device, romfile="")
        self.monitor.run("set_link", name=nic.peer, up=True)
        found = str(self.until(lambda: self._link_of(nic), f"the kernel to have {nic.name}"))
        self.do("ip", "link", "set", found, "name", nic.name)

    def cut(self, nic: PciNic) -> None:
        """Take the carrier from the NIC and its peer, like a cut cable: QEMU keeps the frames of a peer that has its carrier."""
        for end in (nic.name, nic.peer):
            self.monitor.run("set_link", name=end, up=False)

    def _is_out(self, nic: PciNic) -> bool:
        self.monitor.run("query-status")  # what has happened comes before an answer
        return any(each["event"] == "DEVICE_DELETED" and each["data"].get("device") == nic.name for each in self.monitor.events)

    def _link_of(self, nic: PciNic) -> str:
        """The kernel's name of the NIC; a bridge that has its MAC is not meant, because it has no device."""
        told = self.shell(f"grep -l {nic.mac} $(ls -d /sys/class/net/*/device | sed s/device$/address/) || true").split()
        return Path(told[0]).parent.name if told else ""

    def until(self, condition: Callable[[], Any], what: str, seconds: float = BOOT_S) -> Any:
        """The first true value of a condition that asks the guest.

        It is asked rarely, because each question costs the guest time.
        """
        return wait_until(condition, seconds, what, pause=0.2)

    def _asked(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        port = self._port()
        port.settimeout(seconds + BOOT_S)
        port.sendall(json.dumps(request).encode() + b"\n")
        told = b""
        while not told.endswith(b"\n"):
            try:
                part = port.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            assert part, f"the guest's port was closed; {self.words}"
            told += part
        found: dict[str, Any] = json.loads(told)
        assert "failed" not in found, (request, found)
        return found

    def _port(self) -> socket.socket:
        if not self._ports:
            port = socket.socket(socket.AF_UNIX)
            port.connect(str(self.directory / "port"))
            self._ports.append(port)
        return self._ports[0]

    def _close_port(self) -> None:
        for port in self._ports:
            port.close()
        self._ports.clear()


def _arguments(directory: Path, images: Path, product: Path) -> Sequence[str]:
    """The arguments of Debian 13's QEMU, which has MSI-X without KVM; it waits, without memory of its own, for the content."""
    tree = trixie.root()
    argv = [str(tree / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(tree / "usr/lib/x86_64-linux-gnu")]
    argv += [str(tree / "usr/bin/qemu-system-x86_64"), "-L", str(tree / "usr/share/qemu"), "-L", str(tree / "usr/share/seabios")]
    argv += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-S"]
    argv += ["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "Nehalem,+rdrand"]
    argv += ["-m", str(_MEMORY_MIB), "-smp", "2,sockets=2,cores=1,threads=1"]
    for node in (0, 1):
        argv += ["-object", f"memory-backend-ram,id=m{node},size={_MEMORY_MIB // 2}M"]
        argv += ["-numa", f"node,nodeid={node},memdev=m{node}", "-numa", f"cpu,node-id={node},socket-id={node}"]
    argv += ["-device", "intel-iommu,intremap=on,caching-mode=on,aw-bits=48"]
    argv += ["-kernel", str(images / KERNEL), "-initrd", str(images / INITRAMFS), "-append", _WORDS]
    for number, image in enumerate((images / ROOT, product)):
        argv += ["-drive", f"if=none,id=d{number},file={image},format=raw,readonly=on"]
        argv += ["-device", f"virtio-blk-pci,drive=d{number},bus=pcie.0,addr={2 + number:#x}"]
    argv += [
        "-device",
        "virtio-serial-pci,bus=pcie.0,addr=0x4",
        "-chardev",
        f"socket,id=port,path={directory}/port,server=on,wait=off",
    ]
    argv += ["-device", "virtserialport,chardev=port,name=tests", "-serial", f"file:{directory}/console"]
    argv += ["-qmp", f"unix:{directory}/monitor,server=on,wait=off"]
    argv += ["-device", "pxb-pcie,id=far,bus=pcie.0,numa_node=1,bus_nr=128,addr=0x5"]
    for nic in NICS:
        argv += _wired(nic)
    argv += [
        "-device",
        "pcie-root-port,id=r9,bus=pcie.0,chassis=9,slot=9,addr=0x6",
        "-device",
        "pcie-pci-bridge,id=shared,bus=r9",
    ]
    for number, mac in enumerate(GROUPED):
        argv += ["-device", f"e1000,id=g{number},bus=shared,addr={1 + number},mac={mac},romfile="]
    return argv


def _wired(nic: PciNic) -> Sequence[str]:
    """The NIC at a port of its own, so that it can be unplugged, and its peer."""
    bus = "far" if nic.node else "pcie.0"
    port = f"pcie-root-port,id=r{nic.number},bus={bus},chassis={nic.number},slot={nic.number},addr={8 + nic.number:#x}"
    place = f",bus=pcie.0,addr={16 + nic.number:#x},romfile="
    netdevs = [word for end in (nic.name, nic.peer) for word in ("-netdev", f"hubport,id={end}w,hubid={nic.number}")]
    return [
        *netdevs,
        *("-device", port),
        *("-device", f"{nic.model},id={nic.name},bus=r{nic.number},netdev={nic.name}w,mac={nic.mac},romfile="),
        *("-device", f"virtio-net-pci,id={nic.peer},netdev={nic.peer}w,mac={nic.peer_mac}{place}"),
    ]
