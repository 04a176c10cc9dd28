"""Ranges of a Subnet's addresses, one for each node, from which the node's IPAM plugin leases. Pure.

Two nodes must never have addresses in common, and a node keeps its range as long as it is known: its pods have addresses in it.
So a range stays while it lies in the Subnet, whatever happens to `perNodePrefix` and `excludeIps`; new ranges are cut around
the existing ones. A node whose range is missing in the status, for example after a restore from a backup, gets back the one
that it reports to use.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from userspace_cni.base.subnets import Cidr, Subnet

Run = tuple[int, int]
"""First and last address of some that follow one another, as numbers."""

SPARE: Final = 2
"""Bits for hosts that a range has at least: its network, its gateway, a pod, its broadcast."""


@dataclass(frozen=True)
class NodeRange:
    """The range of a node, and the node's own address, by which other nodes reach it."""

    node: str
    range: str
    address: str


@dataclass(frozen=True)
class Division:
    """How a Subnet is divided: the ranges, by node, and the nodes for which none is left."""

    ranges: tuple[NodeRange, ...]
    without: tuple[str, ...] = ()


def divide(
    subnet: Subnet, now: Sequence[NodeRange], nodes: Mapping[str, str], held: Collection[str], used: Mapping[str, str]
) -> Division:
    """Give each of `nodes` (addresses by name) its range of a Subnet with `per_node_prefix`, which has one network.

    `now`: the ranges that were given, of which those of `held` stay. `used`: ranges that nodes report to use; one of another size
    is not taken from a report.
    """
    [block] = subnet.cidrs
    given: dict[str, Cidr] = {}
    runs: list[Run] = []
    again = [(node, text) for node, text in sorted(used.items()) if text.endswith(f"/{subnet.per_node_prefix}")]
    for node, text in [*((each.node, each.range) for each in now), *again]:
        network = _network(text)
        if node in held and node not in given and network and _fits(network, block) and _is_free(_run(network), runs):
            given[node] = network
            insort(runs, _run(network))
    waiting = sorted(set(nodes) - given.keys())
    given |= dict(zip(waiting, _free(block, subnet.per_node_prefix, merge([*runs, *_never_given(subnet)])), strict=False))
    before = {each.node: each.address for each in now}
    ranges = (NodeRange(node, str(network), nodes.get(node) or before.get(node, "")) for node, network in sorted(given.items()))
    return Division(tuple(ranges), tuple(node for node in waiting if node not in given))


def find_remaining(subnet: Subnet, now: Sequence[NodeRange], held: Collection[str]) -> Division:
    """What is left of the ranges `now` of a Subnet that is divided no longer: those of `held` that lie in it."""
    networks = ((each, _network(each.range)) for each in now if each.node in held)
    return Division(tuple(each for each, network in networks if network and any(_fits(network, block) for block in subnet.cidrs)))


def _never_given(subnet: Subnet) -> Iterator[Run]:
    """The addresses that no pod gets: what is excluded, and the gateway outside."""
    yield from ((int(first), int(last)) for first, last in subnet.excluded if first.version == subnet.cidrs[0].version)
    yield from ((int(each), int(each)) for each in subnet.gateways)


def _fits(network: Cidr, block: Cidr) -> bool:
    (first, last), (start, end) = _run(network), _run(block)
    large_enough = network.prefixlen <= network.max_prefixlen - SPARE
    return network.version == block.version and large_enough and start <= first and last <= end


def _is_free(wanted: Run, runs: Sequence[Run]) -> bool:
    """Whether it has nothing in common with the runs, which are sorted and have nothing in common."""
    index = bisect_right(runs, wanted)
    return (index == 0 or runs[index - 1][1] < wanted[0]) and (index == len(runs) or wanted[1] < runs[index][0])


def _free(block: Cidr, prefix: int, taken: Sequence[Run]) -> Iterator[Cidr]:
    """The ranges that have nothing of what is taken, but for what no pod gets: a range's own network and gateway."""
    size = 1 << (block.max_prefixlen - prefix)
    start, last = _run(block)
    ends = [end for _, end in taken]
    at = start
    while at + size - 1 <= last:
        index = bisect_right(ends, at + 1)
        if index == len(taken) or taken[index][0] > at + size - 1:
            yield type(block)((at, prefix))
            at += size
        else:
            into = (ends[index] - start) % size
            at = ends[index] - into + (size if into > 1 else 0)


def _run(network: Cidr) -> Run:
    return int(network.network_address), int(network.broadcast_address)


def _network(text: str) -> Cidr | None:
    """The network that a status or a report says; None for none."""
    try:
        return ip_network(text)
    except ValueError:
        return None


def merge(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same addresses, in runs that neither meet nor overlap."""
    joined: list[Run] = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return tuple(joined)
