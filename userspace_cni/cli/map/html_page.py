"""Writes a drawing as one HTML page that needs nothing else: no file, no network, no library. Pure.

Its policy lets the browser execute the page's one script and style, which it knows by their hashes, and load nothing at all. So
even a text that got out of its place could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final

from userspace_cni.cli.map.drawing import Drawing, Item
from userspace_cni.cli.map.svg_drawing import choose_sheet, escape, read_file, view_box, write_items
from userspace_cni.cli.map.text_widths import FONTS
from userspace_cni.diagnosis.node_map import WRONG

_ESCAPED: Final = {ord(each): f"\\u{ord(each):04x}" for each in "<>&'"}
"""Characters that may end a script or an element: no part of JSON but of its texts, where they can be escaped."""
_BAR: Final = """<div id="bar">
<label for="search">Find</label>
<input id="search" type="search" autocomplete="off" spellcheck="false" placeholder="pod, VM, address, MAC, network, VLAN …">
<output id="count" for="search"></output>
<button id="faults" type="button" aria-pressed="false">Only faults</button>
<button id="closer" type="button" aria-label="Zoom in">+</button>
<button id="farther" type="button" aria-label="Zoom out">-</button>
<button id="fit" type="button">Whole picture</button>
<button id="scheme" type="button">Light/dark</button>
<span id="hint">Wheel zooms, drag moves. Point at a box, or Tab to it, to see all of it and its way out; a click keeps that.
Enter in the search goes on to the next.</span>
</div>"""


def write_page(drawing: Drawing) -> str:
    """The whole page."""
    style, script = _style(drawing), read_file("page.js")
    sources = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    body = "\n".join(write_items(drawing, page=True))
    title = escape(drawing.title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{_BAR}
<svg id="picture" role="group" aria-label="{title}" viewBox="{view_box(drawing)}" preserveAspectRatio="xMidYMin meet">
{body}
</svg>
<aside id="details" aria-live="polite" hidden></aside>
<script type="application/json" id="facts">{write_facts(drawing)}</script>
<script>{script}</script>
</body>
</html>
"""


def write_facts(drawing: Drawing) -> str:
    """What the script knows of the items, as JSON that is safe within a script."""
    items = {each.id: _facts(each) for each in drawing.items if each.facts}
    return json.dumps({"items": items, "ways": drawing.ways}, separators=(",", ":")).translate(_ESCAPED)


def _facts(item: Item) -> dict[str, Any]:
    text = " ".join([item.title, *(value for _, value in item.facts)]).lower()
    faulty = item.port is not None and item.port.state in WRONG
    return {"title": item.title, "facts": item.facts, "port": item.port is not None, "faulty": faulty, "text": text}


def _style(drawing: Drawing) -> str:
    """The picture's style and the page's. Dark colours are for screens alone: paper is white."""
    dark = read_file("dark.css")
    return "\n".join(
        [
            f":root {{ --fonts: {FONTS}; }}",
            read_file("picture.css"),
            f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{\n{dark}}} }}",
            f"@media screen {{ :root[data-scheme=dark] {{\n{dark}}} }}",
            read_file("page.css"),
            f"@page {{ size: {choose_sheet(drawing)}; margin: 8mm; }}",
        ]
    )


def _hash(text: str) -> str:
    """The source of a policy that allows just this text between the tags of an element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
