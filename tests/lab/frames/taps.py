"""`userspace-cni tap` in a network namespace, and sockets there, as an ordinary program of a pod has them.

A socket belongs for good to the namespace of the thread that makes it: so a thread that enters the namespace makes it, and the
test uses it like any other.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from userspace_cni.linux import paths

SECONDS = 60.0
"""How long a test waits for anything; the first attachment after a start of the switch takes a while."""
Made = TypeVar("Made")
_ICMP = struct.Struct("!BBHHH")


def entered(netns: str, work: Callable[[], Made]) -> Made:
    """The result or the exception of `work` in a thread that is in the namespace."""
    made: list[Made | Exception] = []

    def enter() -> None:
        fd = os.open(netns, os.O_RDONLY)
        try:
            paths.setns(fd, paths.NETWORK)
            made.append(work())
        except Exception as error:
            made.append(error)
        finally:
            os.close(fd)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    (found,) = made
    if isinstance(found, Exception):
        raise found
    return found


def socket_in(netns: str, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> socket.socket:
    """A socket of the namespace, whose calls have a timeout."""
    made = entered(netns, lambda: socket.socket(family, kind, protocol))
    made.settimeout(SECONDS)
    return made


def echoes(netns: str, address: str, size: int = 56, seconds: float = 1.0) -> bool:
    """Whether the address answers an ICMP echo request of `size` bytes in time (RFC 792); nothing is fragmented."""
    with socket_in(netns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(seconds)
        raw.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: IP_PMTUDISC_DO
        payload = os.urandom(size)
        head = _ICMP.pack(8, 0, 0, os.getpid() & 0xFFFF, 1)
        checksum = _checksum(head + payload)
        try:
            raw.sendto(_ICMP.pack(8, 0, checksum, os.getpid() & 0xFFFF, 1) + payload, (address, 0))
            while True:
                answer = raw.recv(65536)
                if answer[20] == 0 and answer[28:] == payload:
                    return True
        except OSError:  # no answer in time, no carrier, no neighbour
            return False


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data + b'x') // 2}H", data + b"\0" * (len(data) % 2)))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


class TapProcess:
    """The command in a namespace; its output is read as it comes. It is killed at the end of a `with`."""

    def __init__(self, netns: str, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        command = ["nsenter", f"--net={netns}", sys.executable, "-m", "userspace_cni", "tap", "--json", *arguments]
        self.netns = netns
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})}
        )
        self.news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(9)
        self._reader.join(SECONDS)
        assert self._process.stdout
        assert self._process.stderr
        self._process.stdout.close()
        self._process.stderr.close()

    @property
    def pid(self) -> int:
        """Its process: nsenter has become the command."""
        return self._process.pid

    def until(self, state: str) -> dict[str, Any]:
        """Wait for the next line with this state; other lines are skipped."""
        while (news := self.news.get(timeout=SECONDS))["state"] != state:
            pass
        return news

    def end(self, number: int) -> int:
        """Send the signal and wait; the exit code, negative for a signal's number."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.finished()

    def finished(self) -> int:
        """The exit code, once it has ended."""
        return self._process.wait(SECONDS)

    def errors(self) -> str:
        """All of stderr; only when it has ended."""
        assert self._process.stderr
        return self._process.stderr.read()

    def close_errors(self) -> None:
        """Close our end of its stderr: when it writes there, it gets an error."""
        assert self._process.stderr
        self._process.stderr.close()

    def cpu_seconds(self) -> float:
        """Processor time that it has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.news.put(json.loads(line))
        self.news.put({"state": "over"})


def links(netns: str) -> dict[str, dict[str, Any]]:
    """The links of the namespace by name, as ip-link(8) and ip-address(8) tell them."""
    told = subprocess.run(["nsenter", f"--net={netns}", "ip", "-json", "address"], check=True, capture_output=True, text=True)
    return {link["ifname"]: link for link in json.loads(told.stdout)}
