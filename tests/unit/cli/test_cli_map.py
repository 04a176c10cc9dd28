"""The picture of a node: what it shows, that nothing in it overlaps, and that texts from outside stay texts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from tests.lab.node.pictured import HOSTILE, pictured_node, renamed
from userspace_cni.base.vlans import Vlan
from userspace_cni.cli.map.drawing import Drawing, Label, Rectangle, Wire
from userspace_cni.cli.map.html_page import write_page
from userspace_cni.cli.map.picture import draw_picture
from userspace_cni.cli.map.svg_drawing import choose_sheet, write_svg
from userspace_cni.cli.map.text_widths import fit, make_drawable, measure
from userspace_cni.diagnosis.node_map import OUTWARD, MapBridge, MapMember, MapPort, NodeMap, PortRates

_SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def texts_of(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{_SVG}text")]


def boxes_of(drawing: Drawing) -> list[tuple[Box, str]]:
    """The room that each text takes at most; that of a tag has a frame."""
    shapes = [shape for item in drawing.items for shape in item.shapes]
    tags = [each for each in shapes if isinstance(each, Rectangle) and each.look == "tag"]
    found = [((each.x, each.y, each.x + each.width, each.y + each.height), "a tag") for each in tags]
    for label in (each for each in shapes if isinstance(each, Label) and each.look != "tag-text"):
        wide = measure(label.text, label.size, bold=label.bold)
        left = label.x - wide * {"start": 0, "middle": 0.5, "end": 1}[label.anchor]
        found.append(((left, label.y - label.size * 0.75, left + wide, label.y + label.size * 0.2), label.text))
    return found


def overlapping(boxes: list[tuple[Box, str]]) -> list[tuple[str, str]]:
    ordered = sorted(boxes, key=lambda each: each[0][1])
    found = []
    for place, (one, text) in enumerate(ordered):
        for other, another in ordered[place + 1 :]:
            if other[1] >= one[3]:
                break
            if one[0] < other[2] and other[0] < one[2]:
                found.append((text, another))
    return found


@pytest.mark.parametrize(
    ("ports", "bridges", "ovn"), [(0, 0, False), (0, 1, False), (1, 1, True), (40, 10, True), (400, 3, True)]
)
def test_no_texts_overlap(ports: int, bridges: int, ovn: bool) -> None:
    """In no picture do two texts overlap, or leave it, in the widest of the usual fonts."""
    drawing = draw_picture(pictured_node(ports, bridges, ovn=ovn))
    boxes = boxes_of(drawing)
    assert overlapping(boxes) == []
    assert [
        text for (left, top, right, low), text in boxes if left < 0 or top < 0 or right > drawing.width or low > drawing.height
    ] == []


@pytest.mark.parametrize(("ports", "bridges"), [(30, 2), (400, 3)])
def test_boxes_stay_apart(ports: int, bridges: int) -> None:
    """No two boxes of ports overlap, and each is within a bridge."""
    drawing = draw_picture(pictured_node(ports, bridges, ovn=True))
    shapes = [shape for item in drawing.items for shape in item.shapes if isinstance(shape, Rectangle)]
    cards = [each for each in shapes if each.look.startswith("card")]
    panels = [each for each in shapes if each.look == "bridge"]
    rooms = [((each.x, each.y, each.x + each.width, each.y + each.height), "") for each in cards]
    assert len(cards) == ports + bridges + 6
    assert overlapping(rooms) == []
    for one, other in pairwise(panels):
        assert other.y > one.y + one.height
    for x, y, right, low in (room for room, _ in rooms):
        assert any(p.x < x and p.y < y and right < p.x + p.width and low < p.y + p.height for p in panels)


def test_the_same_facts_give_the_same_picture() -> None:
    """The picture depends on nothing but the facts, and not on the order of ports."""
    node = pictured_node(50, 2, ovn=True)
    turned = [replace(each, ports=tuple(reversed(each.ports))) for each in node.bridges]
    assert write_svg(draw_picture(node)) == write_svg(draw_picture(replace(node, bridges=tuple(turned))))


def test_what_it_shows() -> None:
    """Names, VLANs, networks, rates with limits, mirrors, logical networks, bonds and tunnels are texts of the picture."""
    texts = texts_of(write_svg(draw_picture(pictured_node(12, 2, ovn=True))))
    whole = "\n".join(texts)
    for each in ("Network of node worker-1", "bridge br0", "VLAN 100", "no VLAN set", "vm-3", "↓1.7G/100M ↑33M", "bond1"):
        assert each in texts, each
    for each in ("network blue · ", "mirror watch copies the frames of 2 ports to ", "2 NICs bonded", "3 tunnels to other nodes"):
        assert each in whole, each
    assert {"logical router cluster", "logical switch worker-1", "logical switch tenant", "to bridge br-int", "M1", "→M1"} <= {
        *texts
    }


def test_each_state_has_a_form_of_its_own() -> None:
    """Without colours, the signs of any two states that differ in meaning differ in form."""
    svg = write_svg(draw_picture(pictured_node(20)))
    legend = next(each for each in ET.fromstring(svg).iter(f"{_SVG}g") if each.get("id") == "legend")
    signs = [each for each in legend if (each.get("class") or "").startswith("sign s-")]
    assert len(signs) >= 9
    forms: dict[str, list[str]] = {}
    for each in signs:
        forms.setdefault(each.attrib["d"], []).append(each.attrib["class"].removeprefix("sign s-"))
    assert [states for states in forms.values() if len(states) > 1] == [["off", "down"]]  # a hollow one and a full one
    style = svg.partition("<style>")[2].partition("</style>")[0]
    for state in ("connected", "waiting", "down", "differs", "error", "unknown"):
        assert f".s-{state}" in style


def test_what_leads_out_is_named() -> None:
    """The heading at the left says what stands below it, also where nothing does."""
    assert "NICs, patches and tunnels" in texts_of(write_svg(draw_picture(pictured_node(12, 2, ovn=True))))
    alone = pictured_node(12)
    inside = [replace(each, ports=tuple(port for port in each.ports if port.behind not in OUTWARD)) for each in alone.bridges]
    texts = texts_of(write_svg(draw_picture(replace(alone, bridges=tuple(inside)))))
    assert "no NIC, patch or tunnel" in texts
    assert "NICs, patches and tunnels" not in texts


def test_a_router_is_above_its_first_switches() -> None:
    """The line from a router to a logical switch right below it has no turn."""
    drawing = draw_picture(pictured_node(12, 1, ovn=True))
    lines = [
        shape.points for item in drawing.items for shape in item.shapes if isinstance(shape, Wire) and shape.look == "logical"
    ]
    assert any(len(points) == 2 for points in lines)


def test_a_way_leads_outside() -> None:
    """From a pod it is its group, its line, the bridge's spine, and the NIC; from a logical port the patch, too."""
    drawing = draw_picture(pictured_node(12, 2, ovn=True))
    items = {each.port.name: each.id for each in drawing.items if each.port}
    blue = next(each for each in drawing.items if each.port and each.port.network == "blue")
    way = drawing.ways[blue.id]
    assert {items["eth0"], "s0", blue.id} <= {*way}
    shop = drawing.ways[items["eth-0"]]
    assert {items["patch-int"], items["patch-br0"], items["eth0"], "l0", "s0", "s2"} <= {*shop}
    assert {each.id for each in drawing.items} >= {each for way in drawing.ways.values() for each in way}


