"""MAC addresses for interfaces that are given none. Pure."""

from __future__ import annotations

import hashlib


def derived_mac(*names: str) -> str:
    """The locally administered unicast MAC, lower case with colons, that these names always give."""
    digest = bytearray(hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).digest()[:6])
    digest[0] = digest[0] & 0xFC | 0x02
    return digest.hex(":")
