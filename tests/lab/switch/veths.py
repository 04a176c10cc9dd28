"""Kernel links made by ip(8) in namespaces of the test's own, never by the code under test."""

from __future__ import annotations

import subprocess


def inside(netns: str, *argv: str) -> str:
    """The output of a command that runs in the network namespace."""
    return subprocess.run(["nsenter", f"--net={netns}", *argv], check=True, capture_output=True, text=True, timeout=60).stdout


def veth(host_netns: str, host: str, pod_netns: str, pod: str, *addresses: str, queues: int = 1) -> None:
    """A veth that is up: `host` in one namespace, `pod` with the addresses in the other; each sends and receives by `queues`."""
    by = ("numtxqueues", str(queues), "numrxqueues", str(queues))
    inside(host_netns, "ip", "link", "add", host, *by, "type", "veth", "peer", "name", pod, *by, "netns", pod_netns)
    give(pod_netns, pod, *addresses)
    inside(host_netns, "ip", "link", "set", host, "up")


def give(netns: str, link: str, *addresses: str) -> None:
    """Give the link addresses, with prefix length, and set it up."""
    for address in addresses:
        inside(netns, "ip", "address", "add", address, "dev", link, *(["nodad"] if ":" in address else []))
    inside(netns, "ip", "link", "set", link, "up")
