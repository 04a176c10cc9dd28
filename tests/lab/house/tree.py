"""The project's files as the house rules read them: each is read and parsed once, however many rules look at it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.lab.pages import pages_of

PACKAGES: Final = ("userspace_cni", "localdb", "kubevirt")
LINES_MAX: Final = 500


@dataclass(frozen=True, order=True)
class Finding:
    """What is wrong at a line of a file, and what to do about it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class File:
    """A file of the project; `name` is its path in the repository."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path: Final = path
        self.name: Final = path.relative_to(root).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def syntax(self) -> ast.Module:
        """Its syntax tree; SyntaxError where it is no Python."""
        return ast.parse(self.text, self.name)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.syntax))

    def wrong(self, line: int, text: str) -> Finding:
        return Finding(self.name, line, text)

    def line_of(self, *texts: str) -> int:
        """The first line that has all `texts`; 1 if none has."""
        return next((number for number, line in enumerate(self.lines, 1) if all(text in line for text in texts)), 1)


class Tree:
    """The files of a project at `root`, by what the rules make of them."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self.sources: Final = [
            file for package in PACKAGES for file in self._below(package, "*.py") if not file.path.stem.endswith("_pb2")
        ]
        self.tests: Final = self._below("tests", "*.py")
        self.test_files: Final = [file for file in self.tests if file.path.name.startswith("test_")]
        self.c_sources: Final = [file for room in (*PACKAGES, "deploy") for file in self._below(room, "*.[ch]")]
        self.c_tests: Final = self._below("tests", "*.[ch]")
        self.pages: Final = [File(root, path) for path in pages_of(root) if path.exists()]
        self.templates: Final = self._below(".github", "*.*")
        self.texts: Final = [
            File(root, path) for path in sorted(root.glob("*.md")) if path not in {page.path for page in self.pages}
        ]

    def _below(self, room: str, pattern: str) -> list[File]:
        return [File(self.root, path) for path in sorted((self.root / room).rglob(pattern))]

    @property
    def python(self) -> list[File]:
        return [*self.sources, *self.tests]

    @property
    def c(self) -> list[File]:
        return [*self.c_sources, *self.c_tests]

    @property
    def prose(self) -> list[File]:
        return [*self.pages, *self.templates, *self.texts]


Rule = Callable[[Tree], Iterator[Finding]]
"""A rule yields what is wrong in a tree, in any order."""
