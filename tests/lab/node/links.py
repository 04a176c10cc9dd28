"""Kernel links as a test sees them: through ip(8) and nft(8) in their namespaces, never through the code under test."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_GUARD: Final = re.compile(r'type filter hook ingress devices? (?:= \{ )?"?([^" }]+)"?(?: \})? priority filter; policy drop;')

_TABLE: Final = re.compile(r"table netdev (userspace-cni-\S+)")


def inside(netns: str, *command: str, check: bool = True, seconds: float = 60) -> str:
    """The output of a command in the network namespace; AssertionError has its stderr when it fails."""
    argv = ["nsenter", f"--net={netns}", *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout


def links(netns: str) -> dict[str, dict[str, Any]]:
    """The links of a namespace by name, as `ip -details -json link` has them; the names `lo` and OVS's own are left out."""
    found = json.loads(inside(netns, "ip", "-details", "-json", "link") or "[]")
    return {each["ifname"]: each for each in found if each["ifname"] not in ("lo", "ovs-netdev")}


def addresses(netns: str, name: str) -> list[str]:
    """The link's addresses with prefix length, but for link-local ones."""
    [found] = json.loads(inside(netns, "ip", "-json", "address", "show", "dev", name))
    return [f"{each['local']}/{each['prefixlen']}" for each in found["addr_info"] if each["scope"] != "link"]


def routes(netns: str, *family: str) -> list[dict[str, Any]]:
    found = json.loads(inside(netns, "ip", *family, "-json", "route") or "[]")
    return [each for each in found if each.get("protocol") != "kernel"]


def guards(netns: str) -> list[str]:
    """Names of the links whose frames the namespace's stack drops. nft's JSON leaves a chain's devices out."""
    return sorted(_GUARD.findall(inside(netns, "nft", "list", "ruleset")))


def host_ends(netns: str) -> dict[str, dict[str, Any]]:
    """The host ends in the switch's namespace, where bridges are links, too."""
    return {name: each for name, each in links(netns).items() if each["linkinfo"]["info_kind"] == "veth"}


def left_of_ours(netns: str) -> dict[str, list[str]]:
    """The host ends with our owner mark, and the links that are guarded; without a namespace there are none."""
    if not Path(netns).exists():
        return {"host ends": [], "guards": []}
    ours = (name for name, each in links(netns).items() if each.get("ifalias", "").startswith("userspace-cni "))
    return {"host ends": sorted(ours), "guards": guards(netns)}


def drop_guards(netns: str) -> None:
    """Remove every guard of ours, whichever attachment it is for."""
    if Path(netns).exists():
        for table in _TABLE.findall(inside(netns, "nft", "list", "tables", "netdev")):
            inside(netns, "nft", "delete", "table", "netdev", table)


def pings(netns: str, address: str, count: int = 3) -> int:
    """How many of so many echo requests are answered.

    Each is sent alone: ping(8) waits seconds for an only answer, but for the last of several no longer than for the others.
    """
    argv = ("ping", "-n", "-q", "-c", "1", "-W", "2", address)
    return sum(" 0% packet loss" in inside(netns, *argv, check=False) for _ in range(count))


@contextmanager
def pinging(netns: str, address: str) -> Iterator[list[int]]:
    """During the block, a hundred echo requests a second; afterwards the list has the numbers of those that were answered."""
    answered: list[int] = []
    argv = ["nsenter", f"--net={netns}", "ping", "-n", "-i", "0.01", address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield answered
        finally:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
    answered += [int(number) for number in re.findall(r"icmp_seq=([0-9]+) ttl", said)]
