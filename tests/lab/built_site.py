"""The site of the pages, as `make site` builds it, by a process that can open no connection."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from tests.lab.pages import ROOT

CONFIGURATION: Final = "docs/site/mkdocs.yml"
_ALONE: Final = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise OSError(f"{event} {arguments}: the site is built without a network")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli()
"""


def build_site(directory: Path, root: Path = ROOT) -> str:
    """Build the site of the pages at `root` into the directory; what was warned of. AssertionError if it fails."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", _ALONE, "build", "--strict"),
            *("--config-file", root / CONFIGURATION, "--site-dir", directory),
        ],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("INFO "))


class HtmlPage(HTMLParser):
    """A page of the site: its elements with their attributes, its IDs, and the text of its article, with a mark for each cell."""

    _BLOCKS: Final = frozenset({"article", "p", "li", "pre", "tr", "td", "th", "h1", "h2", "h3", "h4", "blockquote"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.ids: set[str] = set()
        self._parts: list[str] = []
        self._left_out = 0
        self.feed(html)

    @property
    def text(self) -> str:
        return " ".join("".join(self._parts).split())

    def links(self) -> Iterator[str]:
        """What `href` and `src` name."""
        yield from (value for _, attributes in self.elements for name, value in attributes.items() if name in ("href", "src"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self.ids.update(value for name, value in attributes.items() if name == "id")
        if tag == "a" and (self._left_out or attributes.get("class") == "headerlink"):
            self._left_out += 1
        if tag in self._BLOCKS:
            self._parts.append(f" <{tag}> ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._left_out:
            self._left_out -= 1

    def handle_data(self, data: str) -> None:
        if not self._left_out:
            self._parts.append(data)
