"""The content of a directory that other processes change meanwhile.

`Path.rglob` lists a directory and then opens each directory of the list. Up to Python 3.12 it raises FileNotFoundError for one
that was removed in between; here that is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """Everything but directories, sorted; a symbolic link counts as a file unless it leads to a directory.

    Empty if `directory` does not exist or is something else. Raises OSError if it cannot be read, because unknown is not absent.
    """
    return sorted(Path(parent, name) for parent, _, files in _walk(directory) for name in files)


def all_below(directory: Path) -> list[Path]:
    """The same with directories, and with links to directories."""
    return sorted(Path(parent, name) for parent, directories, files in _walk(directory) for name in (*directories, *files))


def _walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    return os.walk(directory, onerror=_passed)


def _passed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