@pytest.mark.parametrize("text", [HOSTILE, "x" * 5000, "\u05d0\u05d1\u05d2", "", "中文" * 40])
def test_texts_from_outside_stay_texts(text: str) -> None:
    """A hostile text gives a well-formed picture with the same elements, in which nothing overlaps and no character acts."""
    node = pictured_node(20, 2, ovn=True)
    plain, hostile = (write_svg(draw_picture(each)) for each in (renamed(node, "harmless"), renamed(node, text)))
    elements = {each.tag for each in ET.fromstring(hostile).iter()}
    assert elements <= {each.tag for each in ET.fromstring(plain).iter()}
    assert {key for each in ET.fromstring(hostile).iter() for key in each.attrib if key.startswith("on")} == set()
    assert all(char.isprintable() or char == "\n" for char in hostile)
    assert overlapping(boxes_of(draw_picture(renamed(node, text)))) == []


def test_the_page_refers_to_nothing_outside() -> None:
    """It has no address, loads no file, and its policy allows its own script and style alone."""
    page = write_page(draw_picture(pictured_node(40, 2, ovn=True)))
    for each in ("://", "src=", "href=", "url(", "@import", " style=", "javascript:", "unsafe"):
        assert each not in page, each
    policy = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert json.loads(page.partition('id="facts">')[2].partition("</script>")[0])["items"]


