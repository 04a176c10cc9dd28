"""The lanes: releases of Debian with whose Open vSwitch, DPDK, OVN, containerd and cnitool tests run.

One line here adds a lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Lane:
    """`suites` are releases as the archive names them: packages that the first lacks come from the others.

    `always`: the whole suite fails when the archive does not have its packages; for other lanes it only says so.
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
