"""The house rules for README and docs: blocks of code are valid, those that are not run say why, links have targets."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from itertools import zip_longest
from typing import Final

import yaml

from tests.lab.house.tree import PACKAGES, File, Finding, Rule, Tree
from tests.lab.pages import COMMANDS, Block, blocks, headings, links, marks, prose
from tests.lab.samples import COLUMNS, CUT, TEXT, samples

LANGUAGES: Final = {COMMANDS, TEXT, "yaml", "toml", "python", ""}
"""The languages of a block of code; `text` is what a command prints, one without a language a picture, a message or a form."""
WORDS_MAX: Final = 2500
"""The words of docs/architecture.md that a newcomer reads in ten minutes."""
COLUMNS_MAX: Final = 160
"""The columns of a line of prose; rows of tables, headings and lines with one long word may be longer."""
FRONT_PAGE: Final = "index.md"
"""The site's own, in place of docs/README.md."""
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_TEST: Final = re.compile(r"\btests/[\w/]+\.py\b")
_MODULE: Final = re.compile(r"`([a-z]+/[a-z_/]+[a-z_])(?:\.[A-Za-z_]+)*`")
_CLASS: Final = re.compile(r"`(?:[a-z/_]+\.)?([A-Z]+[a-z][A-Za-z]*)`")
_WORD: Final = re.compile(r"\b[A-Z]\w+")
_DRAWN: Final = re.compile(r'font-weight="bold"[^>]*>(\w+)<')


def readable(tree: Tree) -> list[File]:
    """The pages whose blocks end and whose headings differ, which the other rules for pages look at."""
    return [page for page in tree.pages if not _unreadable(page)]


def _unreadable(page: File) -> str:
    try:
        headings(page.path)
    except AssertionError as error:
        return str(error)
    return ""


def pages_can_be_read(tree: Tree) -> Iterator[Finding]:
    """Each block of code has an end, and no page has a heading twice."""
    for page in tree.pages:
        if wrong := _unreadable(page):
            yield page.wrong(1, f"{wrong}: mend it, or no other rule for pages can be checked")


def blocks_of_code(tree: Tree) -> Iterator[Finding]:
    """Every block is of a known kind; only blocks of commands are marked as not run, directly above and with a reason."""
    for page in readable(tree):
        for block in blocks(page.path):
            if block.language not in LANGUAGES:
                yield page.wrong(
                    block.line, f"a block of '{block.language}': make it one of {', '.join(sorted(LANGUAGES - {''}))}"
                )
            if block.reason and block.language != COMMANDS:
                yield page.wrong(block.line, f"only a block of {COMMANDS} is marked as not run: remove the mark")
        if sum(bool(block.reason) for block in blocks(page.path)) != marks(page.path):
            line = page.line_of("<!-- not run")
            yield page.wrong(
                line, "a mark 'not run: REASON' gives no reason, or is not the line right above a block: mend the mark"
            )
        for number, line_of_prose in enumerate(prose(page.path).splitlines(), 1):
            if re.match(r"\s+```", line_of_prose):
                yield page.wrong(number, "an indented block is read by no rule: begin it at the line's beginning")


def samples_are_of_commands(tree: Tree) -> Iterator[Finding]:
    """A block of text is a sample of what the commands above it print; a test compares them, and it fits a page."""
    for page in readable(tree):
        try:
            found = samples(page.path)
        except ValueError as error:
            yield page.wrong(1, f"{error}: mend the mark 'output' or the commands")
            continue
        for block in blocks(page.path):
            if block.language == TEXT and not block.mark:
                yield page.wrong(block.line, "a block of text without a mark, as 'output': give it one, or no language")
        for sample in found:
            lines = sample.block.text.splitlines()
            if sample.block.language != TEXT or set(lines) <= {CUT}:
                yield page.wrong(sample.block.line, f"no sample: write a block of {TEXT}, and let the test of the page fill it")
            if max(map(len, lines), default=0) > COLUMNS:
                yield page.wrong(sample.block.line, f"a sample with more than {COLUMNS} columns: end such a line with …")
            tests = [tree.root / name for name in _TEST.findall(sample.of.reason)]
            if sample.of.reason and not any(test.exists() and "lab.samples" in test.read_text("utf-8") for test in tests):
                yield page.wrong(sample.of.line, "commands that are not run here have a sample: name the test that compares it")


def blocks_that_are_no_commands(tree: Tree) -> Iterator[Finding]:
    """YAML, TOML and the JSON within a network are valid; Python compiles, and what it imports exists."""
    for page in readable(tree):
        for block in blocks(page.path):
            try:
                wrong = _wrong_in(block)
            except (SyntaxError, ValueError, yaml.YAMLError, ImportError) as error:
                wrong = str(error).replace("\n", " ")
            if wrong:
                yield page.wrong(block.line, f"the block of {block.language} cannot be used: {wrong}")


def _wrong_in(block: Block) -> str:
    if block.language == "toml":
        return "" if tomllib.loads(block.text) else "it is empty"
    if block.language == "python":
        imports = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom)]
        names = [(node.module or "", alias.name) for node in imports for alias in node.names]
        return ", ".join(f"{module} has no {name}" for module, name in names if not hasattr(import_module(module), name))
    if block.language == "yaml":
        for document in yaml.safe_load_all(block.text):
            if not document:
                return "a document of it is empty"
            config = document.get("spec", {}).get("config")
            if config is not None:
                json.loads(config)
    return ""