def test_texts_are_shortened_in_the_middle() -> None:
    """Both ends of a name are kept, and what fits is not changed."""
    assert fit("web-1", 100, 10) == "web-1"
    short = fit("upf-control-plane-7d9f8c6b5d-x001", 100, 10)
    assert (short[:4], short[-4:], "…" in short) == ("upf-", "x001", True)
    assert measure(short, 10) <= 100
    assert fit("anything", 0, 10) == "…"
    assert make_drawable("é\u0301\u202eb") == "é\\u0301\\u202eb"


@pytest.mark.parametrize(("node", "sheet"), [(pictured_node(6), "A4 landscape"), (pictured_node(400, 3), "A3 landscape")])
def test_the_sheet(node: NodeMap, sheet: str) -> None:
    """A small node is drawn for A4, a large one for A3."""
    assert choose_sheet(draw_picture(node)) == sheet


def test_what_could_not_be_asked_is_told() -> None:
    """It stands above the bridges, not as a fault, and is not taken for a node without bridges."""
    node = replace(pictured_node(0, 0), unasked=("the switch cannot be asked",), asked=False)
    svg = write_svg(draw_picture(node))
    texts = texts_of(svg)
    assert ('class="unasked"' in svg, 'class="troubles"' in svg) == (True, False)
    assert "the switch cannot be asked" in texts
    assert "No bridge is known." in texts


def test_drops_are_in_a_box() -> None:
    """A box says how many frames are dropped, where any are."""
    rates = (PortRates(0.0, 0.0, drops=1234.0), PortRates(8.0, 0.0))
    ports = [MapPort(f"p{n}", "pod", "connected", f"ns/p{n}", type="dpdkvhostuser", rates=each) for n, each in enumerate(rates)]
    node = replace(pictured_node(0, 0), bridges=(MapBridge("b", "netdev", "pods", tuple(ports)),))
    texts = texts_of(write_svg(draw_picture(node)))
    assert {"↓0 ↑0 drops 1.23k/s", "↓8 ↑0"} <= {*texts}


def test_ways_follow_vlans() -> None:
    """A pod's way goes to a NIC that carries its VLAN; that of a logical port, which OVN's flows decide, to each one."""
    nic = MapPort("nic", "uplink", "up", "nic", vlan=Vlan(trunks=(5,)), members=(MapMember("nic", "up"),))
    pods = [MapPort(f"pod-{tag}", "pod", "up", f"ns/pod-{tag}", vlan=Vlan(tag)) for tag in (5, 7)]
    logical = MapPort("logical", "pod", "up", "ns/logical", vlan=Vlan(7), logical="ns_logical")
    drawing = draw_picture(replace(pictured_node(0, 0), bridges=(MapBridge("b", "netdev", "pods", (nic, *pods, logical)),)))
    items = {each.port.name: each.id for each in drawing.items if each.port}
    reached = {name: items["nic"] in drawing.ways[items[name]] for name in ("pod-5", "pod-7", "logical")}
    assert reached == {"pod-5": True, "pod-7": False, "logical": True}


def test_tunnels_stand_together() -> None:
    """There is one box for all of a kind; what is wrong with one of them is told there, and all are named."""
    ports = [MapPort(f"t{end}", "tunnel", "up", f"t{end}", type="geneve", remote=f"192.0.2.{end}") for end in range(1, 11)]
    ports[7] = replace(ports[7], state="error", problems=("the switch says: no route",))
    drawing = draw_picture(replace(pictured_node(0, 0), bridges=(MapBridge("b", "netdev", "pods", tuple(ports)),)))
    [box] = [each for each in drawing.items if each.port]
    assert (box.title, box.port and box.port.state) == ("10 tunnels to other nodes", "error")
    assert ("problem", "the switch says: no route") in box.facts
    assert ("tunnel to", "192.0.2.8: error") in box.facts
    assert [value for name, value in box.facts if name == "tunnel to"][-1] == "192.0.2.10: link up"
