"""The page of `map --html` in Debian's Chromium, which has no network: it shows, finds, follows, zooms and prints."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cni.test_cli_node import cli
from tests.lab.browser.chromium import Chromium
from tests.lab.node.node import Node
from tests.lab.node.pictured import HOSTILE, pictured_node, renamed
from userspace_cni.cli.map.html_page import write_page
from userspace_cni.cli.map.picture import draw_picture
from userspace_cni.cli.map.svg_drawing import write_svg
from userspace_cni.diagnosis.node_map import NodeMap

ENTER: Final = 13
_TEXTS: Final = """(() => [...document.querySelectorAll("svg text")].map((each) => {
    const box = each.getBoundingClientRect(), group = each.parentNode.querySelector("rect");
    const room = group === null ? null : group.getBoundingClientRect();
    const inside = room === null || (box.left >= room.left - 0.5 && box.right <= room.right + 0.5);
    return [box.left, box.top, box.right, box.bottom, each.textContent, inside];
}))()"""
_COLOURS: Final = """(() => {
    const style = getComputedStyle(document.documentElement);
    const light = (name) => {
        const number = parseInt(style.getPropertyValue(name).trim().slice(1), 16);
        const parts = [16, 8, 0].map((shift) => ((number >> shift) & 255) / 255);
        const [red, green, blue] = parts.map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const pairs = [];
    for (const ground of ["--paper", "--panel", "--group", "--card", "--outside", "--bad-fill", "--logical-fill"])
        for (const ink of ["--ink", "--dim"]) {
            const [dark, bright] = [light(ground), light(ink)].sort((one, other) => one - other);
            pairs.push([ground, ink, (bright + 0.05) / (dark + 0.05)]);
        }
    return pairs;
})()"""


def opened(browser: Chromium, place: Path, node: NodeMap) -> Chromium:
    """The browser with the node's page."""
    page = place / "node.html"
    page.write_text(write_page(draw_picture(node)), encoding="utf-8")
    browser.open(page)
    return browser


def middle_of(browser: Chromium, element: str) -> tuple[float, float]:
    x, y = browser.evaluate(
        f"(() => {{ const box = {element}.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] }})()"
    )
    return float(x), float(y)


def port(owner: str) -> str:
    """The element of a port, as JavaScript."""
    return f"items.get(ports.find(([id]) => facts.items[id].title === {owner!r})[0])"


def overlaps(texts: list[list[Any]]) -> list[tuple[str, str]]:
    """Texts of which one is drawn over the other; the room above and below letters is not counted."""
    slim = sorted(
        (top + (low - top) * 0.2, low - (low - top) * 0.2, left, right, text) for left, top, right, low, text, _ in texts
    )
    found = []
    for place, (_, low, left, right, text) in enumerate(slim):
        for other_top, _, other_left, other_right, other in slim[place + 1 :]:
            if other_top >= low:
                break
            if left < other_right and other_left < right:
                found.append((text, other))
    return found


@pytest.mark.parametrize("font", ["Liberation Sans", "DejaVu Sans"])
@pytest.mark.parametrize(("ports", "bridges"), [(0, 0), (8, 1), (60, 10), (400, 3)])
def test_it_shows_without_a_network(browser: Chromium, place: Path, ports: int, bridges: int, font: str) -> None:
    """The page asks for nothing, complains of nothing, and no text is over another one or leaves its box, in either font."""
    opened(browser, place, pictured_node(ports, bridges, ovn=bridges > 1))
    browser.evaluate(f"document.documentElement.style.setProperty('--fonts', {font!r})")
    used = browser.evaluate("getComputedStyle(document.querySelector('svg text')).fontFamily")
    texts = browser.evaluate(_TEXTS)
    assert font in used
    assert browser.told == []
    assert overlaps(texts) == []
    assert [text for *_, text, inside in texts if not inside] == []


def test_hostile_texts_do_nothing(browser: Chromium, place: Path) -> None:
    """Names that end a script or an element are shown as texts; nothing of them runs, in the page or in the file of SVG."""
    node = renamed(pictured_node(20, 2, ovn=True), HOSTILE)
    opened(browser, place, node)
    assert browser.told == []
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("[...document.querySelectorAll('*')].every((each) => each.getAttribute('onload') === null)")
    browser.point(*middle_of(browser, "ports[0] && items.get(ports[0][0])"))
    assert "</script><svg onload=alert(1)>" in browser.evaluate("details.textContent")
    assert overlaps(browser.evaluate(_TEXTS)) == []
    drawn = place / "node.svg"
    drawn.write_text(write_svg(draw_picture(node)), encoding="utf-8")
    browser.open(drawn)
    assert browser.evaluate("document.querySelectorAll('script, svg svg').length") == 0
    assert browser.told == []


def test_nothing_else_runs(browser: Chromium, place: Path) -> None:
    """The policy keeps another script from running and any address from being asked."""
    opened(browser, place, pictured_node(3))
    make = "const each = document.createElement('script'); each.textContent = 'window.ran = 1'"
    browser.evaluate(f"(() => {{ {make}; document.body.append(each) }})()")
    assert browser.evaluate("window.ran === undefined")
    assert browser.evaluate("fetch('http://192.0.2.1/').then(() => 'asked', (error) => error.name)") == "TypeError"
    assert any("Content Security Policy" in each for each in browser.told)


def test_search(browser: Chromium, place: Path) -> None:
    """Every word has to be found in what is told of a port; Enter goes to the next one, zooms to it and shows all of it."""
    opened(browser, place, pictured_node(400, 3))
    browser.evaluate("search.focus()")
    browser.type_text("blue vm-")
    found = browser.evaluate("[...document.querySelectorAll('.port.found')].map((each) => facts.items[each.id].text)")
    assert found
    assert all("blue" in each and "vm-" in each for each in found)
    assert browser.evaluate("count.textContent") == f"{len(found)} of {browser.evaluate('ports.length')} ports"
    faint, clear = (
        browser.evaluate(f"Number(getComputedStyle(document.querySelector('.port{each}')).opacity)")
        for each in (":not(.found)", ".found")
    )
    assert faint < 0.5 < clear
    browser.press("Enter", ENTER)
    assert browser.evaluate("view[2] < whole[2] && !details.hidden && details.classList.contains('pinned')")
    x, y = middle_of(browser, "items.get(pinned)")
    assert 0 < x < 1400
    assert 0 < y < 900
    browser.press("Escape", 27)
    assert browser.evaluate("search.value === '' && details.hidden && !picture.classList.contains('searching')")


def test_pointing_at_a_port(browser: Chromium, place: Path) -> None:
    """All of a port is told where it is pointed at or gets the focus, and its way to the NIC is lit; a click keeps that."""
    opened(browser, place, pictured_node(40, 2, ovn=True))
    x, y = middle_of(browser, port("vm-3"))
    browser.point(x, y)
    told = browser.evaluate("details.innerText")
    for each in ("vm-3", "team-0/cache-3", "network", "red", "02:00:00:00:00:03", "VLAN 300", "to it", "Mbit/s"):
        assert each in told, told
    lit = browser.evaluate("[...document.querySelectorAll('.lit')].map((each) => facts.items[each.id]?.title || each.id)")
    assert {"vm-3", "s1"} <= {*lit} or {"vm-3", "s0"} <= {*lit}
    browser.point(5, 880)
    assert browser.evaluate("details.hidden && document.querySelectorAll('.lit').length === 0")
    browser.evaluate("document.getElementById('scheme').focus()")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.classList.contains('port') && !details.hidden")
    browser.point(x, y)
    browser.click(x, y)
    browser.point(5, 880)
    assert browser.evaluate("!details.hidden && pinned !== null")


def test_what_is_told_stays_beside(browser: Chromium, place: Path) -> None:
    """What a click keeps is beside its box also after the window has got another size, by which the picture has another one."""
    opened(browser, place, pictured_node(8))
    apart = """(() => {
        const box = items.get(pinned).getBoundingClientRect(), panel = details.getBoundingClientRect();
        return panel.left >= box.right || panel.right <= box.left;
    })()"""
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(innerHeight))))"
    browser.resize(1400, 500)
    assert browser.evaluate(frames) == 500
    browser.click(*middle_of(browser, port("vm-3")))
    assert browser.evaluate(apart)
    browser.resize(1400, 900)
    assert browser.evaluate(frames) == 900
    assert browser.evaluate(apart)


