"""The site of the pages: it builds without a network, names nothing that is elsewhere, and says what the pages say."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import click
import pytest
from markdown_it import MarkdownIt

from tests.lab.built_site import HtmlPage, build_site
from tests.lab.commands import runnable
from tests.lab.pages import ROOT, pages_of
from userspace_cni.base.errors import NotServing
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, variables_of
from userspace_cni.cli import exit_codes

LOADING: Final = {
    **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src"),
    **dict.fromkeys(("link", "image", "use"), "href"),
    "object": "data",
    "form": "action",
}
"""What a browser loads by itself of an element."""
NEVER_ASKED: Final = {
    "https://api.github.com/repos/": "asked where repo_url names a repository",
    "https://api.github.com/users/": "the same",
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": "loaded for a diagram of class mermaid",
    "https://bit.ly/2s3ChXG": "in a warning of the search about languages",
    "https://unpkg.com/resize-observer-polyfill": "loaded by a browser that has no ResizeObserver",
}
"""Addresses in the theme's script for what no page of ours has."""
ADDRESS: Final = re.compile(r"https?://[\w.-]+\.[a-z]+[\w./@-]*")
LOADED_BY_STYLE: Final = re.compile(r"""url\(\s*["']?([^"')]*)|@import\s+["']([^"']*)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    made = tmp_path_factory.mktemp("site")
    assert build_site(made) == ""
    return made


@pytest.fixture(scope="module")
def html(site: Path) -> dict[Path, HtmlPage]:
    """Its pages, parsed."""
    return {path: HtmlPage(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def digests(directory: Path) -> dict[str, str]:
    """Each file of the directory with what is in it."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_it_is_built_the_same_again(site: Path, tmp_path: Path) -> None:
    """A second build makes the same files."""
    build_site(tmp_path / "again")
    assert digests(tmp_path / "again") == digests(site)


def test_every_link_leads_somewhere(site: Path, html: dict[Path, HtmlPage]) -> None:
    """Each link within the site names one of its files, and its anchor something on that page."""
    wrong = []
    for path, page in html.items():
        for link in page.links():
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (anchor and there in html and anchor not in html[there].ids | {"__consent"}):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


def test_nothing_is_loaded_from_elsewhere(site: Path, html: dict[Path, HtmlPage]) -> None:
    """No element, style or script of the site has a browser ask another machine."""
    asked = [
        f"{path.name}: {tag} {attributes[LOADING[tag]]}"
        for path, page in html.items()
        for tag, attributes in page.elements
        if re.match(r"(\w+:)?//", attributes.get(LOADING.get(tag, ""), "")) or ADDRESS.search(attributes.get("srcset", ""))
    ]
    styles = {path: path.read_text() for path in site.rglob("*.css")} | {
        path: "".join(re.findall(r"<style.*?</style>| style=\"[^\"]*\"", path.read_text(), re.DOTALL)) for path in html
    }
    asked += [
        f"{path.name}: {found}"
        for path, style in styles.items()
        for pair in LOADED_BY_STYLE.findall(style)
        if re.match(r"(\w+:)?//", found := "".join(pair))
    ]
    scripts = [path for path in site.rglob("*.js") if path.name != "search_index.js"]
    named = {
        address
        for path in scripts
        for address in ADDRESS.findall(re.sub(r"/\*.*?\*/|//[^\n\"'`]*\n", "", path.read_text(), flags=re.DOTALL))
    }
    assert asked == []
    assert named - NEVER_ASKED.keys() == set()
    assert not any("mermaid" in attributes.get("class", "").split() for page in html.values() for _, attributes in page.elements)


def test_the_page_for_wrong_addresses_loads_nothing(html: dict[Path, HtmlPage], site: Path) -> None:
    """A server shows it below any path, where it cannot know where the site begins: it has no link, and its style is its own."""
    page = html[site / "404.html"]
    assert "There is no such page" in (site / "404.html").read_text()
    assert [tag for tag, attributes in page.elements if attributes.get("href") or attributes.get("src")] == []


def test_pages_have_titles_of_their_own(html: dict[Path, HtmlPage]) -> None:
    """No two pages have the same title, which is their name in the menu, too."""
    titles = [title for path in html for title in re.findall(r"<title>(.*?)</title>", path.read_text(), re.DOTALL)]
    assert len(titles) == len(html)
    assert sorted(titles) == sorted(set(titles))


def test_it_says_what_the_pages_say(site: Path) -> None:
    """Each page's text is the one that a code-hosting page makes of it, in the same paragraphs, items and cells."""
    markdown = MarkdownIt("commonmark").enable("table")
    for page in (each for each in pages_of(ROOT) if each.parent.name == "docs" and each.name != "README.md"):
        source = re.sub(r"^<!--.*?-->\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        made = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        article = re.search(r"<article[^>]*>(.*?)</article>", made, re.DOTALL)
        assert article is not None
        assert words(HtmlPage(article[1])) == words(HtmlPage(markdown.render(source))), page.name


def test_each_command_has_a_page(html: dict[Path, HtmlPage], site: Path) -> None:
    """The site has a page for each command, with its options and examples as its help has them, and every code."""
    for name, command in runnable().items():
        page = html[site / "manual" / f"userspace-cni-{name.replace(' ', '-')}.html"]
        options = {each for option in command.params if isinstance(option, click.Option) for each in option.opts}
        assert options <= set(re.findall(r"-[-\w]+", page.text)), name
        assert all(" ".join(example.split()) in page.text for example in command.examples), name
    codes = html[site / "manual/error-codes.html"].text
    said = (NotServing.__doc__ or "").replace("`", "")
    assert f"<td> {NotServing.default_code} <td> {said}" in codes
    ends = {int(code) for code in re.findall(r"<td> (\d+) <td>", codes.rpartition("Exit codes")[2])}
    assert ends == {0, *(value for value in vars(exit_codes).values() if isinstance(value, int))}


def test_each_setting_is_told(html: dict[Path, HtmlPage], site: Path) -> None:
    """The site has a section for each setting, with its variables, and for each table of the file."""
    page = html[site / "manual/settings.html"]
    assert page.ids >= {*TABLE, *TABLES_OF_FILE}
    assert {name for key in TABLE for name in variables_of(key)} <= set(page.text.replace(",", "").split())


def words(page: HtmlPage) -> list[str]:
    """A page's words; a paragraph within an item is no difference, and both make different quotes of nothing."""
    return [word for word in page.text.split() if word != "<p>"]


def test_a_wrong_page_ends_the_build(tmp_path: Path) -> None:
    """A link that leads nowhere, an anchor that nothing has, and a page in no chapter are named, and there is no site."""
    for name in ("docs", "tests/README.md", "deploy/cluster/README.md", *(path.name for path in ROOT.glob("*.md"))):
        copied = tmp_path / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / name, copied) if (ROOT / name).is_dir() else shutil.copy(ROOT / name, copied)
    with (tmp_path / "docs/tap.md").open("a") as page:
        page.write("\n[a](nothing.md) [b](ports.md#nothing) [c](#nothing-here)\n")
    (tmp_path / "docs/forgotten.md").write_text("# Forgotten\n")
    with pytest.raises(AssertionError) as failed:
        build_site(tmp_path / "made", tmp_path)
    said = str(failed.value)
    assert "docs/tap.md: the link to nothing.md leads nowhere" in said
    assert "'ports.md#nothing'" in said
    assert "'#nothing-here'" in said
    assert "forgotten.md" in said
