"""Turn any string into a safe file name, never the same one for two strings.

Keys come from outside (container ids, interface names), so no key may reach another directory, hide a file, or name the record
of another key. This module must never touch the filesystem.
"""

from __future__ import annotations

import re
from functools import lru_cache

UNSAFE = re.compile(rb"[^A-Za-z0-9._@-]")
LONGEST = 200  # bytes; the filesystem's limit is 255, the rest is for what the quarantine puts around a name
READABLE = 110  # bytes of a too long name that are kept for people to read


@lru_cache(4096)
def encode_name(text: str, suffix: str = "") -> str:
    """Return the file name of `text`: ASCII, at most `LONGEST` bytes with the suffix, never hidden, never with a slash.

    Injective: "%" is always followed by two hex digits except in the name of the empty string, and "~" stands only in
    shortened names, before the hash of the whole text. Lone surrogates (undecodable bytes) are strings like any other.
    """
    raw = text.encode("utf-8", "surrogatepass")
    name = UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii") or "%"
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) + len(suffix) > LONGEST:
        name = f"{name[:READABLE]}~{digest(raw)}"
    return name + suffix


def digest(raw: bytes) -> str:
    """Return the SHA-256 of `raw` in 64 hex digits."""
    import hashlib  # 2.5 ms of OpenSSL that a process with ordinary keys never pays

    return hashlib.sha256(raw).hexdigest()
