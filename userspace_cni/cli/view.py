"""How commands show things: tables, paths and JSON on stdout; notes and progress on stderr.

On a terminal a table is made to fit; a pipe gets it whole, a line for each row and without colours. Text from outside (names of
pods, errors of the switch) is never read as markup, and its control characters never reach a terminal. rich is loaded when
something is shown: the agent and the plugin do not load it.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import click

from userspace_cni.base.findings import Finding
from userspace_cni.base.host_paths import as_host_names
from userspace_cni.diagnosis import rendering
from userspace_cni.pod.waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PATIENCE_S: Final = 1.0
"""Seconds after which progress is shown."""
_NO_SCREENS: Final = ("dumb", "unknown")
"""Values of TERM."""
_UNFOLDED: Final = 4096
"""Columns of an output that is no terminal: nothing is folded there."""
_INDENT: Final = 2
_BAR_MAX: Final = 60
_IGNORED_SHOWN: Final = 5
_STYLES: Final = {"error": "red", "warning": "yellow"}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_FILLING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
"""Blanks at the end of a line, and the sequences that end their colours."""
_ASCII: Final = str.maketrans({"µ": "u", "→": "-", "↔": "="})
"""Replacements for the signs of bars and figures where only ASCII can be shown."""


@dataclass(frozen=True)
class Cell:
    """A piece of text and how it looks on a terminal (a style of rich)."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Bar:
    """A line of a diagram: its label, its length (0 to 1, of the longest possible), and the values after it."""

    label: str
    length: float
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column's heading. Where the terminal is too narrow, columns with the highest `rank` are left out first, 0 never.

    `whole`: what is in it is folded last, as names that are to be copied.
    """

    heading: str
    rank: int = 0
    whole: bool = False


def show_json(value: object) -> None:
    """Print it, in ASCII."""
    click.echo(json.dumps(value, indent=2))


def note(text: str) -> None:
    """A line on stderr."""
    click.echo(plain(text), err=True)


def say(*cells: Cell | str) -> None:
    """A line on stdout, folded on a terminal between words."""
    from rich.text import Text

    line = Text()
    for cell in cells:
        line.append_text(_text(cell))
    _print(_console(), line)


def say_figures(figures: Sequence[tuple[str, str]]) -> None:
    """Names with their values, as many on a line as fit; none is folded."""
    width, line = _console().width, [_blank(_INDENT)]
    for name, value in figures:
        taken = sum(len(each.text) for each in line)
        if len(line) > 1 and taken + 3 + len(name) + 1 + len(value) > width:
            say(*line)
            line = [_blank(_INDENT)]
        line += [Cell("   " if len(line) > 1 else ""), Cell(f"{name} ", "dim"), Cell(value, "bold")]
    say(*line)


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
    """A table with headings and no lines."""
    console = _console()
    left = list(range(len(columns)))
    while True:
        table = _table([columns[number] for number in left], [[row[number] for number in left] for row in rows])
        ranked = [number for number in left if columns[number].rank]
        if not ranked or _natural_width(console, table) <= console.width:
            break
        left.remove(max(ranked, key=lambda number: columns[number].rank))
    _print(console, table)


def show_facts(facts: Sequence[tuple[str, Cell | str]]) -> None:
    """Names and values below each other; those without a value are left out."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        text = _text(value)
        if text.plain:
            table.add_row(_text(Cell(name, "dim")), text)
    _print(_console(), Padding(table, (0, 0, 0, _INDENT), expand=False))


def show_findings(findings: Sequence[Finding]) -> None:
    """Findings below their subjects, in their order."""
    for number, (subject, held) in enumerate(rendering.by_subject(findings).items()):
        if number:
            say("")
        say(Cell(subject, "bold"))
        show_facts([(label, Cell(text, _STYLES.get(label, ""))) for each in held for label, text in rendering.lines(each)])


def note_checked(what: str, findings: Sequence[Finding], ignored: Sequence[str]) -> None:
    """Lines on stderr: what was checked, how many findings there are, and what was not looked at."""
    note(f"checked {what}: {rendering.counts_text(findings)}")
    if ignored:
        more = len(ignored) - _IGNORED_SHOWN
        note(f"not looked at: {join(ignored[:_IGNORED_SHOWN])}" + (f" and {more} more" if more > 0 else ""))


def show_path(stations: Sequence[tuple[str, Sequence[Cell | str]]]) -> None:
    """Stations below each other, joined by a line; each has a name and the lines about it."""
    from rich.padding import Padding
    from rich.table import Table

    joints = _joints()
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, (name, lines) in enumerate(stations):
        joint = joints["first"] if number == 0 else joints["last"] if number == len(stations) - 1 else joints["between"]
        for place, line in enumerate(lines):
            follows = joints["line"] if number < len(stations) - 1 else " "
            table.add_row(joint if place == 0 else follows, _text(Cell(name if place == 0 else "", "bold")), _text(line))
    _print(_console(), Padding(table, (0, 0, 0, _INDENT), expand=False))