def links_lead_somewhere(tree: Tree) -> Iterator[Finding]:
    """A link within the project names an existing file, and its anchor, if any, a heading of that page."""
    for page in readable(tree):
        for link in links(page.path):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.exists():
                yield page.wrong(page.line_of(f"]({link})"), f"the link leads to {path}, which does not exist: mend it")
            elif anchor and anchor not in headings(target):
                yield page.wrong(page.line_of(f"]({link})"), f"the link leads to no heading of {target.name}: #{anchor}")


def lines_of_prose_are_short(tree: Tree) -> Iterator[Finding]:
    """A line of prose is short enough that it fits an editor's window, and that a diff shows the changed sentence."""
    for page in readable(tree):
        for number, line in enumerate(prose(page.path).splitlines(), 1):
            if len(line) > COLUMNS_MAX and not line.startswith(("|", "#")) and " " in line.strip()[:COLUMNS_MAX]:
                yield page.wrong(number, f"a line of {len(line)} columns, {COLUMNS_MAX} at most: break it")


def every_page_is_in_the_index(tree: Tree) -> Iterator[Finding]:
    """docs/README.md lists every page, and the README links to it."""
    pages = {page.name: page for page in readable(tree)}
    index = pages.get("docs/README.md")
    if index:
        listed = {(index.path.parent / link.partition("#")[0]).resolve() for link in links(index.path)}
        for page in pages.values():
            if page is not index and page.path.resolve() not in listed:
                yield page.wrong(1, f"{index.name} does not list it: add a line there")
    if "README.md" in pages and "docs/README.md" not in links(pages["README.md"].path):
        yield pages["README.md"].wrong(1, "no link to docs/README.md, the list of pages: add one")


def the_index_has_the_chapters_of_the_site(tree: Tree) -> Iterator[Finding]:
    """docs/README.md has the chapters and pages of docs/site/mkdocs.yml, in the same order; a page counts where it is first."""
    book = tree.root / "docs/site/mkdocs.yml"
    index = next((page for page in readable(tree) if page.name == "docs/README.md"), None)
    if index is None or not book.exists():
        return
    chapters = yaml.safe_load(book.read_text(encoding="utf-8"))["nav"]
    site = [(chapter, page) for each in chapters for chapter, pages in each.items() for page in pages if page != FRONT_PAGE]
    for (chapter, page), (other, there) in zip_longest(_of_chapters(index), site, fillvalue=("", "")):
        if (chapter, page) != (other, there):
            line = index.line_of(f"{(page or there).rpartition('/')[2]})")
            has = f"{page} in '{chapter}'" if page else "nothing"
            wants = f"{there} in '{other}'" if there else "nothing"
            yield index.wrong(line, f"it has {has} where docs/site/mkdocs.yml has {wants}: list the same in both")
            return


def _of_chapters(index: File) -> Iterator[tuple[str, str]]:
    """The pages that the index links to, each with its chapter, as the site names them."""
    chapter, seen = "", set()
    for line in prose(index.path).splitlines():
        if line.startswith("## "):
            chapter = line.removeprefix("## ")
        for link in _LINK.findall(line):
            target = (index.path.parent / link.partition("#")[0]).resolve()
            docs = index.path.parent.resolve()
            page = target.relative_to(docs) if target.is_relative_to(docs) else f"repository/{target.relative_to(docs.parent)}"
            if str(page) not in seen:
                seen.add(str(page))
                yield chapter, str(page)


def rooms_are_as_the_pages_say(tree: Tree) -> Iterator[Finding]:
    """The pages about the code name modules that exist, the picture has all rooms, and the first page is not too long."""
    pages = {page.name: page for page in readable(tree)}
    known = {word for each in tree.sources for word in _WORD.findall(each.text)}
    rooms = {each.name.split("/")[1] for each in tree.sources if each.name.startswith(PACKAGES[0]) and each.name.count("/") > 1}
    for page in [pages[name] for name in ("docs/architecture.md", "docs/internals.md") if name in pages]:
        for module in sorted({*_MODULE.findall(page.text)}):
            places = (tree.root / module, tree.root / PACKAGES[0] / module)
            if not any(place.exists() or any(place.parent.glob(f"{place.name}.*")) for place in places):
                yield page.wrong(page.line_of(f"`{module}"), f"there is no {module}: name what there is")
        for name in sorted({*_CLASS.findall(page.text)} - known):
            yield page.wrong(page.line_of(f"{name}`"), f"no module of the product has {name}: name what there is")
    if first := pages.get("docs/architecture.md"):
        if (words := len(first.text.split())) > WORDS_MAX:
            yield first.wrong(1, f"{words} words, {WORDS_MAX} at most: details belong into docs/internals.md")
        picture = first.path.parent / "pictures/rooms.svg"
        drawn = {*_DRAWN.findall(picture.read_text(encoding="utf-8") if picture.exists() else "")}
        if wrong := rooms ^ (drawn - {"__main__", *PACKAGES}):
            yield first.wrong(1, f"pictures/rooms.svg and the rooms that there are differ: {', '.join(sorted(wrong))}")


RULES: Final[tuple[Rule, ...]] = (
    pages_can_be_read,
    blocks_of_code,
    samples_are_of_commands,
    blocks_that_are_no_commands,
    links_lead_somewhere,
    lines_of_prose_are_short,
    every_page_is_in_the_index,
    the_index_has_the_chapters_of_the_site,
    rooms_are_as_the_pages_say,
)
