"""What differs in a checkout, file by file as git says, and in a module by function."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.lab.suite.tree import WHOLE, Source


@dataclass(frozen=True)
class Change:
    """A file before and after; None where it is not there."""

    path: str
    before: str | None
    after: str | None


def changes(root: Path, base: str | None = None) -> list[Change]:
    """What differs from `base`, by default from where this branch left main; files that git does not know yet included.

    Raises ValueError for a base that git does not know as a commit, and where `root` is no checkout.
    """
    if Path(_git(root, "rev-parse", "--show-toplevel").rstrip("\n")) != root.resolve():
        raise ValueError(f"{root} is in a checkout of git and is none itself, so that git does not say what has changed in it")
    left = _git(root, "rev-parse", "--verify", f"{base}^{{commit}}").strip() if base else _merge_base(root)
    known = _git(root, "diff", "--name-only", "--no-renames", "-z", left, "--")
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    names = {name for name in (known + new).split("\0") if name}
    return [Change(name, _before(root, left, name), _after(root / name)) for name in sorted(names)]


def difference(change: Change) -> tuple[frozenset[str], frozenset[str]]:
    """The functions of a module that differ, by qualified name, and the names that are bound outside of functions and differ.

    Comments and layout are no difference.
    """
    before, after = (
        {(piece.function, piece.binds, piece.code) for piece in Source(text or "").pieces}
        for text in (change.before, change.after)
    )
    differing = before ^ after
    functions = frozenset(function for function, _, _ in differing if function != WHOLE)
    return functions, frozenset(name for function, binds, _ in differing if function == WHOLE for name in binds)


def functions_of(text: str | None) -> frozenset[str]:
    """The qualified names of a module's functions."""
    return frozenset(piece.function for piece in Source(text or "").pieces if piece.function != WHOLE)


def _merge_base(root: Path) -> str:
    """Where main was left; for what is committed on main itself, where that differs from the one that was fetched."""
    head = left = _git(root, "rev-parse", "HEAD").strip()
    found = False
    for main in ("main", "origin/main"):
        with suppress(ValueError):
            left = _git(root, "merge-base", "HEAD", main).strip()
            found = True
        if left != head:
            return left
    if found:
        return left
    raise ValueError(
        "git knows neither main nor origin/main here, or not where they were left: "
        "name the commit to compare with, as in `tests/run.sh changed HEAD~1`"
    )


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")


def _before(root: Path, commit: str, name: str) -> str | None:
    try:
        return _git(root, "show", f"{commit}:{name}")
    except ValueError:
        return None


def _after(path: Path) -> str | None:
    return path.read_text(errors="replace") if path.is_file() else None
