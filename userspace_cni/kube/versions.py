"""How versions of objects and collections (metadata.resourceVersion) compare. Pure.

They are compared as numbers where they are numbers. All versions are, promised since Kubernetes 1.35; of others only whether they
are the same is known.
"""

from __future__ import annotations

from typing import Final

_DIGITS_MAX: Final = 100


def is_older(version: str, than: str) -> bool:
    """Whether a version is known to be older than another one."""
    return _are_numbers(version, than) and int(version) < int(than)


def is_later(version: str, than: str) -> bool:
    """Whether a version is another one than `than`, and not known to be older."""
    return int(version) > int(than) if _are_numbers(version, than) else version != than


def _are_numbers(*versions: str) -> bool:
    return all(each.isascii() and each.isdecimal() and len(each) < _DIGITS_MAX for each in versions)
