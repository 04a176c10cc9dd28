"""How commands show things: tables, paths and JSON on stdout; notes and progress on stderr.

A table has every column, and runs over a terminal's edge where it has to, as kubectl's: a name in it can always be copied. Prose
is folded between words, never within one, and only on a terminal: a pipe gets a line for each row, without colours. Text from
outside (names of pods, errors of the switch) is never read as markup, and its control characters never reach a terminal. rich is
loaded when something is shown: the agent and the plugin do not load it.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import click

from userspace_cni.base.findings import Finding
from userspace_cni.base.host_paths import as_host_names
from userspace_cni.diagnosis import rendering
from userspace_cni.pod.waiting import Waiting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PATIENCE_S: Final = 1.0
"""Seconds after which progress is shown."""
_NO_SCREENS: Final = ("dumb", "unknown")
"""Values of TERM."""
_UNFOLDED: Final = sys.maxsize
"""Columns of an output that is no terminal: nothing is folded there."""
_PROSE_MIN: Final = 24
"""Columns that the last column of a table needs to be folded; with less room it runs over the edge, too."""
_WORD: Final = re.compile(r"(\S+)\s*")
_GAP: Final = 2
"""Blanks between two columns."""
_INDENT: Final = 2
_BAR_MAX: Final = 60
_IGNORED_SHOWN: Final = 5
_STYLES: Final = {"error": "red", "warning": "yellow"}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_ASCII: Final = str.maketrans({"µ": "u", "→": "->", "↔": "="})
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


def show_json(value: object) -> None:
    """Print it, in ASCII."""
    click.echo(json.dumps(value, indent=2))


def note(text: str) -> None:
    """A line on stderr."""
    click.echo(plain(text), err=True)


def say(*cells: Cell | str) -> None:
    """A line on stdout, folded on a terminal between words."""
    console = _console()
    _print(console, _folded(_joined(cells), _width(console)))


def say_figures(figures: Sequence[tuple[str, str]]) -> None:
    """Names with their values, as many on a line as fit; none is folded."""
    width, line = _width(_console()), [_blank(_INDENT)]
    for name, value in figures:
        taken = sum(len(each.text) for each in line)
        if len(line) > 1 and taken + 3 + len(name) + 1 + len(value) > width:
            say(*line)
            line = [_blank(_INDENT)]
        line += [Cell("   " if len(line) > 1 else ""), Cell(f"{name} ", "dim"), Cell(value, "bold")]
    say(*line)


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> None:
    """A table with every column and no lines. On a terminal its last column is folded between words, if there is room for it."""
    console = _console()
    cells = [[Cell(each, "bold") for each in headings], *rows]
    _print(console, _laid_out(cells, _width(console), _PROSE_MIN))


def note_left_out(headings: Sequence[str], option: str) -> None:
    """A line on stderr, if that is a terminal: which columns a table has only with an option."""
    if headings and is_screen():
        note(f"not shown: {', '.join(headings)}; {option} shows them")


def show_facts(facts: Sequence[tuple[str, Cell | str]]) -> None:
    """Names and values below each other; those without a value are left out."""
    console = _console()
    cells = [("", Cell(name, "dim"), value) for name, value in facts if _text(value).plain]
    _print(console, _laid_out(cells, _width(console)))


def show_findings(findings: Sequence[Finding], *, reasons: bool = False) -> None:
    """Findings below their subjects, in their order. `reasons`: with why each matters."""
    for number, (subject, held) in enumerate(rendering.by_subject(findings).items()):
        if number:
            say("")
        say(Cell(subject, "bold"))
        last = [None, *(each.why for each in held)]
        told = [
            line
            for each, why in zip(held, last, strict=False)
            for line in rendering.lines(each, reasons=reasons and each.why != why)
        ]
        show_facts([(label, Cell(text, _STYLES.get(label, ""))) for label, text in told])


def note_checked(what: str, findings: Sequence[Finding], ignored: Sequence[str]) -> None:
    """Lines on stderr: what was checked, how many findings there are, and what was not looked at."""
    note(f"checked {what}: {rendering.counts_text(findings)}")
    if ignored:
        more = len(ignored) - _IGNORED_SHOWN
        note(f"not looked at: {join(ignored[:_IGNORED_SHOWN])}" + (f" and {more} more" if more > 0 else ""))


def show_path(stations: Sequence[tuple[str, Sequence[Cell | str]]]) -> None:
    """Stations below each other, joined by a line; each has a name and the lines about it."""
    joints = _joints()
    cells: list[tuple[Cell | str, ...]] = []
    for number, (name, lines) in enumerate(stations):
        joint = joints["first"] if number == 0 else joints["last"] if number == len(stations) - 1 else joints["between"]
        for place, line in enumerate(lines):
            follows = joints["line"] if number < len(stations) - 1 else ""
            cells.append(("", joint if place == 0 else follows, Cell(name if place == 0 else "", "bold"), line))
    console = _console()
    _print(console, _laid_out(cells, _width(console)))


def show_bars(bars: Sequence[Bar]) -> None:
    """Bars below each other, as long as there is room for; a length above 0 always shows."""
    console = _console()
    labels = _right_aligned([make_printable(bar.label) for bar in bars])
    values = [_right_aligned(column) for column in zip(*(bar.values for bar in bars), strict=True)]
    taken = _INDENT + len(labels[0]) + _GAP + sum(len(column[0]) + _GAP for column in values)
    width = max(8, min(_BAR_MAX, _width(console) - taken))
    cells: list[tuple[Cell | str, ...]] = []
    for number, (bar, label) in enumerate(zip(bars, labels, strict=True)):
        drawn = Cell(_drawn(bar.length, width).ljust(width), "cyan")
        cells.append(("", label, drawn, *(Cell(column[number], "dim") for column in values)))
    _print(console, _laid_out(cells, _UNFOLDED))


def make_printable(text: str) -> str:
    """The text with the signs that stdout can show: without Unicode, `us` for microseconds."""
    return text if is_unicode(sys.stdout) else text.translate(_ASCII)


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
    if not is_unicode(sys.stdout) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return console_of(sys.stdout)


def _width(console: Console) -> int:
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else _UNFOLDED


def _print(console: Console, lines: Iterable[Text]) -> None:
    """Print the lines as they are, without blanks at their ends."""
    from rich.text import Text

    whole = list(lines)
    for line in whole:
        line.rstrip()
    if whole:
        console.print(Text("\n").join(whole), soft_wrap=True)
        sys.stdout.flush()


def _laid_out(rows: Iterable[Sequence[Cell | str]], width: int, least: int = 0) -> list[Text]:
    """The rows' cells below each other, each column as wide as its widest cell; the last one is folded between words.

    With less room than `least` that is not folded either.
    """
    from rich.text import Text

    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(text.cell_len for text in column) + _GAP for column in zip(*texts, strict=True)][:-1]
    room = width - sum(widths)
    lines = []
    for *cells, last in texts:
        line = Text()
        for text, taken in zip(cells, widths, strict=True):
            line.append_text(text).append(" " * (taken - text.cell_len))
        first, *others = _folded(last, _UNFOLDED if room < least else max(room, _PROSE_MIN))
        lines.append(line.append_text(first))
        lines += [Text(" " * sum(widths)).append_text(each) for each in others]
    return lines


def _folded(text: Text, width: int) -> list[Text]:
    """The text in lines of that width, which end between words: a longer word has a line of its own. Its indent is kept."""
    from rich.cells import cell_len

    if text.cell_len <= width:
        return [text]
    indent = len(text.plain) - len(text.plain.lstrip(" "))
    breaks, taken = [], indent
    for word in _WORD.finditer(text.plain, indent):
        if taken > indent and taken + cell_len(word[1]) > width:
            breaks.append(word.start())
            taken = indent
        taken += cell_len(word[0])
    first, *others = text.divide(breaks)
    for line in others:
        line.pad_left(indent)
    return [first, *others]


def _joined(cells: Iterable[Cell | str]) -> Text:
    from rich.text import Text

    return Text().join([_text(cell) for cell in cells])


def _right_aligned(values: Sequence[str]) -> list[str]:
    longest = max(map(len, values))
    return [value.rjust(longest) for value in values]


def _blank(count: int) -> Cell:
    return Cell(" " * count)


def is_unicode(stream: IO[str]) -> bool:
    """Whether bars and arrows can be written there."""
    return (getattr(stream, "encoding", "") or "").lower().replace("-", "").startswith("utf")


def _drawn(length: float, width: int) -> str:
    """A bar as long as `length` (0 to 1) of the width."""
    if not is_unicode(sys.stdout):
        return "#" * max(round(length * width), 1 if length > 0 else 0)
    whole, eighths = divmod(max(round(length * width * 8), 1 if length > 0 else 0), 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[eighths] if eighths else "")


def _joints() -> dict[str, str]:
    if is_unicode(sys.stdout):
        return {"first": "╷", "between": "├", "last": "╰", "line": "│"}
    return {"first": "+", "between": "+", "last": "+", "line": "|"}


def _text(cell: Cell | str) -> Text:
    from rich.text import Text

    return Text(plain(cell.text), style=cell.style) if isinstance(cell, Cell) else Text(plain(cell))
