"""Frames between two pods, counted by their sender: the kernel's ping over a link of `userspace-cni tap` in each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.lab.cluster.cluster import RUNNING_S, Cluster
from tests.lab.switch.switch import wait_until

_PINGS = """\
until [ -e /tmp/stop ]; do busybox ping -q -i 0.01 -c 50 -W 2 {address} >>/tmp/pings; done
busybox touch /tmp/stopped
"""
"""Each ping sends a number of requests and awaits the answers, because an interrupted ping counts the last one as lost."""


@dataclass
class Pings:
    """How many were sent and answered; both are 0 until the end."""

    sent: int = 0
    answered: int = 0


def address_of(cluster: Cluster, pod: str, ifname: str = "eth1") -> str:
    """The address that `tap` has given its link."""
    found = re.findall(r"inet ([0-9.]+)/", cluster.exec(pod, "ip", "address", "show", ifname))
    return str(found[0]) if found else ""


@contextmanager
def pings(cluster: Cluster, left: str, right: str) -> Iterator[Pings]:
    """During the block the pod `left` pings `right` a hundred times a second; both are `tap_pod`s with eth1, and connected."""
    address = wait_until(lambda: address_of(cluster, right), RUNNING_S, f"{right} to have its address")
    cluster.exec(left, "busybox", "ping", "-c", "1", "-W", "10", address)
    counted = Pings()
    script = _PINGS.format(address=address)
    cluster.exec(left, "sh", "-c", f"busybox rm -f /tmp/stop /tmp/stopped /tmp/pings; ({script}) >/dev/null 2>&1 </dev/null &")
    try:
        yield counted
    finally:
        cluster.exec(left, "busybox", "touch", "/tmp/stop")
        wait_until(lambda: "stopped" in cluster.exec(left, "ls", "/tmp").split(), RUNNING_S, "pings to end")
        told = cluster.exec(left, "cat", "/tmp/pings")
        batches = re.findall(r"(\d+) packets transmitted, (\d+) packets received", told)
        assert batches, told
        counted.sent, counted.answered = (sum(int(number) for number in each) for each in zip(*batches, strict=True))
