"""passt in a network namespace of its own, which is what its guest sees behind it: nothing leaves that namespace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.peers.peer_programs import peers
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import listens, wait_until

GUEST: Final = "192.0.2.9"
"""passt gives its guest the address of the namespace's own link."""
GATEWAY: Final = "192.0.2.1"
"""For the guest this is 127.0.0.1 of the namespace."""
_LINKS: Final = (
    "ip link set lo up",
    "ip link add v0 type veth peer name v1",
    f"ip address add {GUEST}/24 dev v0",
    "ip link set v0 up",
    "ip link set v1 up",
    f"ip route add default via {GATEWAY}",
    "sysctl -qw net.ipv4.ping_group_range='0 2147483647'",
)


@dataclass
class Passt:
    """A running passt: its namespace, its socket, its process."""

    outside: str
    path: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@contextmanager
def outside_of_guest() -> Iterator[str]:
    """A namespace in which passt can run: it has a link with an address and a default route, which leads nowhere."""
    with netns() as path:
        subprocess.run(["nsenter", f"--net={path}", "sh", "-ec", "\n".join(_LINKS)], check=True)
        yield path


@contextmanager
def passt(outside: str, path: Path, *options: str) -> Iterator[Passt]:
    """passt in that namespace, listening at the path; it is ended with the block, when it still runs. Its words are printed."""
    path.parent.chmod(0o777)  # it makes the socket as another user
    argv = ["nsenter", f"--net={outside}", *peers().passt, "--vhost-user", "--foreground", "--socket", str(path), "--ipv4-only"]
    argv += ["--no-map-gw", "--map-host-loopback", GATEWAY, "--tcp-ports", "none", "--udp-ports", "none", *options]
    words = path.with_name("passt.log")
    with ExitStack() as stack, words.open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(lambda: print(words.read_text()))
        running = Passt(outside, str(path), process)
        stack.callback(running.kill)
        wait_until(lambda: process.poll() is not None or listens(path, process.pid), what="passt's socket")
        assert process.poll() is None, words.read_text()
        yield running
