"""The files that were put aside because they could not be read, by what they mention."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

_SHOWN: Final = 5
_BYTES: Final = 1 << 20


def quarantined(state_dir: Path, mentioned: Collection[str]) -> list[dict[str, Any]]:
    """The newest files that mention one of these, as a container's ID, in their name or content: `file` and `bytes`."""
    found = []
    try:
        for path in (state_dir / "quarantine").iterdir():
            facts = path.lstat()
            if any(each and each in path.name for each in mentioned) or (path.is_file() and _mentions(path, mentioned)):
                found.append((facts.st_mtime, {"file": str(path), "bytes": facts.st_size}))
    except OSError:
        return []
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0], reverse=True)][:_SHOWN]


def _mentions(path: Path, mentioned: Collection[str]) -> bool:
    with path.open("rb") as file:
        content = file.read(_BYTES)
    return any(each and each.encode() in content for each in mentioned)
