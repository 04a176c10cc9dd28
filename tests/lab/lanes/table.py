"""The lanes: releases of Debian whose Open vSwitch, DPDK, OVN, containerd and cnitool tests run on. To add one is a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Lane:
    """`suites` are releases as the archive names them: what the first has not is of the others.

    `always`: the whole suite fails where the archive does not give its packages; of others it says so.
    """

    name: str
    suites: tuple[str, ...]
    always: bool = False


LANES: Final = (
    Lane("trixie", ("trixie",), always=True),
    Lane("forky", ("forky", "sid")),  # OVN is in sid alone
)


def lane(name: str) -> Lane:
    """The lane of that name; KeyError."""
    return {each.name: each for each in LANES}[name]
