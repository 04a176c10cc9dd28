"""One bridge: what leads out of it at its left, its spine, and groups of ports at its right. Pure.

A panel is first planned for a number of columns, which is cheap: the picture chooses how many are best. Then it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from userspace_cni.cli.map.box_words import count_ports, describe, heading
from userspace_cni.cli.map.drawing import Item, Label, Rectangle, Shape, Wire
from userspace_cni.cli.map.outside_ports import OutsideBox
from userspace_cni.cli.map.port_cards import OUTSIDE_WIDTH, CardSize, draw_card, draw_outside, height_outside
from userspace_cni.cli.map.port_groups import PortGroup
from userspace_cni.cli.map.text_widths import fit, measure
from userspace_cni.diagnosis.node_map import MapBridge, MapPort
from userspace_cni.ovn.logical_networks import LogicalNetworks, LogicalRouter

WIRE: Final = 44
"""Between a box outside and the bridge's spine."""
_HEAD: Final = 36
_SPINE: Final = 12
_EDGE: Final = 14
_RAIL: Final = 22
"""Above each row of groups: the line by which they are joined to the spine."""
_CONTENT: Final = _EDGE + _SPINE + 30
"""Where groups begin."""
_GROUP_EDGE: Final = 10
_TWO_LINES: Final = 36
_APART: Final = 14
_NOTE: Final = 20
_ROUTER: Final = (300, 44)
_ROWS: Final = range(1, 9)
_LEAST: Final = 640
_DATAPATHS: Final = {"netdev": "userspace datapath (DPDK)", "system": "kernel datapath"}
_MAKERS: Final = {"pods": "made for pods", "node": "made for an uplink of the node", "another": "made by another program"}


@dataclass(frozen=True)
class PlacedGroup:
    """A group at its place, from the panel's upper left corner. `router`: the number of that of its logical switch, or None."""

    group: PortGroup
    x: float
    y: float
    columns: int
    width: float
    height: float
    router: int | None


@dataclass(frozen=True)
class PanelPlan:
    """A panel whose sizes are known. `routers`: those to which its logical switches are connected."""

    bridge: MapBridge
    outside: tuple[OutsideBox, ...]
    groups: tuple[PlacedGroup, ...]
    routers: tuple[LogicalRouter, ...]
    size: CardSize
    width: float
    height: float


@dataclass(frozen=True)
class DrawnPanel:
    """A panel's items, and the parts of ways: by port the ids of what joins it to the spine; by port outside its box and wire."""

    items: tuple[Item, ...]
    spine: str
    inside: tuple[tuple[MapPort, str, tuple[str, ...]], ...]
    outside: tuple[tuple[MapPort, str, tuple[str, ...]], ...]
    places: dict[str, tuple[float, float]]
    """The left end of each box outside, by its port's name."""


def plan_panel(
    bridge: MapBridge,
    outside: Sequence[OutsideBox],
    groups: Sequence[PortGroup],
    logical: LogicalNetworks,
    size: CardSize,
    columns: int,
) -> PanelPlan:
    """The panel with room for so many boxes beside each other. Groups are as flat as makes it lowest."""
    joined = {each.name: each.router for each in logical.switches}
    shown = {joined.get(each.switch, "") for each in groups}
    routers = tuple(each for each in logical.routers if each.name in shown)
    numbers = {each.name: number for number, each in enumerate(routers)}
    of_group = [numbers.get(joined.get(each.switch, "")) for each in groups]
    top = _HEAD + (_ROUTER[1] + 10 if routers else 0)
    placings = [_place(groups, of_group, size, columns, rows) for rows in _ROWS]
    placed = min(placings, key=lambda each: max((one.y + one.height for one in each), default=0))
    placed = [replace(each, y=each.y + top) for each in placed]
    low = max((each.y + each.height for each in placed), default=top + _RAIL)
    low += _NOTE * len(bridge.mirrors) + (8 if bridge.mirrors else 0) + _EDGE
    width = max([*(each.x + each.width for each in placed), _CONTENT + len(routers) * (_ROUTER[0] + _APART), _LEAST]) + _EDGE
    left = _HEAD + sum(height_outside(each.port) + _APART for each in outside)
    return PanelPlan(bridge, tuple(outside), tuple(placed), routers, size, width, max(low, left))


