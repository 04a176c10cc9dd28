"""Veths in the network namespace of a private switch, made by iproute2."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.lab.switch.switch import Switch, wait_until


@dataclass(frozen=True)
class Veth:
    """A link of a test."""

    index: int
    up: bool
    mac: str
    mtu: int


@dataclass(frozen=True)
class NamedVeth:
    """The link of a name, as a driver sees it."""

    index: int
    ours: bool = False
    in_use: bool = True


class Veths:
    """The veths of a test; `pod_end` is the name of the other end, which stays in the same namespace."""

    def __init__(self, switch: Switch) -> None:
        self._enter = ["nsenter", f"--net={switch.dir}/netns"]

    def run(self, *argv: str) -> str:
        """Output of a command in the namespace."""
        return subprocess.run([*self._enter, *argv], check=True, capture_output=True, text=True, timeout=60).stdout

    def add(self, name: str, mtu: int = 1500) -> None:
        """Make the veth and set both ends up."""
        pod_end = self.pod_end(name)
        both = ["mtu", str(mtu)]
        self.run("ip", "link", "add", name, *both, "type", "veth", "peer", "name", pod_end, *both)
        for each in (name, pod_end):
            self.run("ip", "link", "set", each, "up")

    def try_add(self, name: str) -> bool:
        """As `add`; False while the name is not free: AF_XDP keeps the name of a deleted link for a while."""
        try:
            self.add(name)
        except subprocess.CalledProcessError as error:
            if "File exists" not in error.stderr:
                raise
            return False
        return True

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A network namespace beside that of the switch: its path, which ip(8) takes in the place of a name's process id."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        try:
            own = Path("/proc/self/ns/net").stat().st_ino
            wait_until(lambda: Path(f"/proc/{holder.pid}/ns/net").stat().st_ino != own, what=f"namespace {name}")
            yield str(holder.pid)
        finally:
            holder.kill()
            holder.wait()

    def inside(self, namespace: str, *argv: str, check: bool = True) -> str:
        """Output of a command in such a namespace."""
        enter = ["nsenter", f"--net=/proc/{namespace}/ns/net"]
        return subprocess.run([*enter, *argv], check=check, capture_output=True, text=True, timeout=60).stdout

    def delete(self, name: str) -> None:
        self.run("ip", "link", "delete", name)

    def pod_end(self, name: str) -> str:
        return f"{name}p"

    def __call__(self) -> dict[str, Veth]:
        links = json.loads(self.run("ip", "-json", "link", "show") or "[]")
        return {each["ifname"]: Veth(each["ifindex"], "UP" in each["flags"], each["address"], each["mtu"]) for each in links}

    def index(self, name: str) -> int:
        """The kernel's index of the link, 0 if there is none."""
        link = self().get(name)
        return link.index if link else 0

    def find(self, name: str) -> NamedVeth | None:
        """The link of that name, which is not ovs-vswitchd's."""
        index = self.index(name)
        return NamedVeth(index) if index else None

    def take(self, name: str) -> bool:
        """Whether no link has the name; none is made."""
        return name not in self()

    def let_go(self, name: str, opened: int = 0) -> bool:
        return not (name or opened)

    def mark(self, name: str, opened: int) -> None:
        """None is marked."""

    def set_up(self, name: str) -> None:
        self.run("ip", "link", "set", name, "up")

    def polices(self, name: str) -> bool:
        """Whether the link has a filter for what it receives."""
        return bool(self.run("tc", "filter", "show", "dev", name, "ingress").strip())

    def clean(self) -> None:
        """Delete all that is left. Some links vanish at the same time, with the namespace of their other end."""

        def left() -> list[str]:
            links = json.loads(self.run("ip", "-json", "link", "show", "type", "veth") or "[]")
            names = [each["ifname"] for each in links]
            for name in names:
                with suppress(subprocess.CalledProcessError):  # the next look tells
                    self.delete(name)
            return names

        wait_until(lambda: not left(), what="no veth left")
