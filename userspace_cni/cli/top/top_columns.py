"""The columns of `top`. Pure. To add one: a line in `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.cli.top.top_figures import Piece, figure, percent, round_figure, width_of
from userspace_cni.cli.top.top_rows import FAULTS, TopRow
from userspace_cni.cli.view import plain

GAP: Final = 2
"""Blanks between two columns."""
_OF_NOTHING: Final = 100
"""Added to the rank of columns that have nothing to show in any row."""
_NEAR_LIMIT: Final = 0.95
_USED_MAX: Final = 9.99
_BUSY_PERCENT: Final = 90
_LOOKS: Final = {"connected": "green", "link up": "green", "no app": "yellow", "link down": "yellow"} | dict.fromkeys(
    FAULTS, "red"
)


@dataclass(frozen=True)
class TopColumn:
    """A column. `name`: where columns are chosen; `group`: a heading above its own, shared with its neighbours. `rank`: columns
    with the highest are left out first where there is no room, 0 never. `width`: the least; `room`: what a row needs, None where
    that is enough. `sort`: the way to sort to which it belongs."""

    name: str
    group: str
    heading: str
    rank: int
    show: Callable[[TopRow], Piece]
    width: int
    sort: str = ""
    right: bool = True
    optional: bool = False
    room: Callable[[TopRow], int] | None = None


def _rate(of: Callable[[TopRow], float | None], look: str = "") -> Callable[[TopRow], Piece]:
    def show(row: TopRow) -> Piece:
        number = of(row)
        return Piece(figure(number), look if number else "dim")

    return show


def _limit(way: str) -> Callable[[TopRow], Piece]:
    def show(row: TopRow) -> Piece:
        limit = row.limits.get(way)
        if limit is None:
            return Piece("-", "dim")
        if limit.rate is None:
            return Piece("netem")
        used = row.used(way)
        shown = percent(None if used is None else min(used, _USED_MAX))
        return Piece(f"{shown} of {round_figure(limit.rate)}", "yellow" if used is not None and used >= _NEAR_LIMIT else "")

    return show


def _limit_room(way: str) -> Callable[[TopRow], int]:
    """As much as a limit that is used to the full takes, so that the column stays as wide as it is."""

    def room(row: TopRow) -> int:
        limit = row.limits.get(way)
        return len(f"100% of {round_figure(limit.rate)}") if limit and limit.rate else 0

    return room


def _limit_drops(way: str) -> Callable[[TopRow], Piece]:
    def show(row: TopRow) -> Piece:
        limit = row.limits.get(way)
        return Piece(figure(limit.drops), "" if limit.drops else "dim") if limit else Piece("-", "dim")

    return show


def _name(row: TopRow) -> Piece:
    if row.members:
        return Piece(f"{plain(row.name)} ({row.members})", "bold")
    return Piece(plain(row.name), "red" if row.state in FAULTS else "")


def _state(row: TopRow) -> Piece:
    return Piece(row.state, "red" if row.members else _LOOKS.get(row.state, "dim"))


def _share(row: TopRow) -> Piece:
    share = row.share
    if share is None:
        return Piece("-", "dim")
    busy = share >= _BUSY_PERCENT * max(1, len(row.cores))
    return Piece(f"{share}%", "yellow" if busy and not row.members else "" if share else "dim")


def _text(of: Callable[[TopRow], str]) -> Callable[[TopRow], Piece]:
    return lambda row: Piece(plain(of(row)), "dim")


def _cores(row: TopRow) -> Piece:
    return Piece(",".join(map(str, sorted(row.cores))) or "-", "" if row.cores else "dim")


def _words(name: str, rank: int, show: Callable[[TopRow], Piece], sort: str = "", *, width: int = 0) -> TopColumn:
    """A column of text, which has room for every row's; without a `width` it is optional."""
    least, optional = width or len(name), not width

    def room(row: TopRow) -> int:
        return width_of(show(row).text)

    return TopColumn(name, "", name.upper(), rank, show, least, sort, right=False, optional=optional, room=room)


