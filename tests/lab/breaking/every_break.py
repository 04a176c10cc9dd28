"""The whole table of breaks."""

from __future__ import annotations

from tests.lab.breaking import (
    breaks_of_applications,
    breaks_of_bridges,
    breaks_of_links,
    breaks_of_the_network,
    breaks_of_the_node,
    breaks_of_the_switch,
    breaks_of_traffic,
)
from tests.lab.breaking.table import BREAKS, Break

OF_MODULES = (
    breaks_of_applications,
    breaks_of_bridges,
    breaks_of_links,
    breaks_of_the_network,
    breaks_of_the_node,
    breaks_of_the_switch,
    breaks_of_traffic,
)
EVERY_BREAK: tuple[Break, ...] = tuple(BREAKS.values())
