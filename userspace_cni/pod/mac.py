"""MAC addresses for interfaces for which none is given. Pure."""

from __future__ import annotations

import hashlib


def derived_mac(*names: str) -> str:
    """Derive a locally administered unicast MAC, lower case with colons, from the names."""
    digest = bytearray(hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).digest()[:6])
    digest[0] = digest[0] & 0xFC | 0x02
    return digest.hex(":")