def test_pointing_at_a_nic(browser: Chromium, place: Path) -> None:
    """At a NIC all ports are lit that reach it, and no port of another bridge."""
    opened(browser, place, pictured_node(12, 2))
    browser.point(*middle_of(browser, port("0000:3b:00.0")))
    lit = browser.evaluate("[...document.querySelectorAll('.port.lit')].map((each) => each.id)")
    assert len(lit) == 8  # six of pods, a gateway, and the NIC
    assert all(each.startswith(("p0", "o0")) for each in lit)


def test_zoom_and_move(browser: Chromium, place: Path) -> None:
    """The wheel zooms at the pointer, a drag moves, and the whole picture comes back."""
    opened(browser, place, pictured_node(40, 2))
    at = middle_of(browser, port("vm-3"))
    browser.turn_wheel(*at, -400)
    near = browser.evaluate("view")
    assert near[2] < browser.evaluate("whole[2]") * 0.6
    there = middle_of(browser, port("vm-3"))
    assert abs(there[0] - at[0]) < 3
    assert abs(there[1] - at[1]) < 3
    browser.evaluate("fit()")
    assert browser.evaluate("view.join() === whole.join()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(browser: Chromium, place: Path, scheme: str) -> None:
    """In either scheme every text stands out from every ground, by what WCAG asks of small text."""
    browser.prefer(scheme)
    opened(browser, place, pictured_node(8))
    assert browser.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
    assert [each for each in browser.evaluate(_COLOURS) if each[2] < 4.5] == []
    browser.evaluate("changeScheme()")
    assert browser.evaluate("getComputedStyle(document.documentElement).colorScheme") != scheme
    assert [each for each in browser.evaluate(_COLOURS) if each[2] < 4.5] == []


@pytest.mark.parametrize(("ports", "bridges", "paper"), [(8, 1, "A4"), (400, 3, "A3")])
def test_print(browser: Chromium, place: Path, ports: int, bridges: int, paper: str) -> None:
    """It is printed on one sheet, the whole picture, dark on white also where the screen is dark."""
    browser.prefer("dark")
    opened(browser, place, pictured_node(ports, bridges))
    browser.evaluate("zoomMiddle(0.2)")
    printed = place / "node.pdf"
    printed.write_bytes(browser.print_pdf())
    facts = subprocess.run(["pdfinfo", printed], capture_output=True, text=True, check=True).stdout
    assert ["Pages:", "1"] in [each.split() for each in facts.splitlines()]
    assert f"({paper})" in facts
    text = subprocess.run(["pdftotext", printed, "-"], capture_output=True, text=True, check=True).stdout
    assert "Network of node worker-1" in text
    assert "interface, namespace, type" in text
    image = subprocess.run(["pdftoppm", "-gray", "-r", "60", printed], capture_output=True, check=True).stdout
    grey = image[-(len(image) // 100) * 99 :]
    assert 0.01 < sum(each < 128 for each in grey) / len(grey) < 0.4


def test_print_of_the_file(browser: Chromium, place: Path) -> None:
    """The file of SVG is printed on one sheet, too."""
    drawn, printed = place / "node.svg", place / "node.pdf"
    drawn.write_text(write_svg(draw_picture(pictured_node(400, 3))), encoding="utf-8")
    browser.open(drawn)
    printed.write_bytes(browser.print_pdf())
    facts = subprocess.run(["pdfinfo", printed], capture_output=True, text=True, check=True).stdout
    assert ["Pages:", "1"] in [each.split() for each in facts.splitlines()]
    assert "(A3)" in facts
    text = subprocess.run(["pdftotext", printed, "-"], capture_output=True, text=True, check=True).stdout
    assert "Network of node worker-1" in text
    assert "interface, namespace, type" in text


def test_of_a_real_node(browser: Chromium, node: Node, sandbox: str, place: Path) -> None:
    """The file that the command writes is such a page, with the node's pods."""
    network = node.network(name="blue")
    assert node.run("ADD", network, sandbox, CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web").status == 0
    page = place / "node.html"
    cli(node, "map", "--seconds", "0", "--html", str(page))
    browser.open(page)
    browser.point(*middle_of(browser, port("web")))
    assert "waiting for an application" in browser.evaluate("details.innerText")
    assert "ns/web" in browser.evaluate("details.innerText")
    assert browser.told == []
    assert node.run("DEL", network, sandbox).status == 0
