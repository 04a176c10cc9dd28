"""Linux's own driver as the front-end: virtio_net of a guest under QEMU, which pings us and is pinged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.lab.guests import guest
from tests.lab.guests.guest_peer import ADDRESS, Peer
from tests.lab.guests.monitor import Monitor
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.vhost.back_end import BackEndListener
from userspace_cni.fastpath.vhost.vhost_messages import Feature

MAC, GUEST = "52:54:00:11:22:33", "10.9.0.2"
_STEP_S = 120.0


@contextmanager
def _running(place: Path, device: str = "", chardev: str = "") -> Iterator[Path]:
    """A guest that pings us with short and long frames; the file of its serial line."""
    append = guest.command_line(guest.Nic(MAC, f"{GUEST}/24"), ping=(ADDRESS,), big=1400, every_ms=20)
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-machine", "q35,accel=tcg,memory-backend=ram", "-cpu", "max", "-m", str(guest.MEMORY_MIB)]
    argv += ["-object", f"memory-backend-memfd,id=ram,size={guest.MEMORY_MIB}M,share=on"]
    argv += ["-kernel", str(guest.kernel()), "-initrd", str(guest.initramfs()), "-append", append]
    argv += ["-chardev", f"socket,id=c,path={place}/socket{chardev}", "-netdev", "vhost-user,id=n,chardev=c"]
    argv += ["-device", f"virtio-net-pci,netdev=n,mac={MAC},disable-legacy=on,vectors=0{device}"]
    argv += ["-qmp", f"unix:{place}/monitor,server=on,wait=off", "-serial", f"file:{place}/serial"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
        try:
            yield place / "serial"
        finally:
            process.kill()


def _pings(serial: Path) -> list[str]:
    return [line for line in serial.read_text(errors="replace").splitlines() if line.startswith("PING")]


def _answered(serial: Path, count: int) -> None:
    """Wait until so many further pings of both sizes were answered."""
    before = len(_pings(serial))
    for kind in ("PING seq", "PING-BIG seq"):
        wait_until(lambda: sum(kind in line and " ok" in line for line in _pings(serial)[before:]) >= count, _STEP_S, kind)  # noqa: B023


@pytest.mark.parametrize("packed", ["on", "off"])
def test_pings_both_ways(place: Path, packed: str) -> None:
    """Frames pass both ways over rings that wrap, also after QEMU stopped its rings and started them where they were."""
    with (
        BackEndListener(f"{place}/socket") as listener,
        _running(place, f",packed={packed}") as serial,
        listener.accept(_STEP_S) as back_end,
    ):
        back_end.wait_started(_STEP_S)
        assert (Feature.RING_PACKED in back_end.features) == (packed == "on")
        with Peer(back_end.pairs[0]) as peer:
            _answered(serial, 5)
            with closing(Monitor(place / "monitor")) as monitor:
                for _ in range(3):
                    monitor.run("stop")
                    wait_until(lambda: back_end.list_started() == (), _STEP_S)
                    monitor.run("cont")
                    back_end.wait_started(_STEP_S)
                    _answered(serial, 3)
            with peer.stream(MAC, GUEST, 0.001) as stream:
                wait_until(lambda: len(stream.answered) > 600, _STEP_S)
            wait_until(lambda: stream.lost == 0, _STEP_S, "the last answers")
    assert lib.fp_guard_count() == 0