COLUMNS: Final = (
    _words("attachment", 0, _name, "name", width=10),
    _words("network", 12, _text(lambda row: row.network), "network"),
    _words("bridge", 13, _text(lambda row: row.bridge)),
    _words("port", 15, _text(lambda row: row.port)),
    _words("type", 14, _text(lambda row: row.kind)),
    _words("state", 1, _state, "state", width=9),
    TopColumn("frames to", "to the pod", "frames/s", 6, _rate(lambda row: row.rates.frames_to_pod), 8, "frames"),
    TopColumn("bits to", "to the pod", "bit/s", 2, _rate(lambda row: row.rates.bits_to_pod), 6, "bits"),
    TopColumn("frames from", "from the pod", "frames/s", 7, _rate(lambda row: row.rates.frames_from_pod), 8, "frames"),
    TopColumn("bits from", "from the pod", "bit/s", 3, _rate(lambda row: row.rates.bits_from_pod), 6, "bits"),
    TopColumn("drops to", "drops/s", "to", 4, _rate(lambda row: row.rates.drops_to_pod, "red"), 5, "drops"),
    TopColumn("drops from", "drops/s", "from", 5, _rate(lambda row: row.rates.drops_from_pod, "red"), 5, "drops"),
    TopColumn("errors", "", "errors/s", 16, _rate(lambda row: row.rates.errors, "red"), 8, optional=True),
    TopColumn("limit to", "limit used", "to", 9, _limit("to_pod"), 5, "limit used", room=_limit_room("to_pod")),
    TopColumn("limit from", "limit used", "from", 10, _limit("from_pod"), 5, "limit used", room=_limit_room("from_pod")),
    TopColumn("dropped by limit to", "dropped by limit", "to", 17, _limit_drops("to_pod"), 6, optional=True),
    TopColumn("dropped by limit from", "dropped by limit", "from", 18, _limit_drops("from_pod"), 6, optional=True),
    TopColumn("polling core", "polling", "core", 11, _cores, 4, room=lambda row: len(_cores(row).text)),
    TopColumn("polling CPU", "polling", "CPU", 8, _share, 4, "polling"),
)  # fmt: skip
SHORT_GROUPS: Final = {"to the pod": "to", "from the pod": "from", "drops/s": "drops", "limit used": "limit", "polling": "poll"}
"""What stands for a group above a single narrow column."""
HIDDEN: Final = frozenset(column.name for column in COLUMNS if column.optional)
"""The columns that are shown when they are asked for."""


@dataclass(frozen=True)
class Fitted:
    """Columns that have room, each with its width, and the names of those that have none."""

    columns: tuple[tuple[TopColumn, int], ...]
    left_out: tuple[str, ...]


def fit_columns(rows: Sequence[TopRow], hidden: Collection[str], width: int) -> Fitted:
    """The columns that are not hidden, as far as the width has room; names are whole, and have precedence."""
    wanted = [(column, _natural(column, rows)) for column in COLUMNS if column.name not in hidden]
    limited = any(row.limits for row in rows)

    def rank(each: tuple[TopColumn, int]) -> int:
        return each[0].rank + (_OF_NOTHING if each[0].group.startswith("limit") and not limited else 0)

    kept: list[tuple[TopColumn, int]] = []
    for each in sorted(wanted, key=rank):  # a narrow one may have room where a wide one of a lower rank has none
        if not each[0].rank or _sum([*kept, each]) <= width:
            kept.append(each)
    shown = tuple(each for each in wanted if each in kept)
    return Fitted(shown, tuple(each[0].name for each in wanted if each not in kept))


def _natural(column: TopColumn, rows: Sequence[TopRow]) -> int:
    return max([column.width, *map(column.room, rows)]) if column.room else column.width


def _sum(columns: Iterable[tuple[TopColumn, int]]) -> int:
    widths = [width for _, width in columns]
    return sum(widths) + GAP * (len(widths) - 1)
