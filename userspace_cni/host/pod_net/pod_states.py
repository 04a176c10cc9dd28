"""What a pod's network namespace has of an interface, and what else decides about its packets: read, never changed.

A pod may have done anything in its namespace. What is read has bounds, and nothing in it is followed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from userspace_cni.attachment.steps import Link
from userspace_cni.host.netlink import address_messages as addresses
from userspace_cni.host.netlink import link_messages as links
from userspace_cni.host.netlink import rule_messages as rules
from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.netns import Netns
from userspace_cni.host.pod_net.pod_links import connect, has_checksum_offload, kernel_does
from userspace_cni.linux.netlink import LISTED_MAX, NetlinkConnection

_USUAL_RULES: Final = (0, 32766, 32767)
"""The priorities of the rules that each namespace has: for the tables local, main and default."""
_RULES_MAX: Final = 8
_READ_MAX: Final = 1 << 16
_IPV4: Final = "/proc/sys/net/ipv4/conf"
_IPV6: Final = "/proc/sys/net/ipv6/conf"
_COUNTERS: Final = "/proc/thread-self/net/netstat"
_COUNTED: Final = "IPReversePathFilter"


@dataclass(frozen=True)
class PodState:
    """`end`: the other end of the host end, under whatever name; `is_taken`: the interface's name is that of another link.
    `offload`: of checksums at that end. `failed`: its addresses that IPv6 found in use elsewhere. `rules`: policy rules beside
    the usual ones, as ip(8) shows them, at most eight. `macs`: of all links of the pod, which answers by each for what it has at
    any. `rp_filter`: the stricter of the sysctls of all links and of this one, 0 to 2; `without_ipv6`: the sysctl disable_ipv6 is
    on; `reverse_path_drops`: packets of the whole namespace that rp_filter dropped."""

    end: FoundLink | None = None
    is_taken: bool = False
    offload: bool = False
    failed: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    macs: frozenset[str] = frozenset()
    rp_filter: int = 0
    without_ipv6: bool = False
    reverse_path_drops: int = 0


@dataclass(frozen=True)
class _Files:
    """Texts by path, as the namespace shows them; a missing file has none."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def number(self, path: str) -> int:
        text = self.texts.get(path, "").strip()
        return int(text) if text.isdecimal() else 0

    def counter(self) -> int:
        """Of /proc/net/netstat: a line of names, and the next one with the values."""
        lines = self.texts.get(_COUNTERS, "").splitlines()
        for names, values in pairwise(lines):
            if _COUNTED in names.split():
                found = dict(zip(names.split(), values.split(), strict=False))[_COUNTED]
                return int(found) if found.isdecimal() else 0
        return 0


def read_pod_state(step: Link, host: FoundLink | None, pod: Netns) -> PodState:
    """Look for the end that belongs to this host end. Raises UserspaceError."""
    what = f"interface {step.name}: looking at it"
    with connect(pod, what, LISTED_MAX) as inside, kernel_does(what):
        found = [links.read(payload) for _, payload in inside.ask(links.dump_without_counters())]
        end = next((each for each in found if host and _are_ends(host, each)), None)
        taken = any(each.name == step.name and each is not end for each in found)
        others = tuple(_other_rules(inside))[:_RULES_MAX]
        if end is None:
            return PodState(is_taken=taken, rules=others)
        listed = [addresses.read(each) for _, each in inside.ask(addresses.dump(end.index)) if each[0] in FAMILIES.values()]
        failed = tuple(str(each.interface.ip) for each in listed if each.index == end.index and each.failed)
        offload = has_checksum_offload(inside, end.name)
        name = end.name
        paths = (f"{_IPV4}/all/rp_filter", f"{_IPV4}/{name}/rp_filter", f"{_IPV6}/{name}/disable_ipv6", _COUNTERS)
        files = pod.do(lambda: _Files(dict(_read(paths))))
    strictest = max(files.number(paths[0]), files.number(paths[1]))
    macs = frozenset(each.mac for each in found)
    return PodState(end, taken, offload, failed, others, macs, strictest, bool(files.number(paths[2])), files.counter())


def _are_ends(host: FoundLink, end: FoundLink) -> bool:
    return end.kind == "veth" and (host.peer, end.peer) == (end.index, host.index)


def _other_rules(inside: NetlinkConnection) -> Iterator[str]:
    for version in FAMILIES:
        try:
            listed = inside.ask(rules.dump(version))
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):  # a kernel without policy rules, or without IPv6
                continue
            raise
        for _, payload in listed:
            found = rules.read(payload) if payload[0] == FAMILIES[version] else None
            if found and found.priority not in _USUAL_RULES:
                come = f" iif {found.link}" if found.link else ""
                yield f"{found.priority}: from {found.source or 'all'}{come} lookup {found.table}"


def _read(paths: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for each in paths:
        try:
            with Path(each).open(encoding="ascii", errors="replace") as file:
                yield each, file.read(_READ_MAX)
        except FileNotFoundError:  # a kernel without that, or without IPv6
            continue
