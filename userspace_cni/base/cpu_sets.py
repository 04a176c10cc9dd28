"""Sets of CPUs in the two forms that kernel and switch write: lists (`0-3,8`) and masks (`0x10f`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_MASK: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,4096})")
_HIGHEST: Final = 1 << 14
"""More than a kernel can have (NR_CPUS): a list from outside must not make a larger set."""


def read_list(text: str) -> frozenset[int]:
    """The CPUs of a list; what is no number in it, as `(null)` of a kernel without the feature, is left out."""
    cpus: set[int] = set()
    for item in text.strip().split(","):
        first, _, last = item.partition("-")
        last = last.partition(":")[0] or first
        if first.isdecimal() and last.isdecimal() and int(last) < _HIGHEST:
            cpus.update(range(int(first), int(last) + 1))
    return frozenset(cpus)


def read_mask(text: str) -> frozenset[int] | None:
    """The CPUs of a mask in hexadecimal, as other_config:pmd-cpu-mask; None for another text."""
    found = _MASK.fullmatch(text.strip().strip('"'))
    if found is None:
        return None
    bits = int(found[1], 16)
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


def as_list(cpus: Iterable[int]) -> str:
    """`0-3,8`; "" for none."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def as_mask(cpus: Iterable[int]) -> str:
    """`0x10f`."""
    return hex(sum(1 << cpu for cpu in set(cpus)))