def show_bars(bars: Sequence[Bar]) -> None:
    """Bars below each other, as long as there is room for; a length above 0 always shows."""
    from rich.padding import Padding
    from rich.table import Table

    console = _console()
    taken = max(len(bar.label) + sum(len(value) + 2 for value in bar.values) for bar in bars) + _INDENT + 2
    width = max(8, min(_BAR_MAX, console.width - taken - 2))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, width=width)
    for _ in bars[0].values:
        table.add_column(justify="right", no_wrap=True)
    for bar in bars:
        drawn = _text(Cell(_drawn(bar.length, width), "cyan"))
        table.add_row(_text(make_printable(bar.label)), drawn, *(_text(Cell(value, "dim")) for value in bar.values))
    _print(console, Padding(table, (0, 0, 0, _INDENT), expand=False))


def make_printable(text: str) -> str:
    """The text with the signs that stdout can show: without Unicode, `us` for microseconds."""
    return text if _is_unicode(sys.stdout) else text.translate(_ASCII)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what the block does; call the function that is given to show another text.

    A terminal shows it all the time; elsewhere a line is written after a second, and every ten seconds from then on.
    """
    if not is_screen():
        with _lines(text) as show:
            yield show
        return
    with console_of(sys.stderr).status(_text(text), spinner="line") as status:
        yield lambda text: status.update(_text(text))


@contextmanager
def waiting(text: str, waited: Waiting) -> Iterator[Callable[[str], object]]:
    """Show on stderr what the block waits for: call the function that is given with that at each look, a few times a second.

    A terminal shows `text` and then that; elsewhere a line is written at once, at each change, and every ten seconds.
    """
    if is_screen():
        with progress(text) as show:
            yield show
    else:
        yield waited.still


@contextmanager
def _lines(text: str) -> Iterator[Callable[[str], None]]:
    """Show progress in lines, from a thread of its own: the block may not return for long."""
    newest, over, waited = text, threading.Event(), Waiting(note, PATIENCE_S)

    def change(text: str) -> None:
        nonlocal newest
        newest = text

    def show() -> None:
        with suppress(OSError, ValueError):  # stderr is closed or full: the command itself fails on that where it matters
            while not over.wait(waited.still(newest)):
                pass

    thread = threading.Thread(target=show, name="progress", daemon=True)
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
    try:
        with suppress(RuntimeError):  # no thread can be started: then no progress is shown
            thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    try:
        yield change
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(PATIENCE_S)


def is_screen() -> bool:
    """Whether stderr is a terminal on which a line can be overwritten."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in _NO_SCREENS


def plain(text: str) -> str:
    """The text with control characters, and bytes that are no text, as escapes, and with the host's own paths."""
    named = as_host_names(text)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in named)


def format_count(number: int, what: str) -> str:
    """`1 port`, `2 ports`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def join(values: Sequence[str], nothing: str = "") -> str:
    return ", ".join(values) or nothing


def console_of(stream: IO[str], width: int | None = None) -> Console:
    """A console without markup: rich would read `:cd:` in a MAC address as an emoji, and `[red]` as a colour.

    The text of a status is always read as markup, so it has to be a `Text`.
    """
    from rich.console import Console

    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _console() -> Console:
    if not _is_unicode(sys.stdout) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    console = console_of(sys.stdout)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console = console_of(sys.stdout, _UNFOLDED)
    return console


def _print(console: Console, what: RenderableType) -> None:
    """Print it, without the blanks that fill a table's lines."""
    with console.capture() as captured:
        console.print(what)
    sys.stdout.write("".join(_FILLING.sub(r"\1", line) + "\n" for line in captured.get().splitlines()))
    sys.stdout.flush()


def _blank(count: int) -> Cell:
    return Cell(" " * count)


def _natural_width(console: Console, table: Table) -> int:
    """Columns of the table if nothing in it is folded."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(width=_UNFOLDED, max_width=_UNFOLDED), table).maximum


def _is_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", "") or "").lower().replace("-", "").startswith("utf")


def _drawn(length: float, width: int) -> str:
    """A bar as long as `length` (0 to 1) of the width."""
    if not _is_unicode(sys.stdout):
        return "#" * max(round(length * width), 1 if length > 0 else 0)
    whole, eighths = divmod(max(round(length * width * 8), 1 if length > 0 else 0), 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[eighths] if eighths else "")


def _joints() -> dict[str, str]:
    if _is_unicode(sys.stdout):
        return {"first": "╷", "between": "├", "last": "╰", "line": "│"}
    return {"first": "+", "between": "+", "last": "+", "line": "|"}


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.heading, overflow="fold", no_wrap=column.whole)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Cell | str) -> Text:
    from rich.text import Text

    return Text(plain(cell.text), style=cell.style) if isinstance(cell, Cell) else Text(plain(cell))
