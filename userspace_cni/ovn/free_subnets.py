"""A subnet for a node that has none: the first part of the cluster's, of the length that was asked for, that is free. Pure.

A node whose rows were lost gets its former one again, because its pods live with addresses of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.ovn.topology import NODE_LENGTH_LEFT, Subnet

_LENGTHS: Final = re.compile(r"/(\d{1,3})(?:, ?/(\d{1,3}))?")


@dataclass(frozen=True)
class AskedFree:
    """`lengths`: of the prefixes, one for each of the cluster's subnets. `former`: what the node had, of a family the last."""

    lengths: tuple[int, ...]
    former: tuple[Subnet, ...] = ()


def read_lengths(text: str, what: str) -> tuple[int, ...]:
    """The lengths of prefixes in /24 or /24,/64, in the order of the cluster's subnets. Raises InvalidConfig naming `what`."""
    if not (match := _LENGTHS.fullmatch(text.strip())):
        raise InvalidConfig(f"{what} is {quote(text)}", "give a subnet, or the length of one that is free, as /24 or /24,/64")
    return tuple(int(each) for each in match.groups() if each)


def choose_subnets(asked: AskedFree, cluster: Sequence[Subnet], taken: Sequence[Subnet]) -> tuple[Subnet, ...]:
    """Of each of the cluster's subnets the part that the node had, where it is free, else the first free one.

    Raises InvalidConfig where there is none, or that length cannot be.
    """
    lengths = ",".join(f"/{each}" for each in asked.lengths)
    if len(asked.lengths) != len(cluster):
        subnets = " and ".join(map(str, cluster)) or "no subnet in the database"
        raise InvalidConfig(f"--subnet is {lengths}, and the cluster has {subnets}", "give one length for each")
    had = {each.version: each for each in asked.former if _is_free(each, taken)}
    return tuple(
        found if (found := had.get(whole.version)) and _is_part(found, whole) else _first_free(length, whole, taken)
        for length, whole in zip(asked.lengths, cluster, strict=True)
    )


def _is_part(subnet: Subnet, whole: Subnet) -> bool:
    return subnet.version == whole.version and subnet != whole and subnet.subnet_of(whole)  # type: ignore[arg-type]


def _is_free(subnet: Subnet, taken: Sequence[Subnet]) -> bool:
    return not any(subnet.version == each.version and subnet.overlaps(each) for each in taken)


def _first_free(length: int, whole: Subnet, taken: Sequence[Subnet]) -> Subnet:
    if not whole.prefixlen < length <= whole.max_prefixlen - NODE_LENGTH_LEFT:
        raise InvalidConfig(
            f"--subnet is /{length}, of the cluster's {whole}",
            f"it must be from /{whole.prefixlen + 1} to /{whole.max_prefixlen - NODE_LENGTH_LEFT}",
        )
    size, first = 1 << (whole.max_prefixlen - length), int(whole.network_address)
    others = ((int(each[0]), int(each[-1])) for each in taken if each.version == whole.version)
    for start, end in sorted(others):  # past each one at a stride: a large subnet that is taken has countless small parts
        if start < first + size and end >= first:
            first = (end // size + 1) * size
    if first > int(whole.broadcast_address):
        raise InvalidConfig(
            f"--subnet is /{length}, and no such part of the cluster's {whole} is free", "enlarge it by init-cluster"
        )
    return type(whole)((first, length))
