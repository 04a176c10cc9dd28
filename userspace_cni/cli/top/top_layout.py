"""The screen of `top` as lines: the node above, its attachments below, and a line that names what had no room. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from userspace_cni.base.polling import PollingThread
from userspace_cni.cli.top.top_columns import COLUMNS, GAP, SHORT_GROUPS, Fitted, TopColumn, fit_columns
from userspace_cni.cli.top.top_figures import (
    Line,
    Piece,
    bar,
    cut_line,
    duration,
    figure,
    figure_of,
    fit,
    flow,
    width_of,
    width_of_line,
)
from userspace_cni.cli.top.top_rows import FAULTS, SORT_KEYS, TopRow, TopUplink
from userspace_cni.cli.top.top_state import COLUMN_KEYS, TopState
from userspace_cni.cli.view import format_count, plain
from userspace_cni.fastpath.memory.hugepages import format_size
from userspace_cni.node.port_rates import UNKNOWN, TrafficRates
from userspace_cni.node.traffic import Traffic

_INDENT: Final = 11
_HELP_INDENT: Final = 30
_BAR: Final = 10
_THREAD_LINES: Final = 4
_UPLINK_LINES: Final = 3
_ROWS_MIN: Final = 3
"""Rows for which the lines about the node make room, the last of them first."""
_HEADINGS: Final = 2
_SWITCH_LINES: Final = 8
"""A terminal with so many lines shows how the switch is, whatever else has no room."""
_PATIENCE_S: Final = 1.5
"""Seconds after which the title says that an answer is late."""
_TITLE: Final = "userspace-cni top"
_HEAD: Final = "head"
_AGENTS: Final = {"ready": "green", "not ready": "yellow", "slow": "yellow", "dead": "red"}


@dataclass(frozen=True)
class TopPicture:
    """All that is on the screen. `node`: its name; `clock`: the time of day; `agent`: a word of it, with more in `agent_problem`.
    `every`: all rows, `rows` the chosen ones in their order. `loads`: of polling threads, by NUMA node and core, 0 to 1."""

    node: str
    clock: str
    traffic: Traffic
    agent: str = ""
    agent_problem: str = ""
    every: Sequence[TopRow] = ()
    rows: Sequence[TopRow] = ()
    uplinks: Sequence[TopUplink] = ()
    total: TrafficRates = UNKNOWN
    loads: Mapping[tuple[int, int], float | None] = field(default_factory=dict)


def draw_screen(
    picture: TopPicture | None, state: TopState, size: tuple[int, int], asking_s: float = 0.0
) -> tuple[list[Line], int]:
    """The lines of a terminal of so many columns and lines, and for how many rows it has room. `asking_s`: how long the node has
    been asked for the next look."""
    width, height = size
    if state.mode in ("help", "columns"):
        return _draw_page(
            _title(picture, state, width, asking_s), _help(width) if state.mode == "help" else _column_choice(state), state, size
        )
    about = _about_node(picture, width) if picture else {}
    names, left_out = list(about), list[str]()
    while (
        len(names) > (height >= _SWITCH_LINES)
        and 1 + sum(len(about[name]) for name in names) + _HEADINGS + _ROWS_MIN + 1 > height
    ):
        left_out.insert(0, names.pop())
    lines = [_title(picture, state, width, asking_s), *(line for name in names for line in about[name])]
    page = max(1, height - len(lines) - _HEADINGS - 1)
    rows = picture.rows if picture else ()
    fitted = fit_columns(rows, state.hidden, width)
    if picture is None:
        lines.append((Piece("asking the switch", "dim"),))
    else:
        first = _first(rows, state, page)
        lines += [*_headings(fitted, state, width), *(_row(row, fitted) for row in rows[first : first + page])]
        if not rows:
            lines.append((Piece(_nothing(picture, state), "dim"),))
    every = len(picture.every) if picture else 0
    last = _last_line(rows, every, state, page, [*left_out, *fitted.left_out], width)
    return _filled(lines, last, size), page


def _filled(lines: Sequence[Line], last: Line, size: tuple[int, int]) -> list[Line]:
    """As many lines as the terminal has, with that as the last one."""
    width, height = size
    room = height - 1
    empty: list[Line] = [()] * (room - len(lines))
    return [cut_line(line, width) for line in (*lines[:room], *empty, last)]


def _draw_page(title: Line, body: Sequence[Line], state: TopState, size: tuple[int, int]) -> tuple[list[Line], int]:
    """A page of text in the place of rows."""
    page = max(1, size[1] - 2)
    first = min(state.scrolled, max(0, len(body) - page))
    scrolls = f"lines {first + 1}-{first + page} of {len(body)}, arrows scroll; " if len(body) > page else ""
    back = "c or q: back" if state.mode == "columns" else "another key: back" if scrolls else "any key: back"
    return _filled([title, *body[first : first + page]], (Piece(scrolls + back, "bold"),), size), page


def draw_batch(picture: TopPicture, state: TopState, width: int) -> list[Line]:
    """Everything, for an output that is no screen. Nothing is cut; columns without room are named."""
    fitted = fit_columns(picture.rows, state.hidden, width)
    about = [line for block in _about_node(picture, width).values() for line in block]
    title = (Piece(f"{_TITLE} - {plain(picture.node)} - {picture.clock}, sorted by {_sorted_by(state)}"),)
    lines = [title, *about, (), *_headings(fitted, state), *(_row(row, fitted) for row in picture.rows)]
    if not picture.rows:
        lines.append((Piece(_nothing(picture, state)),))
    if fitted.left_out:
        lines.append((Piece(f"no room for {', '.join(fitted.left_out)}"),))
    return lines


# -- about the node -----------------------------------------------------------------------------------------------------------


def _title(picture: TopPicture | None, state: TopState, width: int, asking_s: float) -> Line:
    left = [Piece(_TITLE, "bold"), Piece(f"  {plain(picture.node)}  {picture.clock}" if picture else "")]
    left.append(Piece(f"  every {state.delay:g} s"))
    if asking_s >= _PATIENCE_S:
        left.append(Piece(f"  no answer for {asking_s:.0f} s", "bold yellow"))
    sort = [Piece(f"sorted by {_sorted_by(state)}   ")]
    keys = [Piece("h", "bold"), Piece(" help  "), Piece("q", "bold"), Piece(" quit")]
    for right in ([*sort, *keys], keys):
        gap = width - width_of_line(left) - width_of_line(right)
        if gap >= GAP:
            return (*left, Piece(" " * gap), *right)
    return tuple(left)


def _about_node(picture: TopPicture, width: int) -> dict[str, list[Line]]:
    """Lines about the node by name, the most important first."""
    blocks = {
        "switch": _block("switch", _switch(picture), width),
        "ports": _block("ports", _counts(picture), width),
        "traffic": _block("traffic", _traffic(picture), width),
        "uplinks": _uplinks(picture, width),
        "threads": _threads(picture, width),
        "hugepages": _block("hugepages", _hugepages(picture.traffic), width),
    }
    return {name: lines for name, lines in blocks.items() if lines}


def _block(name: str, items: Sequence[Line], width: int) -> list[Line]:
    return flow(Piece(name, "dim"), items, width, _INDENT)


def _switch(picture: TopPicture) -> list[Line]:
    traffic = picture.traffic
    if traffic.vswitchd == "alive":
        version = traffic.reason.replace("ovs-vswitchd (Open vSwitch)", "Open vSwitch")
        up = f", up {duration(traffic.up_s)}" if traffic.up_s is not None else ""
        items: list[Line] = [(Piece(plain(version)), Piece(" alive", "green"), Piece(up))]
    else:
        look = "bold red" if traffic.vswitchd == "dead" else "yellow"
        items = [(Piece(f"ovs-vswitchd is {traffic.vswitchd}", look), Piece(f": {plain(traffic.reason)}"))]
    if picture.agent:
        more = f": {plain(picture.agent_problem)}" if picture.agent_problem else ""
        items.append((Piece("agent "), Piece(picture.agent, _AGENTS.get(picture.agent, "dim")), Piece(more)))
    if "ovsdb" in traffic.problems:
        items.append((Piece(f"OVSDB: {plain(traffic.problems['ovsdb'])}", "red"),))
    return items


def _counts(picture: TopPicture) -> list[Line]:
    rows = picture.every
    items: list[Line] = [(Piece(format_count(len(rows), "attachment"), "bold"),)]
    if "records" in picture.traffic.problems:
        items.append((Piece(f"records: {plain(picture.traffic.problems['records'])}", "red"),))
    for words, look in (
        (("connected",), "green"),
        (("link up",), "green"),
        (("no app",), "yellow"),
        (("link down",), "yellow"),
        (("attaching",), ""),
        (("detaching",), ""),
        (("unknown",), "dim"),
        (tuple(FAULTS), "red"),
    ):
        count = sum(row.state in words for row in rows)
        word = {"no app": "without application"}.get(words[0], words[0]) if len(words) == 1 else "faulty"
        if count:
            items.append((Piece(f"{count} "), Piece(word, look)))
    return items


def _traffic(picture: TopPicture) -> list[Line]:
    total, problem = picture.total, picture.traffic.problems.get("counters", "")
    if problem:
        return [(Piece(f"no counters: {plain(problem)}", "red"),)]
    items: list[Line] = [
        (Piece("to pods "), _both(total.frames_to_pod, total.bits_to_pod)),
        (Piece("from pods "), _both(total.frames_from_pod, total.bits_from_pod)),
        (Piece("dropped "), Piece(f"{figure(total.drops)}/s", "bold red" if total.drops else "bold")),
    ]
    reading = picture.traffic.counters
    if reading is not None and not reading.of_now:
        items.append((Piece(f"counters come from OVSDB, where they are written every {reading.written_s:g} s", "yellow"),))
    return items


def _both(frames: float | None, bits: float | None) -> Piece:
    return Piece(f"{figure(frames)} frames/s  {figure_of(bits, 'bit/s')}", "bold")


def _threads(picture: TopPicture, width: int) -> list[Line]:
    reading, problem = picture.traffic.threads, picture.traffic.problems.get("threads", "")
    if problem:
        return _block("threads", [(Piece(f"not known: {plain(problem)}", "red"),)], width)
    if reading is None:
        return []
    if not reading.threads:
        return _block("threads", [(Piece("no polling thread: no bridge has the userspace datapath", "dim"),)], width)
    busiest = sorted(reading.threads, key=lambda each: (-(_load(picture, each) or 0.0), each.numa, each.core))
    numa = len({each.numa for each in reading.threads}) > 1
    shown = len(busiest)
    while True:
        items = [_thread(picture, each, numa=numa) for each in sorted(busiest[:shown], key=lambda each: (each.numa, each.core))]
        if shown < len(busiest):
            most = _load(picture, busiest[shown])
            items.append((Piece(f"and {len(busiest) - shown} more, none busier than {_percent(most)}", "dim"),))
        lines = _block("threads", items, width)
        if len(lines) <= _THREAD_LINES or shown == 1:
            return lines
        shown -= 1


def _uplinks(picture: TopPicture, width: int) -> list[Line]:
    """The busiest of them, in the order of bridges and names."""
    if not picture.uplinks:
        return []
    busiest = sorted(picture.uplinks, key=lambda each: -(each.rates.bits or 0.0))
    for shown in range(len(busiest), 0, -1):
        kept = [each for each in picture.uplinks if each in busiest[:shown]]
        items = [_uplink(each) for each in kept]
        if shown < len(busiest):
            items.append((Piece(f"and {len(busiest) - shown} more, which carry less", "dim"),))
        lines = _block("uplinks", items, width)
        if len(lines) <= _UPLINK_LINES:
            break
    return lines


def _uplink(uplink: TopUplink) -> Line:
    rates = uplink.rates
    down = (Piece(" is down", "red"),) if uplink.link == "down" else ()
    return (
        Piece(plain(uplink.name)),
        Piece(f" on {plain(uplink.bridge)}", "dim"),
        *down,
        Piece(f" in {figure_of(rates.bits_from_pod, 'bit/s')}, out {figure_of(rates.bits_to_pod, 'bit/s')}", "bold"),
        *((Piece(f", dropped {figure(rates.drops)}/s", "red"),) if rates.drops else ()),
    )


def _load(picture: TopPicture, thread: PollingThread) -> float | None:
    return picture.loads.get((thread.numa, thread.core))


def _percent(part: float | None) -> str:
    return "  ?" if part is None else f"{part * 100:3.0f}%"


def _thread(picture: TopPicture, thread: PollingThread, *, numa: bool) -> Line:
    load = _load(picture, thread)
    look = "red" if (load or 0) >= 0.9 else "yellow" if (load or 0) >= 0.7 else "green"
    name = f"core {thread.core}" + (f" (NUMA {thread.numa})" if numa else "")
    queues = f"  {format_count(len(thread.queues), 'queue')}" + (", isolated" if thread.isolated else "")
    return (Piece(f"{name} "), Piece(bar(load or 0.0, _BAR), look), Piece(f" {_percent(load)} busy"), Piece(queues, "dim"))


def _hugepages(traffic: Traffic) -> list[Line]:
    numa = len({pool.node for pool in traffic.pools}) > 1
    return [
        (
            Piece(f"NUMA {pool.node} " if numa and pool.node is not None else ""),
            Piece(f"{pool.available} of {pool.total}", "bold"),
            Piece(f" pages of {format_size(pool.page_bytes)} free"),
        )
        for pool in traffic.pools
        if pool.total
    ] or [(Piece("none", "yellow"),)]


# -- rows ---------------------------------------------------------------------------------------------------------------------


def _sorted_by(state: TopState) -> str:
    return f"{state.choice.sort} {'▼' if state.choice.largest_first else '▲'}"


def _headings(fitted: Fitted, state: TopState, width: int = 0) -> list[Line]:
    """Two lines; with a width they are filled."""
    groups: list[Piece] = []
    for group, members in groupby(fitted.columns, key=lambda each: each[0].group):
        widths = [width for _, width in members]
        taken = sum(widths) + GAP * (len(widths) - 1)
        gap = Piece(" " * GAP, _HEAD if groups else "")
        label = f" {group} " if len(group) + 2 <= taken else SHORT_GROUPS.get(group, group)[:taken]
        groups += [gap] if groups else []
        groups.append(Piece(label.center(taken, "─") if group else " " * taken, _HEAD))
    names: list[Piece] = []
    for column, taken in fitted.columns:
        chosen = column.sort == state.choice.sort
        sign = ("▼" if state.choice.largest_first else "▲") if chosen else ""
        text = column.heading if len(column.heading) + len(sign) > taken else column.heading + sign
        names += [Piece(" " * GAP, _HEAD)] if names else []
        names.append(Piece(fit(text, taken, right=column.right), f"{_HEAD} bold" if chosen else _HEAD))
    return [(*line, Piece(" " * (width - width_of_line(line)), _HEAD)) for line in (groups, names)]


def _row(row: TopRow, fitted: Fitted) -> Line:
    pieces: list[Piece] = []
    for column, width in fitted.columns:
        shown = column.show(row)
        look = f"bold {shown.look}".strip() if row.members and "bold" not in shown.look else shown.look
        if pieces:
            pieces.append(Piece(" " * GAP))
        pieces.append(Piece(fit(shown.text, width, right=column.right), look))
    return tuple(pieces)


def _nothing(picture: TopPicture, state: TopState) -> str:
    if picture.every:
        return f"no attachment of {len(picture.every)} matches {state.choice.text!r}; = shows all"
    return "no attachments on this node"


def _first(rows: Sequence[TopRow], state: TopState, page: int) -> int:
    return min(state.offset, max(0, len(rows) - page))


def _last_line(rows: Sequence[TopRow], every: int, state: TopState, page: int, left_out: Sequence[str], width: int) -> Line:
    if state.mode == "delay":
        return _question(f"seconds between refreshes (now {state.delay:g}): ", state)
    if state.mode == "filter":
        how = "show names, networks, bridges and ports that contain (! before it: do not contain; empty: all): "
        return _question(how if len(how) + 20 <= width else "filter: ", state)
    if state.message:
        return (Piece(plain(state.message), "bold"),)
    parts: list[Piece] = []
    if len(rows) > page:
        first = _first(rows, state, page)
        parts.append(Piece(f"rows {first + 1}-{first + page} of {len(rows)}   ", "bold"))
    if state.choice.text:
        matching = sum(not row.members for row in rows)
        parts.append(Piece(f"filter {plain(state.choice.text)!r}: {matching} of {every} (= shows all)   ", "yellow"))
    if left_out:
        parts.append(Piece(_name_left_out(left_out, width - width_of_line(parts)), "yellow"))
    faulty = next((row.name for row in rows if row.state in FAULTS), "")
    hint = ("   " if left_out else "") + f"userspace-cni why {plain(faulty)}: what is wrong with it"
    if faulty and width_of_line(parts) + width_of(hint) <= width:
        parts.append(Piece(hint, "red"))
    return tuple(parts)


def _name_left_out(names: Sequence[str], width: int) -> str:
    """As many of the names as there is room for, and how many more there are."""
    for shown in range(len(names), -1, -1):
        more = f" and {len(names) - shown} more" if shown and shown < len(names) else ""
        text = f"no room for {', '.join(names[:shown]) or format_count(len(names), 'thing')}{more}"
        if len(text) <= width:
            return text
    return f"-{len(names)}"


def _question(text: str, state: TopState) -> Line:
    return (Piece(text, "bold"), Piece(plain(state.typed)), Piece(" ", _HEAD))


# -- what is shown in the place of rows ---------------------------------------------------------------------------------------


def _help(width: int) -> list[Line]:
    sorts = "  ".join(f"{key.key} {key.name}" for key in SORT_KEYS)
    pairs = (
        ("up down PgUp PgDn Home End", "scroll"),
        ("space", "look again now"),
        ("d", "change the delay between refreshes"),
        ("< >", "sort by what is to the left or right; or by: " + sorts),
        ("R", "sort the other way round"),
        (
            "o or f",
            "show the attachments whose name, network, bridge or port contains a text (after !: does not); = shows all",
        ),
        ("n", "put the attachments of each network together, with their sum"),
        ("c", "choose columns"),
        ("q", "quit"),
    )
    words = (
        ("to, from the pod", "as the pod sees it: what it receives, and what it sends"),
        ("STATE", "connected: an application has the vhost-user socket; no app: none has; link up, link down: of a kernel link"),
        (
            "drops/s",
            "to: the application takes frames too slowly, or a limit drops them; from: a limit, or the switch has no buffers",
        ),
        (
            "limit used",
            "the rate, as a part of the limit of that direction; of what the pod sends, the part above 100% is dropped",
        ),
        (
            "polling",
            "the core whose polling thread (PMD) moves what the pod sends, and the share of its time for that, in the last 5 s",
        ),
        ("busy", "the share of its time that a polling thread works; it polls without work, or sleeps, for the rest"),
        ("-", "there is none, or it is not known: a vhost-user port that no application has used yet has no counters"),
    )
    lines: list[Line] = []
    for heading, explained in (("Keys", pairs), ("Words", words)):
        lines += [(Piece(heading, "bold"),)]
        for what, text in explained:
            lines += flow(Piece(f"  {what}", "cyan"), [(Piece(text),)], width, _HELP_INDENT)
    return lines


def _column_choice(state: TopState) -> list[Line]:
    return [(Piece("Type the letter of a column to show or hide it", "bold"),), *_column_lines(state)]


def _column_lines(state: TopState) -> Iterator[Line]:
    keys = {name: key for key, name in COLUMN_KEYS.items()}
    for column in COLUMNS:
        if column.name in keys:
            yield _column_line(column, keys[column.name], shown=column.name not in state.hidden)


def _column_line(column: TopColumn, key: str, *, shown: bool) -> Line:
    return (Piece(f"  {key} ", "cyan"), Piece("[x] " if shown else "[ ] "), Piece(column.name, "" if shown else "dim"))
