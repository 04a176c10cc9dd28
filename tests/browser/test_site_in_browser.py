"""The site of the pages in Debian's Chromium, from files and without a network: it shows, finds, and fits a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.lab.browser.chromium import Chromium
from tests.lab.built_site import build_site

PAGES: Final = (
    "index.html",
    "commands.html",
    "network.html",
    "architecture.html",
    "manual/userspace-cni-list.html",
    "manual/settings.html",
    "repository/CHANGELOG.html",
)
_FOUND: Final = """new Promise((resolve) => {
    let looks = 200;
    const look = () => {
        const found = [...document.querySelectorAll(".md-search-result__link")].map((each) => each.href);
        found.length || --looks === 0 ? resolve(found) : setTimeout(look, 50);
    };
    look();
})"""
_OVERFLOWING: Final = """[...document.querySelectorAll(".md-content *")].filter((each) => {
    const box = each.getBoundingClientRect();
    const scrolls = each.closest("pre, .md-typeset__scrollwrap, .md-nav, .headerlink");
    return box.width && !scrolls && box.right > innerWidth + 1;
}).map((each) => each.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    made = tmp_path_factory.mktemp("site")
    build_site(made)
    return made


def asked(browser: Chromium) -> list[str]:
    """What the page asked for that is no file, and what it complained of."""
    return [told for told in browser.told if "Network.requestWillBeSent" not in told or '"url": "file:///' not in told]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_whole(browser: Chromium, site: Path, width: int, scheme: str) -> None:
    """A page asks for files alone, complains of nothing, has the reader's colours, and nothing of it is outside the window."""
    browser.resize(width, 900)
    browser.prefer(scheme)
    for page in PAGES:
        browser.open(site / page)
        dark = browser.evaluate("document.body.dataset.mdColorScheme") == "slate"
        assert (asked(browser), browser.evaluate(_OVERFLOWING), dark) == ([], [], scheme == "dark"), page
        assert browser.evaluate("[...document.images].every((each) => each.naturalWidth > 0)"), page
    browser.resize(1400, 900)


@pytest.mark.parametrize(
    ("begin", "words", "page"),
    [("index.html", "hugepages", "ovs-dpdk.html"), ("manual/userspace-cni-why.html", "settings check", "settings-check.html")],
)
def test_search_from_files(browser: Chromium, site: Path, begin: str, words: str, page: str) -> None:
    """What is typed into the field of search is found, although the pages are files."""
    browser.open(site / begin)
    browser.evaluate("document.querySelector('[data-md-toggle=search]').click()")
    browser.evaluate("document.querySelector('[data-md-component=search-query]').focus()")
    browser.type_text(words)
    browser.press("Shift")  # the field is looked at when a key is let go
    found: Any = browser.evaluate(_FOUND)
    assert any(page in link for link in found), (found, browser.told)
    assert asked(browser) == []
