"""Writes a drawing as SVG 1.1. Pure.

Every text is from outside and may be made to hurt: it is written only by `escape`, and never into an id, a class or a style.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape as escape_html
from importlib.resources import files
from typing import Final

from userspace_cni.cli.map.drawing import Drawing, Item, Label, Rectangle, Shape, Symbol, Wire
from userspace_cni.cli.map.text_widths import FONTS
from userspace_cni.cli.view import plain

_SHEETS: Final = (("A4", 281, 194), ("A3", 404, 281))
"""What there is of them within the margins, in mm, the longer side first."""
_LEGIBLE_MM: Final = 0.2
"""A unit of the picture from which on all of it can be read in print: its texts are 9.5 units high or more."""


def escape(text: str) -> str:
    """The text for an element or an attribute of SVG and HTML: printable characters alone, and no markup."""
    return escape_html(plain(text), quote=True)


def choose_sheet(drawing: Drawing) -> str:
    """The sheet of paper on which it is legible, in landscape unless the picture is much higher than wide: as @page has it."""
    for name, long, short in _SHEETS:
        lying = min(long / drawing.width, short / drawing.height)
        standing = min(short / drawing.width, long / drawing.height)
        size = f"{name} {'portrait' if standing > 1.25 * lying else 'landscape'}"
        if max(lying, standing) >= _LEGIBLE_MM:
            break
    return size


def read_style(name: str) -> str:
    """A file of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def write_svg(drawing: Drawing) -> str:
    """A file of its own, with its colours and a tooltip for each port."""
    style = f"{read_style('picture.css')}\n@page {{ size: {choose_sheet(drawing)}; margin: 8mm; }}"
    body = "\n".join(write_items(drawing, tooltips=True))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}" '
        f'width="{_n(drawing.width)}" height="{_n(drawing.height)}" font-family="{escape(FONTS)}">\n'
        f"<title>{escape(drawing.title)}</title>\n<style>{style}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def write_items(drawing: Drawing, *, tooltips: bool) -> Iterator[str]:
    """The items; `tooltips`: with the elements `title` that a viewer without scripts shows."""
    for item in drawing.items:
        yield _item(item, tooltips=tooltips)


def _item(item: Item, *, tooltips: bool) -> str:
    shapes = "".join(map(_shape, item.shapes))
    look = f' class="{item.look}"' if item.look else ""
    title = ""
    if item.facts and tooltips:
        lines = [item.title, *(f"{name}: {value}" for name, value in item.facts)]
        title = f"<title>{chr(10).join(map(escape, lines))}</title>"
    return f'<g id="{item.id}"{look}>{title}{shapes}</g>'


def _shape(shape: Shape) -> str:
    match shape:
        case Rectangle():
            size = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
            return f'<rect class="{shape.look}" {size} rx="{_n(shape.radius)}"/>'
        case Wire():
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in shape.points)
            return f'<polyline class="{shape.look}" points="{points}"/>'
        case Label():
            look = " ".join(filter(None, [shape.look, "bold" if shape.bold else "", "ends" if shape.ends else ""]))
            named = f' class="{look}"' if look else ""
            return f'<text{named} x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}">{escape(shape.text)}</text>'
        case Symbol():
            return _symbol(shape)


def _symbol(symbol: Symbol) -> str:
    """A sign that is told from the others by its form, not only by its colour."""
    x, y, r = symbol.x, symbol.y, symbol.size
    look = f'class="sign s-{symbol.state}"'
    match symbol.state:
        case "connected" | "up":
            return f'<circle {look} cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"/>'
        case "waiting":
            return f'<circle {look} cx="{_n(x)}" cy="{_n(y)}" r="{_n(r - 0.8)}"/>'
        case "changing":
            half = f"M{_n(x)},{_n(y - r)} a{_n(r)},{_n(r)} 0 0 0 0,{_n(2 * r)} z"
            return f'<circle class="sign s-waiting" cx="{_n(x)}" cy="{_n(y)}" r="{_n(r - 0.8)}"/><path {look} d="{half}"/>'
        case "down" | "off":
            return f'<path {look} d="M{_n(x - r)},{_n(y - r * 0.8)} h{_n(2 * r)} l{_n(-r)},{_n(1.8 * r)} z"/>'
        case "differs":
            lines = f"M{_n(x - r)},{_n(y - 2)} h{_n(2 * r)} M{_n(x - r)},{_n(y + 2)} h{_n(2 * r)}"
            return f'<path {look} d="{lines} M{_n(x + 3)},{_n(y - r)} l-6,{_n(2 * r)}"/>'
        case "dead" | "error":
            cross = f"M{_n(x - r)},{_n(y - r)} l{_n(2 * r)},{_n(2 * r)} M{_n(x + r)},{_n(y - r)} l{_n(-2 * r)},{_n(2 * r)}"
            box = f"M{_n(x - r)},{_n(y - r)} h{_n(2 * r)} v{_n(2 * r)} h{_n(-2 * r)} z" if symbol.state == "error" else ""
            return f'<path {look} d="{cross}{" " + box if box else ""}"/>'
        case _:
            mark = f'<text class="sign-text" x="{_n(x)}" y="{_n(y + 3)}" font-size="{_n(2 * r - 1)}">?</text>'
            return f'<circle {look} cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"/>{mark}'


def _n(number: float) -> str:
    """A number with one decimal at most."""
    return f"{number:.1f}".removesuffix(".0")
