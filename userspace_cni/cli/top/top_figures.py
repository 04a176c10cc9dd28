"""Figures and lines of `top` as text with a look. Pure.

A line is a tuple of pieces. Columns of a terminal are counted, not characters: a name may have wide ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_UNITS: Final = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
_SECONDS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
ASCII: Final = str.maketrans({"█": "#", "░": ".", "▼": "v", "▲": "^", "─": "-", "…": "~"})
"""What stands for the signs of bars and headings where only ASCII can be shown."""


class Piece(NamedTuple):
    """Text in one look: "" or words of `top_screen.LOOKS` with spaces between."""

    text: str
    look: str = ""


Line = tuple[Piece, ...]


def figure(number: float | None) -> str:
    """A number in at most five characters: three digits and a prefix, as `1.20M`; `-` for one that is not known."""
    if number is None:
        return "-"
    if number < 9.95:
        return f"{number:.1f}" if number >= 0.05 else "0"
    size, prefix = next((each for each in _UNITS if number / each[0] < 999.5), _UNITS[-1])
    value = number / size
    digits = 0 if not prefix or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{prefix}"


def figure_of(number: float | None, unit: str) -> str:
    """The same before a unit, as `1.20 Mbit/s`."""
    text = figure(number)
    digits = text.rstrip("kMGT")
    return f"{digits} {text[len(digits) :]}{unit}"


def round_figure(number: float) -> str:
    """The same without noughts behind the point, as `1.2M`, for what a person has chosen."""
    text = figure(number)
    digits = text.rstrip("kMGT")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + text[len(digits) :]


def percent(part: float | None) -> str:
    return "-" if part is None else f"{part * 100:.0f}%"


def duration(seconds: float) -> str:
    """`3 d 4 h`, `12 min 5 s`: the two largest units."""
    parts: list[str] = []
    left = int(seconds)
    for size, name in _SECONDS:
        count, left = divmod(left, size)
        if count or parts or name == "s":
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def bar(part: float, width: int) -> str:
    """A bar as long as `part` (0 to 1) of the width, on a pale ground. It has whole blocks: a part of one would end in a gap."""
    full = round(min(max(part, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def width_of(text: str) -> int:
    """Columns that it takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def width_of_line(line: Iterable[Piece]) -> int:
    return sum(width_of(piece.text) for piece in line)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in just so many columns: filled with blanks, or cut with a sign at its end."""
    taken = width_of(text)
    if taken > width:
        return cut(text, width)
    return " " * (width - taken) + text if right else text + " " * (width - taken)


def cut(text: str, width: int) -> str:
    """The text in at most so many columns; where it is longer, it ends with `…`."""
    if width_of(text) <= width:
        return text
    if width < 1:
        return ""
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def cut_line(line: Sequence[Piece], width: int) -> Line:
    """The line in at most so many columns."""
    found, left = [], width
    for piece in line:
        taken = width_of(piece.text)
        if taken > left:
            found.append(Piece(cut(piece.text, left), piece.look))
            break
        found.append(piece)
        left -= taken
    return tuple(found)


def flow(label: Piece, items: Sequence[Line], width: int, indent: int) -> list[Line]:
    """Items after a label, as many on a line as fit; further lines are indented like the first. One that is wider than a line is
    folded between words."""
    lines: list[list[Piece]] = [[Piece(fit(label.text, indent), label.look)]]
    taken = indent
    for item in items:
        for number, part in enumerate(_folded(item, width - indent)):
            needs = width_of_line(part)
            gap = 0 if taken == indent else 3
            if number or (gap and taken + gap + needs > width):
                lines.append([Piece(" " * indent)])
                taken, gap = indent, 0
            lines[-1] += [Piece(" " * gap), *part] if gap else part
            taken += gap + needs
    return [cut_line(line, width) for line in lines]


def _folded(item: Line, room: int) -> list[Line]:
    """The item in parts that fit; a word that is wider than that stays whole."""
    if width_of_line(item) <= room:
        return [item]
    lines: list[list[Piece]] = [[]]
    for text, look in item:
        for word in re.findall(r" *[^ ]+| +$", text):
            if width_of_line(lines[-1]) + width_of(word) > room and lines[-1]:
                lines.append([])
            lines[-1].append(Piece(word if lines[-1] else word.lstrip(" "), look))
    return [tuple(line) for line in lines]
