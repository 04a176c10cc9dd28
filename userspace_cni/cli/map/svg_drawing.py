"""Writes a drawing as SVG 1.1. Pure.

Every text is from outside and may be made to hurt: it is written only by `escape`, and never into an id, a class or a style.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape as escape_html
from importlib.resources import files
from typing import Final

from userspace_cni.cli.map.drawing import Drawing, Item, Label, Rectangle, Shape, Symbol, Wire
from userspace_cni.cli.map.text_widths import FONTS
from userspace_cni.cli.view import plain
from userspace_cni.diagnosis.node_map import PortState

_SHEETS: Final = (("A4", 281, 194), ("A3", 404, 281))
"""What there is of them within the margins, in mm, the longer side first."""
_LEGIBLE_MM: Final = 0.2
"""A unit of the picture from which on all of it can be read in print: its texts are 9.5 units high or more."""

_DISC: Final = "M-1,0a1,1 0 1 0 2,0a1,1 0 1 0-2,0z"
_TRIANGLE: Final = "M-1,-.8h2l-1,1.8z"
_RING: Final = "M-.85,0a.85,.85 0 1 0 1.7,0a.85,.85 0 1 0-1.7,0z"
_CROSS: Final = "M-1,-1l2,2M1,-1l-2,2"
_SIGNS: Final[Mapping[PortState, str]] = {
    "connected": f"{_DISC}M-.66,0a.66,.66 0 1 0 1.32,0a.66,.66 0 1 0-1.32,0zM-.4,0a.4,.4 0 1 0 .8,0a.4,.4 0 1 0-.8,0z",
    "up": _DISC,
    "waiting": _RING,
    "changing": f"{_DISC}M0,-.65a.65,.65 0 0 1 0,1.3z",
    "off": _TRIANGLE,
    "down": _TRIANGLE,
    "differs": "M-1,-.4h2M-1,.4h2M.6,-1l-1.2,2",
    "dead": _CROSS,
    "error": f"{_CROSS}M-1,-1h2v2h-2z",
    "unknown": f"{_RING}M-.3,-.25a.3,.3 0 1 1 .45,.25q-.15,.1-.15,.25M0,.45v.1",
}
"""The signs of states, of size one around their middle; `picture.css` says what of them is filled."""


def escape(text: str) -> str:
    """The text for an element or an attribute of SVG and HTML: printable characters alone, and no markup."""
    return escape_html(plain(text), quote=True)


def view_box(drawing: Drawing) -> str:
    """The picture's size, as `viewBox` has it."""
    return f"0 0 {_n(drawing.width)} {_n(drawing.height)}"


def choose_sheet(drawing: Drawing) -> str:
    """The sheet of paper on which it is legible, in landscape unless the picture is much higher than wide: as @page has it."""
    for name, long, short in _SHEETS:
        lying = min(long / drawing.width, short / drawing.height)
        standing = min(short / drawing.width, long / drawing.height)
        size = f"{name} {'portrait' if standing > 1.25 * lying else 'landscape'}"
        if max(lying, standing) >= _LEGIBLE_MM:
            break
    return size


def read_file(name: str) -> str:
    """A file of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def write_svg(drawing: Drawing) -> str:
    """A file of its own, with its colours and a tooltip for each port."""
    style = f"{read_file('picture.css')}\n@page {{ size: {choose_sheet(drawing)}; margin: 8mm; }}"
    body = "\n".join(write_items(drawing, page=False))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box(drawing)}" '
        f'width="{_n(drawing.width)}" height="{_n(drawing.height)}" font-family="{escape(FONTS)}">\n'
        f"<title>{escape(drawing.title)}</title>\n<style>{style}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def write_items(drawing: Drawing, *, page: bool) -> Iterator[str]:
    """The items, for a page that tells by itself what is pointed at and can be gone through by keys, else with tooltips."""
    for item in drawing.items:
        yield _item(item, page=page)


def _item(item: Item, *, page: bool) -> str:
    shapes = "".join(map(_shape, item.shapes))
    look = f' class="{item.look}"' if item.look else ""
    title = ""
    if item.port and page:
        look += f' tabindex="0" role="img" aria-label="{escape(item.title)}"'
    if item.facts and not page:
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
            look = " ".join(
                filter(None, [shape.look, "bold" if shape.bold else "", "" if shape.anchor == "start" else shape.anchor])
            )
            named = f' class="{look}"' if look else ""
            return f'<text{named} x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}">{escape(shape.text)}</text>'
        case Symbol():
            return _symbol(shape)


def _symbol(symbol: Symbol) -> str:
    """A sign that is told from the others by its form, not only by its colour."""
    place = f"translate({_n(symbol.x)},{_n(symbol.y)}) scale({_n(symbol.size)})"
    return f'<path class="sign s-{symbol.state}" transform="{place}" d="{_SIGNS[symbol.state]}"/>'


def _n(number: float) -> str:
    """A number with one decimal at most."""
    return f"{number:.1f}".removesuffix(".0")
