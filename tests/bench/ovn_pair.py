"""Two vhost-user ports of one logical switch of OVN with our front-ends, for benchmarks of what frames between them cost.

The polling thread never sleeps and has a core of its own; this process and all of OVN share the other one.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Self

from tests.lab.ovn.central import INTEGRATION, Ovn
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

SWITCH: Final = "pods"
NAMES: Final = ("a", "b")
MACS: Final = ("0a:00:00:00:01:0a", "0a:00:00:00:01:0b")
ADDRESSES: Final = ("10.1.0.10", "10.1.0.11")
BATCH: Final = 32
FRAME_BYTES: Final = 64
WINDOW_NS: Final = 1_000_000
_TURNS: Final = 4
"""Bursts between looks at the clock."""
_UDP, _TTL = 17, 64
_PMD_CORE: Final = 1
"""deploy/private-switch polls on it."""
_CONNECTED_S: Final = 30.0
_End = tuple[str, str, int]
"""MAC, address, UDP port."""


class Rate(NamedTuple):
    """Frames received in each window of a millisecond, and per second over all of it."""

    windows: list[int]
    mean: float

    @property
    def plateau(self) -> float:
        """Mpps: what 95 % of the windows do not exceed, reached while both threads are on their cores."""
        ordered = sorted(self.windows)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1e9 / WINDOW_NS / 1e6


def frames(port: int, connections: range, *, back: bool = False) -> list[bytes]:
    """UDP from the first pod to that port of the second, of connections with these ports; or what answers them."""
    ways = [((MACS[0], ADDRESSES[0], number), (MACS[1], ADDRESSES[1], port)) for number in connections]
    return [_frame(to, source) if back else _frame(source, to) for source, to in ways]


def _frame(source: _End, to: _End) -> bytes:
    payload = bytes(FRAME_BYTES - 14 - 20 - 8)
    ends = [bytes(map(int, address.split("."))) for _, address, _ in (source, to)]
    head = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, _TTL, _UDP, 0, *ends))
    head[10:12] = struct.pack("!H", _checksum(head))
    macs = [bytes.fromhex(mac.replace(":", "")) for mac, _, _ in (to, source)]
    return b"".join((*macs, b"\x08\x00", head, struct.pack("!HHHH", source[2], to[2], 8 + len(payload), 0), payload))


def _checksum(head: bytearray) -> int:
    total: int = sum(struct.unpack(f"!{len(head) // 2}H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def bursts(wanted: Sequence[bytes]) -> list[Burst]:
    """These frames in whole bursts; of fewer frames than that one burst with all of them."""
    whole = list(wanted) * (BATCH // len(wanted) or 1)
    found = [Burst(BATCH, stride=FRAME_BYTES) for _ in range(len(whole) // BATCH)]
    for number, each in enumerate(found):
        each.fill(whole[number * BATCH : (number + 1) * BATCH])
    return found


class OvnPair:
    """Entering it starts switch and OVN; `attached` makes both ports."""

    ends: tuple[QueuePair, QueuePair]

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, before - {_PMD_CORE} or before)  # and so all that is started from here
            stack.callback(os.sched_setaffinity, 0, before)
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="op-")))
            self.switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
            self.ovn = stack.enter_context(Ovn(self.switch, Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))))
            wait_until(lambda: self.switch.bridge(INTEGRATION), what="the controller has made its bridge")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Both ports, with our front-ends: they are this process's own."""
        words = ["ls-add", SWITCH]
        commands: list[str] = []
        paths = [str(self.directory / name) for name in NAMES]
        for name, mac, address, path in zip(NAMES, MACS, ADDRESSES, paths, strict=True):
            words += ["--", "lsp-add", SWITCH, name, "--", "lsp-set-addresses", name, f"{mac} {address}"]
            words += ["--", "lsp-set-port-security", name, f"{mac} {address}"]
            row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}", f"external_ids:iface-id={name}"]
            commands += ["--", "add-port", INTEGRATION, name, "--", "set", "Interface", name, *row]
        self.ovn.nbctl(*words)
        with ExitStack() as stack:
            options = FrontEndOptions()
            listeners = [stack.enter_context(FrontEndListener(path, options, replace_dead=True)) for path in paths]
            self.switch.vsctl(*commands[1:])
            pairs = [stack.enter_context(listener.accept(_CONNECTED_S)).pairs[0] for listener in listeners]
            installed = "external_ids:ovn-installed=true"
            wait_until(lambda: len(self.switch.rows("Interface", installed)) == len(NAMES), what="OVN has both ports")
            self.ends = pairs[0], pairs[1]
            yield

    def send(self, bursts: Sequence[Burst], seconds: float, *, back: bool = False) -> Rate:
        """Send them in turns as quickly as the switch takes them, from the first pod to the second or back."""
        (source, sink), room, count = self.ends[::-1] if back else self.ends, Burst(BATCH), len(bursts)
        windows: list[int] = []
        received = before = turn = 0
        clock = time.perf_counter_ns
        start = window = now = clock()
        end = start + int(seconds * 1e9)
        while now < end:
            for _ in range(_TURNS):
                source.send(bursts[turn % count], BATCH)
                turn += 1
                received += sink.receive(room)
            now = clock()
            if now - window >= WINDOW_NS:
                windows.append((received - before) * WINDOW_NS // (now - window))
                window, before = now, received
        return Rate(windows, received / (now - start) * 1e9)

    def arrive(self, bursts: Sequence[Burst], *, back: bool = False) -> bool:
        """Whether frames of each burst come out now."""
        return all(self.send([burst], 0.005, back=back).mean for burst in bursts)

    def clear_statistics(self) -> None:
        self.switch.appctl("dpif-netdev/pmd-stats-clear")

    def statistics(self) -> dict[str, float]:
        """What the polling thread says of the time since then: passes and cycles per frame, and what found the flow."""
        shown = self.switch.appctl("dpif-netdev/pmd-stats-show").split("main thread")[0]
        wanted = {
            "passes": r"avg\. datapath passes per packet: ([\d.]+)",
            "cycles": r"avg processing cycles per packet: ([\d.]+)",
            "by emc": r"emc hits: (\d+)",
            "by megaflow": r"megaflow hits: (\d+)",
            "lookups per megaflow hit": r"avg\. subtable lookups per megaflow hit: ([\d.]+)",
        }
        return {name: float(match[1]) for name, pattern in wanted.items() if (match := re.search(pattern, shown))}

    def version(self) -> str:
        """Of the switch."""
        return self.switch.appctl("version").splitlines()[0].rpartition(" ")[2]

    def datapath_flows(self) -> list[str]:
        return self.switch.appctl("dpctl/dump-flows", "netdev@ovs-netdev").splitlines()
