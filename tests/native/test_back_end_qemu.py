"""QEMU as the front-end, and a driver that knows nothing of us: the network boot ROM of its virtio-net card. No guest, no disk.

Some of the tests run with a newer release's QEMU, too (`tests.lab.peers.peer_programs`).
The ROM asks for an address by DHCP through our back-end, we answer by hand; that it takes the offer proves both directions.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.peers.peer_programs import OWN, PeerPrograms, peers
from tests.lab.switch.switch import listens, wait_until
from userspace_cni.fastpath._native import lib
from userspace_cni.fastpath.fastpath_errors import Disconnected
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.back_end import BackEnd, BackEndListener, BackEndOptions
from userspace_cni.fastpath.vhost.vhost_messages import Feature

GUEST = bytes.fromhex("525400112233")
US = bytes.fromhex("525400ddeeff")
GUEST_IP, OUR_IP = bytes([192, 0, 2, 9]), bytes([192, 0, 2, 1])
COOKIE = bytes.fromhex("63825363")
HURRY = bytes([175, 3, 176, 1, 1])
"""To the ROM: there will be no other offers to wait for (iPXE's no-pxedhcp)."""
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
MEMORY = 128 << 20
_STEP_S = 60.0


@contextmanager
def _qemu(
    place: Path, chardev: str = "", netdev: str = "", device: str = "", *, of: PeerPrograms = OWN, backend: str = "memfd"
) -> Iterator[subprocess.Popen[bytes]]:
    """A machine that has only a network card and boots from it; `place/qmp` takes commands. `backend`: of its memory."""
    argv = [*of.qemu, "-nodefaults", "-display", "none", "-machine", "q35,accel=tcg,memory-backend=ram"]
    argv += ["-m", "128,slots=2,maxmem=1G", "-object", f"memory-backend-{backend},id=ram,size={MEMORY},share=on"]
    argv += ["-chardev", f"socket,id=c,path={place}/socket{chardev}", "-netdev", f"vhost-user,id=n,chardev=c{netdev}"]
    argv += ["-device", f"virtio-net-pci,netdev=n,mac={GUEST.hex(':')},bootindex=1,disable-legacy=on{device}"]
    argv += ["-qmp", f"unix:{place}/qmp,server=on,wait=off"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
            complaints = process.communicate()[1]
            print(complaints.decode())


def _next_dhcp(pair: QueuePair) -> tuple[int, bytes]:
    """Kind and content of the next DHCP message of the guest; other frames (IPv6) are skipped."""
    found: list[tuple[int, bytes]] = []

    def look() -> bool:
        frames = pair.receive_frames() if pair.wait(0.2) else []
        found.extend((_kind(frame[42:]), frame[42:]) for frame in frames if _is_dhcp(frame))
        return bool(found)

    wait_until(look, _STEP_S, "DHCP")
    return found[0]


def _is_dhcp(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\0" and frame[23] == socket.IPPROTO_UDP and frame[36:38] == b"\0\x43"


def _kind(message: bytes) -> int:
    assert message[236:240] == COOKIE
    assert message[28:34] == GUEST
    options = message[240:]
    while options[0] != 53:
        options = options[2 + options[1] :] if options[0] else options[1:]
    return options[2]


def _answer(kind: int, asked: bytes) -> bytes:
    """An OFFER or ACK for what was asked, in an Ethernet frame."""
    options = (
        COOKIE + bytes([53, 1, kind, 54, 4]) + OUR_IP + bytes([51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0]) + HURRY + b"\xff"
    )
    head = bytes([2, 1, 6, 0]) + asked[4:8] + bytes(8) + GUEST_IP + OUR_IP + bytes(4) + GUEST + bytes(10 + 192)
    datagram = head + options + bytes(64)
    udp = struct.pack("!HHHH", 67, 68, 8 + len(datagram), 0) + datagram
    packet = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, OUR_IP, b"\xff" * 4)
    checksum = sum(struct.unpack("!10H", packet))
    checksum = ~(checksum + (checksum >> 16)) & 0xFFFF
    return b"\xff" * 6 + US + b"\x08\0" + packet[:10] + struct.pack("!H", checksum) + packet[12:] + udp


def _lease(pair: QueuePair) -> None:
    """The whole exchange: DISCOVER, OFFER, REQUEST, ACK."""
    kind, asked = _next_dhcp(pair)
    while kind == DISCOVER:
        assert pair.send_frames([_answer(OFFER, asked)]) == 1
        kind, asked = _next_dhcp(pair)
    assert kind == REQUEST
    assert bytes([50, 4]) + GUEST_IP in asked
    assert pair.send_frames([_answer(ACK, asked)]) == 1


def _command(place: Path, *commands: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_STEP_S)
        sock.connect(f"{place}/qmp")
        lines = sock.makefile("rw")
        for command in ({"execute": "qmp_capabilities"}, *commands):
            lines.write(json.dumps(command) + "\n")
            lines.flush()
            while not {"return", "error"} & (answer := json.loads(lines.readline())).keys():
                pass
            assert "return" in answer, answer


@pytest.mark.parametrize("newer", [False, True])
def test_qemu_listens(place: Path, newer: bool) -> None:
    """QEMU has the socket and we connect; its memory is a file; it offers two queue pairs, of which the ROM uses one."""
    of = peers() if newer else OWN
    with _qemu(place, ",server=on,wait=off", ",queues=2", ",mq=on,vectors=6", of=of, backend=f"file,mem-path={place}/memory"):
        wait_until(lambda: listens(place / "socket"), _STEP_S)
        with BackEnd.connect(f"{place}/socket", BackEndOptions(queue_pairs=2)) as back_end:
            back_end.wait_started(_STEP_S)
            assert back_end.list_started() == (0,)
            _lease(back_end.pairs[0])
    assert lib.fp_guard_count() == 0


def test_memory_is_plugged_in_while_running(place: Path) -> None:
    """QEMU gets more memory amid the exchange and announces all of it again: the rings go on, with one mapping more."""
    backing = {"qom-type": "memory-backend-memfd", "id": "more", "size": MEMORY, "share": True}
    with BackEndListener(f"{place}/socket") as listener, _qemu(place), listener.accept(_STEP_S) as back_end:
        back_end.wait_started(_STEP_S)
        pair = back_end.pairs[0]
        kind, asked = _next_dhcp(pair)
        assert kind == DISCOVER
        before = lib.fp_guard_count()
        _command(
            place,
            {"execute": "object-add", "arguments": backing},
            {"execute": "device_add", "arguments": {"driver": "pc-dimm", "id": "dimm", "memdev": "more"}},
        )
        wait_until(lambda: lib.fp_guard_count() == before + 1, _STEP_S)
        assert back_end.list_started() == (0,)
        assert pair.send_frames([_answer(OFFER, asked)]) == 1
        _lease(pair)
    assert lib.fp_guard_count() == 0


@pytest.mark.parametrize("newer", [False, True])
def test_boot_reset_and_kill(place: Path, newer: bool) -> None:
    """A machine gets its address; reset, it stops its rings and starts anew on the same connection; a kill is a hang-up."""
    of = peers() if newer else OWN
    with (
        BackEndListener(f"{place}/socket") as listener,
        _qemu(place, of=of) as process,
        listener.accept(_STEP_S) as back_end,
    ):
        back_end.wait_started(_STEP_S)
        assert Feature.VERSION_1 in back_end.features
        _lease(back_end.pairs[0])
        _command(place, {"execute": "system_reset"})
        wait_until(lambda: back_end.list_started() == (), _STEP_S)
        back_end.wait_started(_STEP_S)
        _lease(back_end.pairs[0])
        assert back_end.is_alive()
        process.kill()
        with pytest.raises(Disconnected):
            wait_until(lambda: back_end.pairs[0].wait(1) and not back_end.pairs[0].receive_frames(), _STEP_S)
    assert lib.fp_guard_count() == 0


@pytest.mark.parametrize(("newer", "again"), [(False, "reconnect=1"), (True, "reconnect-ms=50")])
def test_qemu_connects_again(place: Path, newer: bool, again: str) -> None:
    """When we hang up QEMU connects again and starts the rings that its driver had started, which then carries on."""
    of = peers() if newer else OWN
    with BackEndListener(f"{place}/socket") as listener, _qemu(place, f",{again}", of=of):
        with listener.accept(_STEP_S) as back_end:
            back_end.wait_started(_STEP_S)
            kind, _ = _next_dhcp(back_end.pairs[0])
            assert kind == DISCOVER
        with listener.accept(_STEP_S) as back_end:
            back_end.wait_started(_STEP_S)
            _lease(back_end.pairs[0])
    assert lib.fp_guard_count() == 0
