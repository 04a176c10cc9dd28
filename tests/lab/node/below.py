"""What is below a directory that other processes change meanwhile.

`Path.rglob` lists a directory and then opens each directory of the list. Up to Python 3.12 one that has been removed in between
is a FileNotFoundError there; here it is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """All but directories, sorted; a symbolic link is a file unless it leads to a directory.

    Empty if `directory` is not there, or something else is in its place. Raises OSError where it cannot be looked: what is
    unknown is not absent.
    """
    return sorted(Path(parent, name) for parent, _, files in _walk(directory) for name in files)


def all_below(directory: Path) -> list[Path]:
    """The same with directories, and with links to such."""
    return sorted(Path(parent, name) for parent, directories, files in _walk(directory) for name in (*directories, *files))


def _walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    return os.walk(directory, onerror=_passed)


def _passed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
