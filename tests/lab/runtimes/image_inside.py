"""Run inside the agent's image, by its Python: whether what the modules import, at start or in a function, is there.

It prints an object: `missing`, what could not be imported; `modules`, how many of ours there are; `by_time`, bytecode that is
compared with its source's time, which a reproducible image changes; `commands`, those that have a help text.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

PACKAGES = ("userspace_cni", "localdb")
LEFT_OUT = (".__main__", ".extension", "._frames", "._native")
"""Programs, what compiles the C, and what is compiled."""


def sources() -> Iterator[tuple[str, Path]]:
    """Name and file of every module."""
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith(LEFT_OUT):
                origin = importlib.import_module(module.name).__file__
                yield module.name, Path(str(origin))


def imported(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each module that is imported anywhere, but for type checkers, with the names that are taken from it."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import):
        yield from ((alias.name, ()) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom) and tree.module and not tree.level:
        yield tree.module, tuple(alias.name for alias in tree.names)
    for child in ast.iter_child_nodes(tree):
        yield from imported(child)


def problem(module: str, names: tuple[str, ...]) -> str:
    """Why they cannot be imported; "" when they can."""
    try:
        found = importlib.import_module(module)
        for name in names:
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        return f"{module}: {error}"
    return ""


def commands(command: click.Command, path: str) -> Iterator[str]:
    """The command and those below it, each after its help text was made."""
    from userspace_cni.cli.deferred import DeferredCommand

    command = command.load() if isinstance(command, DeferredCommand) else command
    command.get_help(click.Context(command))
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def main() -> None:
    found = list(sources())
    missing = {why for _, path in found for each in imported(ast.parse(path.read_text())) if (why := problem(*each))}
    by_time = [
        str(file)
        for top in (Path(sys.prefix), Path("/usr/lib"))
        for file in top.glob("**/python3*/**/*.pyc")
        if file.read_bytes()[4:8] != b"\x01\0\0\0"  # PEP 552: of a source with that hash, which is not looked at
    ]
    from userspace_cni.cli.main import userspace_cni

    named = list(commands(userspace_cni, "userspace-cni"))
    print(json.dumps({"missing": sorted(missing), "modules": len(found), "by_time": by_time[:5], "commands": named}))


if __name__ == "__main__":
    main()
