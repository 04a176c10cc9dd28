"""The project's pages as tests read them: their blocks of code, spans of code, headings and links.

A comment right above a block is its mark. A block of commands (```bash) is run by a test as it stands, unless its mark says why
not: `<!-- not run: … -->`. `<!-- ends with 1: … -->` says that its last command ends with that code, and why. `<!-- output -->`
above a block of text says that it is a sample of what the commands above it print: see tests/lab/samples.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMMANDS: Final = "bash"
_BESIDE_DOCS: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "tests/README.md",
    "deploy/cluster/README.md",
)
_FENCE: Final = re.compile(r"```(\w*)")
_MARK: Final = re.compile(r"<!-- (.+) -->")
_HEADING: Final = re.compile(r"#+ (.+)")
_SPAN: Final = re.compile(r"`([^`]+)`")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


def pages_of(root: Path) -> tuple[Path, ...]:
    """The pages of a project: its README first, then those for contributors and the deployment, then docs/*.md."""
    return *(root / name for name in _BESIDE_DOCS), *sorted((root / "docs").glob("*.md"))


PAGES: Final = pages_of(ROOT)


@dataclass(frozen=True)
class Block:
    """A fenced block: the line where it begins, its language, its text, and the comment right above it, or ""."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        """As `docs/tap.md:38`."""
        return f"{named(self.page)}:{self.line}"

    @property
    def reason(self) -> str:
        """Why it is not run; "" for one that is."""
        return _after("not run: ", self.mark)

    @property
    def code(self) -> int:
        """The exit code of its last command."""
        code, _, reason = _after("ends with ", self.mark).partition(": ")
        return int(code) if code.isdecimal() and reason else 0

    @property
    def is_run(self) -> bool:
        """Whether it has commands that a test has to run."""
        return self.language == COMMANDS and not self.reason


def _after(beginning: str, mark: str) -> str:
    return mark.removeprefix(beginning).strip() if mark.startswith(beginning) else ""


def named(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


@cache
def _parts(page: Path) -> tuple[tuple[Block, ...], str]:
    """The blocks of a page, and its text with an empty line for each line of them."""
    blocks: list[Block] = []
    prose: list[str] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        opened = _FENCE.fullmatch(line)
        if not opened:
            prose.append(line)
            continue
        inside = list(_until_closed(lines))
        mark = _MARK.fullmatch(prose[-1]) if prose else None
        blocks.append(Block(page, number + 1, opened[1], "".join(f"{each}\n" for each in inside), mark[1] if mark else ""))
        prose += [""] * (len(inside) + 2)
    return tuple(blocks), "\n".join(prose)


def _until_closed(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line == "```":
            return
        yield line
    raise AssertionError("a block of code has no end")


def forget() -> None:
    """Read pages anew from now on: one was written."""
    _parts.cache_clear()


def blocks(page: Path) -> tuple[Block, ...]:
    """Its blocks of code, in order."""
    return _parts(page)[0]


def prose(page: Path) -> str:
    """All else, line by line."""
    return _parts(page)[1]


def marks(page: Path) -> int:
    """How many comments say that something is not run, wherever they are."""
    return len(re.findall(r"^\s*<!-- not run", prose(page), re.MULTILINE))


def spans(page: Path) -> list[str]:
    """The texts between backticks in its prose."""
    return _SPAN.findall(prose(page))


def links(page: Path) -> list[str]:
    return _LINK.findall(_SPAN.sub("", prose(page)))


def headings(page: Path) -> dict[str, str]:
    """Its headings by their anchors, as the forges make them: lower case, without punctuation, hyphens for spaces."""
    found = [match[1] for line in prose(page).splitlines() if (match := _HEADING.fullmatch(line))]
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]
    assert len(set(anchors)) == len(anchors), f"{page.name} has a heading twice"
    return dict(zip(anchors, found, strict=True))


def section(page: Path, heading: str) -> str:
    """The prose below `## heading`, up to the next heading of that rank."""
    _, found, rest = f"\n{prose(page)}".partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no section '{heading}'"
    return rest.partition("\n## ")[0]
