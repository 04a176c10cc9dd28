"""The whole picture: title, what needs attention, one panel for each bridge, the patches between them, and the legend. Pure.

The same facts give the same picture, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.base.vlans import share_one
from userspace_cni.cli.map.box_words import STATES, count_ports, count_states, heading
from userspace_cni.cli.map.bridge_panel import WIRE, DrawnPanel, PanelPainter, PanelPlan, plan_panel
from userspace_cni.cli.map.drawing import Drawing, Item, Label, Rectangle, Shape, Symbol, Wire
from userspace_cni.cli.map.outside_ports import list_outside
from userspace_cni.cli.map.port_cards import CARD_SIZES, OUTSIDE_WIDTH, CardSize
from userspace_cni.cli.map.port_groups import group_ports, natural
from userspace_cni.cli.map.text_widths import fit, measure
from userspace_cni.cli.view import format_count
from userspace_cni.diagnosis.node_map import OUTWARD, WRONG, MapPort, NodeMap, PortState

MARGIN: Final = 24
RATIO: Final = 2**0.5
"""Of a sheet of ISO 216 in landscape."""
_COLUMNS: Final = range(3, 49)
_WIDER: Final = range(6, 79, 6)
_LEGIBLE: Final = 1480
"""Units of the height of a sheet of A3 up to which names have six points."""
_LANE: Final = 9
_APART: Final = 18
_TROUBLES: Final = 6
"""Lines of what is wrong; the rest is counted."""
_ROW: Final = 18
_Sign = tuple[float, Symbol | Wire | None, str]
"""Room for a sign, the sign as beside the start of a base line at 0, and words."""
_LINES: Final = {"wire": "link", "patch": "patch between bridges", "logical": "logical network of OVN"}
_FIGURES: Final = (
    "↓ bit/s to what is behind the port, ↑ from it",
    "↓80M/100M: 80 Mbit/s, of 100 that are allowed",
    "M1: mirror M1 copies its frames, →M1: to here",
    "net1 · shop · veth: interface, namespace, type",
)


def draw_picture(node: NodeMap) -> Drawing:
    """The drawing of the node."""
    return _Picture(node).draw()


class _Picture:
    def __init__(self, node: NodeMap) -> None:
        self._node = node
        self._ports = [port for bridge in node.bridges for port in bridge.ports]
        self._bridge_of = {port.name: bridge.name for bridge in node.bridges for port in bridge.ports}
        patches = [(port.name, port.peer) for port in self._ports if port.behind == "patch" and port.peer in self._bridge_of]
        self._pairs = sorted({(min(pair), max(pair)) for pair in patches})
        self._left = MARGIN + _LANE * len(self._pairs) + (6 if self._pairs else 0)
        self._panels = self._left + OUTSIDE_WIDTH + WIRE
        self._items: list[Item] = []

    def draw(self) -> Drawing:
        plans = self._choose_plans()
        width = self._panels + max((each.width for each in plans), default=700) + MARGIN
        y = self._draw_title(width)
        y = self._draw_troubles(y, width)
        y = self._draw_headings(y) if plans else self._draw_nothing(y)
        drawn: list[DrawnPanel] = []
        for number, plan in enumerate(plans):
            panel = PanelPainter(plan, self._panels, y, number).draw()
            self._items += panel.items
            drawn.append(panel)
            y += plan.height + _APART
        self._draw_patches(drawn)
        y = self._draw_legend(y, width)
        title = f"Network of node {self._node.head.node}"
        return Drawing(width, y + MARGIN - 8, title, tuple(self._items), _Ways(self._node, drawn, self._pairs).ways())

    # -- the size ---------------------------------------------------------------------------------------------------------

    def _choose_plans(self) -> list[PanelPlan]:
        """The panels with as many columns as make the picture largest on a sheet; boxes get the room that is left beside."""
        logical = self._node.logical
        parts = [(each, list_outside(each, self._bridge_of), group_ports(each, logical)) for each in self._node.bridges]

        def plan(columns: int, size: CardSize) -> list[PanelPlan]:
            return [plan_panel(*each, logical, size, columns) for each in parts]

        for size in CARD_SIZES:
            columns = min(_COLUMNS, key=lambda each: self._size_on_sheet(plan(each, size)))
            best = plan(columns, size)
            if self._size_on_sheet(best) <= _LEGIBLE:
                break
        for more in _WIDER:
            wider = plan(columns, replace(size, width=size.width + more))
            if self._size_on_sheet(wider) <= self._size_on_sheet(best):
                best = wider
        return [replace(each, width=max(plan.width for plan in best)) for each in best]

    def _size_on_sheet(self, plans: Sequence[PanelPlan]) -> float:
        """The height of a sheet on which the picture fits, in its units: the less, the larger is everything in print."""
        width = self._panels + max((each.width for each in plans), default=700) + MARGIN
        return max(width / RATIO, 240 + sum(each.height + _APART for each in plans))

    # -- above ------------------------------------------------------------------------------------------------------------

    def _draw_title(self, width: float) -> float:
        head = self._node.head
        room = width - 2 * MARGIN
        numbers = f"{count_ports(len(self._ports))} on {format_count(len(self._node.bridges), 'bridge')}"
        rates = f"bit/s over {head.seconds:.3g} s" if head.seconds else "without rates"
        told = " · ".join(filter(None, [head.taken, numbers, rates, f"userspace-cni {head.version}", head.agent, head.switch]))
        shapes: list[Shape] = [
            Label(MARGIN, 50, fit(f"Network of node {head.node}", room, 24, bold=True), 24, "name", bold=True),
            Label(MARGIN, 72, fit(told, room, 12), 12, "dim"),
        ]
        signs: list[_Sign] = [(18, Symbol(7, -4, state, 6), words) for state, words in count_states(self._ports)]
        drawn, low = _in_columns(signs, 96, width, 12)
        self._items.append(Item("title", "", (*shapes, *drawn)))
        return low + 18

    def _draw_troubles(self, y: float, width: float) -> float:
        """A box with what is wrong and what could not be asked; nothing where all is well."""
        wrong: list[tuple[PortState | None, str]] = [("error", _told(each)) for each in self._node.faults]
        gravest = sorted((port for port in self._ports if port.state in WRONG), key=_gravity)
        wrong += [(port.state, _sentence(port)) for port in gravest]
        unasked: list[tuple[PortState | None, str]] = [("unknown", each) for each in self._node.unasked]
        lines = unasked + wrong[:_TROUBLES]
        if len(wrong) > _TROUBLES:
            more = f"and {len(wrong) - _TROUBLES} more, which are marked below"
            lines.append((None, f"{more}; userspace-cni why POD says of each what to do"))
        if not lines:
            return y
        height = _ROW * len(lines) + 16
        shapes: list[Shape] = [Rectangle(MARGIN, y - 6, width - 2 * MARGIN, height, "troubles" if wrong else "unasked", 6)]
        for number, (state, text) in enumerate(lines):
            base = y + 12 + _ROW * number
            shapes += [Symbol(MARGIN + 16, base - 4, state, 5)] if state else []
            shapes.append(Label(MARGIN + 28, base, fit(text, width - 2 * MARGIN - 42, 12), 12, ""))
        self._items.append(Item("troubles", "", tuple(shapes)))
        return y + height + 10

    def _draw_headings(self, y: float) -> float:
        outward = any(port.behind in OUTWARD for port in self._ports)
        left = "NICs, patches and tunnels" if outward else "no NIC, patch or tunnel"
        shapes = (
            Label(self._left, y + 8, left, 11, "dim", bold=True),
            Label(self._panels, y + 8, "bridges of this node, and what is behind their ports", 11, "dim", bold=True),
        )
        self._items.append(Item("headings", "", shapes))
        return y + 20

    def _draw_nothing(self, y: float) -> float:
        asked = not self._node.unasked
        text = "The switch has no bridge: the first pod, or an uplink of the node, makes one." if asked else "No bridge is known."
        self._items.append(Item("nothing", "", (Label(MARGIN, y + 40, text, 14, "dim"),)))
        return y + 70

    # -- between and below ------------------------------------------------------------------------------------------------

    def _draw_patches(self, drawn: Sequence[DrawnPanel]) -> None:
        places = {name: place for panel in drawn for name, place in panel.places.items()}
        for number, (one, other) in enumerate(self._pairs):
            if one in places and other in places:
                lane = MARGIN + _LANE * number
                (x, y), (to, end) = places[one], places[other]
                self._items.append(Item(f"l{number}", "way", (Wire(((x, y), (lane, y), (lane, end), (to, end)), "patch"),)))

    def _draw_legend(self, y: float, width: float) -> float:
        signs: list[_Sign] = [(16, Symbol(6, -4, each), STATES[each]) for each in STATES]
        signs += [(30, Wire(((0, -4), (24, -4)), look), words) for look, words in _LINES.items()]
        signs += [(0, None, words) for words in _FIGURES]
        drawn, low = _in_columns(signs, y + 12, width, 10.5)
        rule = Wire(((MARGIN, y - 6), (width - MARGIN, y - 6)), "rule")
        self._items.append(Item("legend", "", (rule, *drawn)))
        return low + 10


def _in_columns(signs: Sequence[_Sign], y: float, width: float, size: float) -> tuple[list[Shape], float]:
    """Signs with their words in columns of one width, and the last base line."""
    room = width - 2 * MARGIN
    wide = max((lead + measure(words, size) for lead, _, words in signs), default=0) + 22
    columns = max(1, int((room + 22) / wide))
    shapes: list[Shape] = []
    base = y
    for number, (lead, sign, words) in enumerate(signs):
        x, base = MARGIN + wide * (number % columns), y + _ROW * (number // columns)
        if isinstance(sign, Symbol):
            shapes.append(replace(sign, x=x + sign.x, y=base + sign.y))
        elif sign is not None:
            shapes.append(Wire(tuple((x + dx, base + dy) for dx, dy in sign.points), sign.look))
        shapes.append(Label(x + lead, base, fit(words, room - lead, size), size))
    return shapes, base


class _Ways:
    """What lies between each port and the outside, over patches too, for VLANs that are carried."""

    def __init__(self, node: NodeMap, drawn: Sequence[DrawnPanel], pairs: Sequence[tuple[str, str]]) -> None:
        self._panels: Mapping[str, DrawnPanel] = {each.name: panel for each, panel in zip(node.bridges, drawn, strict=True)}
        self._bridge_of = {port.name: bridge.name for bridge in node.bridges for port in bridge.ports}
        self._lines = {name: f"l{number}" for number, pair in enumerate(pairs) for name in pair}

    def ways(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for bridge, panel in self._panels.items():
            known: dict[object, tuple[str, ...]] = {}
            for port, item, path in panel.inside:
                key = port.vlan, bool(port.logical)
                if key not in known:
                    known[key] = tuple(self._outward(bridge, port, set()))
                found[item] = tuple(dict.fromkeys((item, *path, *known[key])))
        return found

    def _outward(self, bridge: str, port: MapPort, seen: set[str]) -> Iterator[str]:
        seen.add(bridge)
        panel = self._panels[bridge]
        yield panel.spine
        for other, _, path in panel.outside:
            if not port.logical and not share_one(port.vlan, other.vlan):
                continue
            if other.behind != "patch":
                yield from path
                continue
            there = self._bridge_of.get(other.peer)
            if there and there not in seen:
                yield from (*path, self._lines[other.name])
                yield from (each for at, _, ids in self._panels[there].outside if at.name == other.peer for each in ids)
                yield from self._outward(there, port, seen)


def _gravity(port: MapPort) -> tuple[object, ...]:
    """An order in which the gravest come first: what leads out before what does not, then as the legend, from its end."""
    return port.behind not in OUTWARD, -[*STATES].index(port.state), natural(port.owner), port.name


def _sentence(port: MapPort) -> str:
    """What is wrong with a port."""
    name = f"{port.owner}/{port.ifname}" if port.ifname else port.name if len(port.members) > 1 else heading(port)
    return f"{name}: {'; '.join(port.problems) or STATES[port.state]}"


def _told(finding: Finding) -> str:
    return ": ".join(filter(None, [finding.subject, "; ".join(filter(None, [finding.message, finding.remedy]))]))
