"""Address translation of the node's gateways: the driver of Translation. One table of ours; no other table is read or changed.

The table is replaced as a whole in one transaction of the kernel: at no moment a packet meets half of it. Existing translated
connections stay as they are, because the kernel keeps them apart from the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final

from userspace_cni.attachment.drift import Absent, Condition, Drift
from userspace_cni.attachment.steps import Driver, SharedReads, Translation
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.node_kernel import has_ended
from userspace_cni.host.node_net import nft_program
from userspace_cni.host.pod_net.guards import table_of

_WHAT: Final = "address translation"
_WORDS: Final = {4: "ip", 6: "ip6"}
_TYPES: Final = {4: "ipv4_addr", 6: "ipv6_addr"}
Things = Sequence[Mapping[str, Any]]


class TranslationDriver(Driver[Translation]):
    """The table. `root` is the host's: the path of the switch's namespace is the host's."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root
        self._expected: tuple[str, Things] = "", ()

    def apply(self, step: Translation, deadline: Deadline) -> None:
        """Put the table in the place of the one of its name, if there is one."""
        nft_program.load(replacement(step), step.switch_netns, self._root, deadline)

    def undo(self, step: Translation, deadline: Deadline) -> None:
        """Delete the table. A namespace that is gone took it with it."""
        if has_ended(step.switch_netns, self._root):
            return
        nft_program.load(_without(step), step.switch_netns, self._root, deadline)

    def check(self, step: Translation, deadline: Deadline) -> list[Drift]:
        """The table has these sets, chains and rules, and no others."""
        look = f"in the switch's network namespace: nft list table inet {table_of(step.store)}"
        return [Drift(_WHAT, *each, look) for each in self._differences(step, deadline)]

    def is_lost(self, step: Translation, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - there is one such step
        return any(self._differences(step, deadline))

    def _differences(self, step: Translation, deadline: Deadline) -> Iterator[tuple[str, Condition, Condition]]:
        """Field, expected and found of each difference."""
        wanted = replacement(step)
        if self._expected[0] != wanted:
            self._expected = wanted, nft_program.as_listed(wanted, table_of(step.store), deadline)
        found = nft_program.list_table(table_of(step.store), step.switch_netns, self._root, deadline)
        if not found:
            yield "", Condition(f"a table of {len(self._expected[1])} things"), Absent()
            return
        for each in _without_those(self._expected[1], found):
            yield _named(each), Condition("as it was made"), Absent("not so")
        for each in _without_those(found, self._expected[1]):
            yield _named(each), Absent(), Condition("what another program has put there")


def replacement(step: Translation) -> str:
    """What nft is given: the table, in the place of the one that is there."""
    return f"{_without(step)}table inet {table_of(step.store)} {{\n{rules(step.gateways)}}}\n"


def rules(gateways: Sequence[Mapping[str, Any]]) -> str:
    """What is in the table. Pure.

    Names and addresses in it were read as such: none can end a line or a word.
    """
    lines = [*_sets(gateways)]
    translated = [each for each in gateways if each["masquerade"]]
    if translated:
        lines += ["chain postrouting {", "type nat hook postrouting priority srcnat; policy accept;"]
        lines += [rule for each in translated for rule in _masquerading(each)]
        lines += ["}"]
    clamped = [each for each in gateways if each["clamp_mss"]]
    if clamped:
        lines += ["chain forward {", "type filter hook forward priority mangle; policy accept;"]
        lines += [rule for each in clamped for rule in _clamping(each)]
        lines += ["}"]
    return "".join(f"{line}\n" for line in lines)


def _without(step: Translation) -> str:
    """Deletes the table, also where there is none."""
    table = table_of(step.store)
    return f"add table inet {table}\ndelete table inet {table}\n"


def _sets(gateways: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The subnets of all gateways, by family: what goes from one to another keeps its address."""
    subnets = [subnet for each in gateways for subnet in each["subnets"]]
    for version, kind in _TYPES.items():
        if found := _of(version, subnets):
            yield f"set subnets{version} {{ type {kind}; flags interval; elements = {_listed(found)} }}"


def _masquerading(gateway: Mapping[str, Any]) -> Iterator[str]:
    for version, word in _WORDS.items():
        if subnets := _of(version, gateway["subnets"]):
            kept = _of(version, gateway["kept"])
            but = f" {word} daddr != {_listed(kept)}" if kept else ""
            yield (
                f'oifname != "{gateway["port"]}" {word} saddr {_listed(subnets)} {word} daddr != @subnets{version}{but} '
                f'masquerade fully-random comment "{gateway["port"]}: masquerade IPv{version}"'
            )


def _clamping(gateway: Mapping[str, Any]) -> Iterator[str]:
    for version, word in _WORDS.items():
        if subnets := _of(version, gateway["subnets"]):
            for side, name in (("saddr", "from"), ("daddr", "to")):
                yield (
                    f"{word} {side} {_listed(subnets)} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu "
                    f'comment "{gateway["port"]}: MSS {name} IPv{version}"'
                )


def _of(version: int, networks: Iterable[str]) -> list[str]:
    """Those of the family, without what lies in another one of them: a set takes no overlapping intervals."""
    kept: list[IPv4Network | IPv6Network] = []
    found = sorted({each for each in map(ip_network, networks) if each.version == version})  # wide ones before what is in them
    for each in found:
        if not kept or each.network_address not in kept[-1]:
            kept.append(each)
    return [str(each) for each in kept]


def _listed(networks: Iterable[str]) -> str:
    return f"{{ {', '.join(networks)} }}"


def _without_those(things: Things, others: Things) -> Things:
    known = {json.dumps(each, sort_keys=True) for each in others}
    return [each for each in things if json.dumps(each, sort_keys=True) not in known]


def _named(thing: Mapping[str, Any]) -> str:
    """A thing of the table as people find it there."""
    ((kind, what),) = thing.items()
    name = what.get("comment") or what.get("name") or what.get("chain") or ""
    return f"{kind} {name}".strip()
