"""The box of one port: who is behind it, in which state, and what passes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.cli.map.box_words import STATES, figures_line, heading, rates_line, second_line
from userspace_cni.cli.map.drawing import Label, Rectangle, Shape, Symbol
from userspace_cni.cli.map.text_widths import fit, make_drawable, measure
from userspace_cni.diagnosis.node_map import WRONG, MapPort

_EDGE: Final = 8
_SIGN: Final = 20
"""Room for the sign of the state."""
_MEMBER: Final = 14
OUTSIDE_WIDTH: Final = 210
_OUTSIDE_HEIGHT: Final = 56


@dataclass(frozen=True)
class CardSize:
    """How large the box of a port is. `lines` of text: two where there are many ports, else three. `head`: what a group has above
    its boxes, one line or two."""

    width: int
    height: int
    lines: int
    title: float
    text: float
    gap: int
    head: int = 36

    @property
    def first(self) -> float:
        """The base line of its first line, from its upper edge."""
        return self.title + (5 if self.lines > 2 else 4)


CARD_SIZES: Final = (
    CardSize(190, 56, 3, 12, 10, 8),
    CardSize(166, 36, 2, 11, 9.5, 5),
    CardSize(132, 33, 2, 11, 9.5, 4, 22),
)
"""From which a picture has the first with which it can be read in print, else the last."""


def draw_card(port: MapPort, x: float, y: float, size: CardSize, tags: Sequence[str]) -> tuple[Shape, ...]:
    """The box of a port of a pod, a VM or the node. `tags`: short words at its end, as the numbers of its mirrors."""
    return (
        Rectangle(x, y, size.width, size.height, f"card {_look(port)}"),
        Symbol(x + 13, y + size.first - 4, port.state),
        *_title(port, (x, y), size, tags),
        *(_dense_text(port, x, y, size) if size.lines == 2 else _roomy_text(port, x, y, size)),
    )


def _title(port: MapPort, at: tuple[float, float], size: CardSize, tags: Sequence[str]) -> list[Shape]:
    x, base = at[0], at[1] + size.first
    room: float = size.width - _SIGN - 2 * _EDGE
    shapes: list[Shape] = []
    end = x + size.width - _EDGE
    for tag in [*(["VM"] if port.vm else []), *tags]:
        text = fit(tag, 40, size.text, bold=True)
        wide = measure(text, size.text, bold=True) + 8
        shapes += [
            Rectangle(end - wide, base - size.text + 1, wide, size.text + 1.5, "tag", 3),
            Label(end - wide / 2, base, text, size.text, "tag-text", bold=True, anchor="middle"),
        ]
        end, room = end - wide - 4, room - wide - 4
    name = fit(heading(port), room, size.title, bold=True)
    return [Label(x + _SIGN + 2, base, name, size.title, "name", bold=True), *shapes]


def _roomy_text(port: MapPort, x: float, y: float, size: CardSize) -> list[Shape]:
    room = size.width - 2 * _EDGE
    lines = [(fit(second_line(port), room, size.text), "dim")]
    if port.state in WRONG:
        lines.append((fit(_trouble(port), room, size.text), "wrong-text"))
    else:
        shown = figures_line(port) or ("" if port.behind == "node" else ", ".join(port.addresses)) or port.mac
        lines.append((fit(shown, room, size.text), "figures"))
    base = y + size.first
    placed = [Label(x + _EDGE, base + 15 * number, text, size.text, look) for number, (text, look) in enumerate(lines, 1)]
    return [each for each in placed if each.text]


def _dense_text(port: MapPort, x: float, y: float, size: CardSize) -> list[Shape]:
    base, room = y + size.height - 5.5, float(size.width - 2 * _EDGE)
    if port.state in WRONG:
        return [Label(x + _EDGE, base, fit(_trouble(port), room, size.text), size.text, "wrong-text")]
    figures = fit(rates_line(port), room, size.text)
    room -= measure(figures, size.text) + (6 if figures else 0)
    names = [make_drawable(each) for each in (second_line(port, short=True), port.ifname)]
    name = next((each for each in names if measure(each, size.text) <= room), "" if figures else fit(names[0], room, size.text))
    placed = [
        Label(x + _EDGE, base, name, size.text, "dim"),
        Label(x + size.width - _EDGE, base, figures, size.text, "figures", anchor="end"),
    ]
    return [each for each in placed if each.text]


def height_outside(port: MapPort) -> float:
    third = _OUTSIDE_HEIGHT if _third_line(port) else _OUTSIDE_HEIGHT - _MEMBER
    return third + (_MEMBER * len(port.members) if len(port.members) > 1 else 0)


def _third_line(port: MapPort) -> str:
    return _trouble(port) if port.state in WRONG else figures_line(port)


def draw_outside(port: MapPort, x: float, y: float, names: tuple[str, str]) -> tuple[Shape, ...]:
    """The box of what leads out of a bridge. `names`: its first two lines."""
    height, room = height_outside(port), OUTSIDE_WIDTH - 2 * _EDGE
    size, base = CARD_SIZES[0], y + CARD_SIZES[0].first
    figures = _third_line(port)
    look = "wrong-text" if port.state in WRONG else "figures"
    shapes: list[Shape] = [
        Rectangle(x, y, OUTSIDE_WIDTH, height, f"outside {_look(port)}", 10),
        Symbol(x + 13, base - 4, port.state),
        Label(x + _SIGN + 2, base, fit(names[0], room - _SIGN, size.title, bold=True), size.title, "name", bold=True),
        Label(x + _EDGE, base + 15, fit(names[1], room, size.text), size.text, "dim"),
        *([Label(x + _EDGE, base + 30, fit(figures, room, size.text), size.text, look)] if figures else []),
    ]
    for number, member in enumerate(port.members if len(port.members) > 1 else (), 1):
        line = y + height - 9 - _MEMBER * (len(port.members) - number)
        text = fit(f"{member.name}: {STATES[member.state]}", room - 14, size.text)
        shapes += [Symbol(x + 13, line - 3, member.state, 4), Label(x + 22, line, text, size.text, "dim")]
    return tuple(shapes)


def _look(port: MapPort) -> str:
    return f"is-{port.state}"


def _trouble(port: MapPort) -> str:
    """What is wrong, in a few words: the whole text is told where the box is pointed at."""
    words = STATES[port.state]
    if port.problems and port.state == "error":
        return f"{words}: {port.problems[0]}"
    return port.problems[0] if port.problems and port.state == "down" else words