def _place(
    groups: Sequence[PortGroup], routers: Sequence[int | None], size: CardSize, columns: int, rows: int
) -> list[PlacedGroup]:
    """The groups beside each other as long as there is room, with so many rows of boxes each, more only where it must be."""
    whole = columns * (size.width + size.gap) - size.gap + 2 * _GROUP_EDGE
    placed, x, y, tall = [], 0.0, 0.0, 0.0
    for group, router in zip(groups, routers, strict=True):
        number = len(group.ports)
        many = min(columns, ceil(number / rows))
        wide = many * (size.width + size.gap) - size.gap + 2 * _GROUP_EDGE
        high = size.head + ceil(number / many) * (size.height + size.gap) - size.gap + _GROUP_EDGE
        if x and x + wide > whole:
            x, y, tall = 0.0, y + _RAIL + tall, 0.0
        placed.append(PlacedGroup(group, _CONTENT + x, y + _RAIL, many, wide, high, router))
        x, tall = x + wide + _APART, max(tall, high)
    return placed


class PanelPainter:
    """Draws a planned panel. `x` and `y`: its upper left corner; `number`: among the panels, for ids."""

    def __init__(self, plan: PanelPlan, x: float, y: float, number: int) -> None:
        self._plan, self._x, self._y, self._number = plan, x, y, number
        self._items: list[Item] = []
        self._inside: list[tuple[MapPort, str, tuple[str, ...]]] = []
        self._outside: list[tuple[MapPort, str, tuple[str, ...]]] = []
        self._places: dict[str, tuple[float, float]] = {}

    def draw(self) -> DrawnPanel:
        """All of it."""
        plan, spine = self._plan, self._id("s")
        self._items.append(Item(self._id("b"), "panel", tuple(self._frame())))
        left = self._x + _EDGE
        bar = Rectangle(left, self._y + _HEAD, _SPINE, plan.height - _HEAD - _EDGE / 2, "spine", 3)
        self._items.append(Item(spine, "way", (bar,)))
        self._draw_outside()
        self._draw_routers()
        self._draw_rails()
        for place, placed in enumerate(plan.groups):
            self._draw_group(place, placed)
        return DrawnPanel(tuple(self._items), spine, tuple(self._inside), tuple(self._outside), self._places)

    def _id(self, kind: str, place: int | None = None) -> str:
        return f"{kind}{self._number}" + ("" if place is None else f"-{place}")

    def _frame(self) -> list[Shape]:
        plan, bridge = self._plan, self._plan.bridge
        name = fit(f"bridge {bridge.name}", 260, 15, bold=True)
        words = [_DATAPATHS.get(bridge.datapath, ""), _MAKERS.get(bridge.made_by, "only records speak of it")]
        told = " · ".join(filter(None, [*words, count_ports(len(bridge.ports))]))
        begin = self._x + _EDGE + measure(name, 15, bold=True) + 14
        room = self._x + plan.width - _EDGE - begin
        shapes: list[Shape] = [
            Rectangle(self._x, self._y, plan.width, plan.height, "bridge", 8),
            Label(self._x + _EDGE, self._y + 24, name, 15, "name", bold=True),
            Label(begin, self._y + 24, fit(told, room, 11), 11, "dim"),
        ]
        if not plan.groups:
            none = "no pod, VM or other port is on it"
            shapes.append(Label(self._x + _CONTENT, self._y + _HEAD + 18, none, 11, "dim"))
        for place, mirror in enumerate(bridge.mirrors):
            base = self._y + plan.height - _EDGE - _NOTE * (len(bridge.mirrors) - place - 1)
            whose = "every frame of the bridge" if mirror.everything else f"the frames of {count_ports(len(mirror.sources))}"
            text = f"M{place + 1}: mirror {mirror.name} copies {whose} to {self._called(mirror.output)}"
            shapes.append(Label(self._x + _CONTENT, base, fit(text, plan.width - _CONTENT - _EDGE, 11), 11, "note"))
        return shapes

    def _called(self, name: str) -> str:
        """What people call a port of this bridge."""
        port = next((each for each in self._plan.bridge.ports if each.name == name), None)
        if port is None:
            return name or "no port: it has no output"
        return f"{port.owner}/{port.ifname}" if port.ifname else port.owner

    def _draw_outside(self) -> None:
        x, y = self._x - WIRE - OUTSIDE_WIDTH, self._y + _HEAD - 8
        for place, box in enumerate(self._plan.outside):
            high = height_outside(box.port)
            middle = y + high / 2
            wire, found = self._id("w", place), self._id("o", place)
            line = ((x + OUTSIDE_WIDTH, middle), (self._x + _EDGE, middle))
            self._items.append(Item(wire, "way", (Wire(line, "wire"),)))
            facts = describe(box.port, self._plan.bridge.name)
            shapes = draw_outside(box.port, x, y, (box.title, box.subtitle))
            self._items.append(Item(found, "port way", shapes, box.port, box.title, facts + box.facts))
            for each in box.ports:
                self._outside.append((each, found, (wire, found)))
                self._places[each.name] = (x, middle)
            y += high + _APART

    def _draw_routers(self) -> None:
        width, height = _ROUTER
        for place, router in enumerate(self._plan.routers):
            x, y = self._x + _CONTENT + place * (width + _APART), self._y + _HEAD
            told = f"default route via {', '.join(router.next_hops)}" if router.next_hops else "no default route"
            shapes: tuple[Shape, ...] = (
                Rectangle(x, y, width, height, "router", 20),
                Label(x + 18, y + 18, fit(f"logical router {router.name}", width - 36, 12, bold=True), 12, "name", bold=True),
                Label(x + 18, y + 33, fit(told, width - 36, 10), 10, "dim"),
            )
            facts = (("logical router", router.name), *(("default route via", each) for each in router.next_hops))
            self._items.append(Item(self._id("lr", place), "way told", shapes, title=router.name, facts=facts))

    def _draw_rails(self) -> None:
        """The lines from the spine to the groups, and from a router to its switches: one item for each group, to be lit alone."""
        spine = self._x + _EDGE + _SPINE
        for place, placed in enumerate(self._plan.groups):
            top = self._y + placed.y
            drop, rail = self._x + placed.x + 22, top - 9
            points = ((spine, rail), (drop, rail), (drop, top))
            self._items.append(Item(self._id("r", place), "way", (Wire(points, "wire"),)))
            if placed.router is not None:
                self._items.append(Item(self._id("l", place), "way", (Wire(self._to_router(placed, placed.router), "logical"),)))

    def _to_router(self, placed: PlacedGroup, router: int) -> tuple[tuple[float, float], ...]:
        """Straight from a router to a group below it; to one in a later row beside the groups that are between them."""
        begin = self._x + _CONTENT + router * (_ROUTER[0] + _APART)
        low, top, at = self._y + _HEAD + _ROUTER[1], self._y + placed.y, self._x + placed.x + 44
        out, turn, lane, over = begin + 24, low + 5 + 3 * router, self._x + _CONTENT - 10 - 4 * router, top - 14
        if placed.y > min(each.y for each in self._plan.groups):
            return (out, low), (out, turn), (lane, turn), (lane, over), (at, over), (at, top)
        if begin + 24 <= at <= begin + _ROUTER[0] - 24:
            return (at, low), (at, top)
        return (out, low), (out, turn), (at, turn), (at, top)

    def _draw_group(self, place: int, placed: PlacedGroup) -> None:
        size, x, y = self._plan.size, self._x + placed.x, self._y + placed.y
        room, group = placed.width - 2 * _GROUP_EDGE, placed.group
        look = "group logical-group" if group.switch else "group"
        box = Rectangle(x, y, placed.width, placed.height, look, 6)
        title = Label(x + _GROUP_EDGE, y + 16, fit(group.title, room, 12, bold=True), 12, "name", bold=True)
        if size.head >= _TWO_LINES:
            under = Label(x + _GROUP_EDGE, y + 29, fit(group.subtitle, room, 10), 10, "dim")
        else:
            begin = measure(title.text, 12, bold=True) + 10
            under = Label(x + _GROUP_EDGE + begin, y + 16, fit(group.subtitle, room - begin, 10), 10, "dim")
        facts = (("group", group.title), ("of it", group.subtitle))
        self._items.append(Item(self._id("g", place), "way", (box, title, under), title=group.title, facts=facts))
        path: tuple[str, ...] = (self._id("g", place), self._id("r", place))
        if placed.router is not None:
            path += (self._id("l", place), self._id("lr", placed.router))
        for number, port in enumerate(group.ports):
            left = x + _GROUP_EDGE + number % placed.columns * (size.width + size.gap)
            top = y + size.head + number // placed.columns * (size.height + size.gap)
            found = self._id("p", place) + f"-{number}"
            told = describe(port, self._plan.bridge.name, self._mirror_facts(port))
            shapes = draw_card(port, left, top, size, self._tags(port))
            self._items.append(Item(found, "port way", shapes, port, heading(port), told))
            self._inside.append((port, found, path))

    def _tags(self, port: MapPort) -> list[str]:
        """The mirrors that show it alone, and those that it is the output of."""
        found = []
        for place, mirror in enumerate(self._plan.bridge.mirrors, 1):
            if mirror.output == port.name:
                found.append(f"→M{place}")
            elif port.name in mirror.sources:
                found.append(f"M{place}")
        return found[:2]

    def _mirror_facts(self, port: MapPort) -> tuple[tuple[str, str], ...]:
        mirrors = self._plan.bridge.mirrors
        shown = tuple(("mirrored by", each.name) for each in mirrors if port.name in each.sources)
        return shown + tuple(("output of mirror", each.name) for each in mirrors if each.output == port.name)
