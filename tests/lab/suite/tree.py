"""The project's modules as text: their functions, what each imports, and which functions use a name."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

WHOLE: Final = ""
"""The name of a module's statements that are in no function."""


@dataclass(frozen=True)
class Piece:
    """A function, or a statement outside of functions: the names that it binds, the names and texts in it, its syntax tree."""

    function: str
    binds: frozenset[str]
    uses: frozenset[str]
    texts: tuple[str, ...]
    code: str


_FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    """One module. A module that cannot be parsed counts as empty: its tests fail anyway."""

    def __init__(self, text: str) -> None:
        try:
            self._tree = ast.parse(text)
        except SyntaxError:
            self._tree = ast.Module([], [])

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Its functions, those in classes and functions, too, and its other statements."""
        return tuple(_pieces(self._tree.body, ()))

    @cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names that it may import, wherever it does: of `from a import b` both `a` and `a.b`."""
        found: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)


def _pieces(body: Iterable[ast.AST], inside: tuple[str, ...]) -> Iterator[Piece]:
    for node in body:
        if isinstance(node, _FUNCTION):
            yield _piece(node, ".".join((*inside, node.name)), frozenset({node.name, *inside[:1]}))
            yield from _pieces(_defined(node), (*inside, node.name))
        elif isinstance(node, ast.ClassDef):
            head = ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
            yield _piece(head, WHOLE, frozenset({node.name}))
            yield from _pieces(node.body, (*inside, node.name))
        else:
            yield _piece(node, WHOLE, frozenset({*_bound(node), *inside}))
            yield from _pieces(_defined(node), inside)


def _defined(node: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes that are directly in a statement, however deep in its blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTION, ast.ClassDef)):
            yield child
        else:
            yield from _defined(child)


def _piece(node: ast.AST, function: str, binds: frozenset[str]) -> Piece:
    uses: set[str] = set()
    texts: list[str] = []
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                uses.add(name)
            case ast.alias(name=name):
                uses.update(name.split("."))
            case ast.Constant(value=str(text)):
                texts.append(text)
    return Piece(function, binds, frozenset(uses), tuple(texts), ast.dump(node))


def _bound(node: ast.AST) -> set[str]:
    """The names that a statement outside of functions assigns."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=renamed):
                found.add(renamed or name.split(".")[0])
    return found


class Tree:
    """The files of a checkout."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root = root
        self.paths = frozenset(paths)
        self._sources: dict[str, Source] = {}
        self._importers: dict[str, frozenset[str]] = {}

    @classmethod
    def at(cls, root: Path) -> Tree:
        """The files in `root` that git knows, and new ones."""
        argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return cls(root, (name for name in names if name and (root / name).is_file()))

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Dotted name -> path of each module of the tree."""
        return {_dotted(path): path for path in sorted(self.paths) if path.endswith((".py", ".pyi"))}

    @cached_property
    def tests(self) -> tuple[str, ...]:
        return tuple(sorted(path for path in self.paths if path.startswith("tests/") and is_test(path)))

    def read(self, path: str) -> str:
        return (self.root / path).read_text(errors="replace")

    def source(self, path: str) -> Source:
        """A module of the tree; one that is gone is empty, and one beside whose types it lies (.pyi) is read as well."""
        if path not in self._sources:
            self._sources[path] = Source(self.read(path) if path in self.paths else "")
        return self._sources[path]

    def imported(self, path: str) -> frozenset[str]:
        """The modules of the tree that a module imports."""
        return frozenset(self.modules[name] for name in self.source(path).imports if name in self.modules) - {path}

    def importers(self, path: str) -> frozenset[str]:
        """The modules that import a module."""
        if path not in self._importers:
            word = _dotted(path).rpartition(".")[2]
            likely = (each for each, text in self.texts.items() if word in text)  # parsing all of them takes ten seconds
            self._importers[path] = frozenset(each for each in likely if path in self.imported(each))
        return self._importers[path]

    @cached_property
    def texts(self) -> Mapping[str, str]:
        return {path: self.read(path) for path in self.modules.values()}

    def users(self, path: str, names: Iterable[str]) -> set[tuple[str, str]]:
        """The functions (path, name) that mention one of the names that `path` binds, there and where `path` is imported.

        A name that a statement outside of functions derives from such a name counts, too.
        """
        found: set[tuple[str, str]] = set()
        seen: set[tuple[str, str]] = set()
        todo = [(path, name) for name in names]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            for module in (at[0], *self.importers(at[0])):
                for piece in self.source(module).pieces:
                    if at[1] not in piece.uses:
                        continue
                    if piece.function:
                        found.add((module, piece.function))
                    else:
                        todo += ((module, each) for each in piece.binds)
        return found

    def reached(self, test: str) -> frozenset[str]:
        """All modules that a test file imports, the conftest.py above it and what they import included."""
        todo = [test, *(path for path in self.paths if path.endswith("conftest.py") and is_above(path, test))]
        seen: set[str] = set()
        while todo:
            path = todo.pop()
            if path not in seen:
                seen.add(path)
                todo += self.imported(path)
        return frozenset(seen)


def is_test(path: str) -> bool:
    """Whether pytest collects this file."""
    name = path.rpartition("/")[2]
    return name.startswith("test_") and name.endswith(".py")


def is_above(conftest: str, test: str) -> bool:
    """Whether a conftest.py is for this test file."""
    return test.startswith(conftest.removesuffix("conftest.py"))


def _dotted(path: str) -> str:
    return path.partition(".")[0].removesuffix("/__init__").replace("/", ".")
