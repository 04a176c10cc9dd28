"""The table of a network's keys in docs/network.md, made of the one in the code: `python -m tests.lab.network_keys` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from userspace_cni.cni.network_keys import TABLE, Key

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "network.md"
_BEGIN: Final = "<!-- written by python -m tests.lab.network_keys -->\n"
_END: Final = "<!-- end of what is written -->\n"
_OF_RUNTIMES: Final = ("runtimeConfig", "args", "args.cni", "ipam", "dns")
"""Objects that runtimes and other programs define."""


def table() -> str:
    ours = [key for key in TABLE if key.place not in _OF_RUNTIMES]
    keys = [key for key in ours if not (key.place.startswith("container.") and key.help.startswith("told"))]
    rows = [f"| `{key.path}` | {values_of(key)} | {key.default} | {key.help} |" for key in keys]
    return "\n".join(["| Key | Can be | Without it | |", "|---|---|---|---|", *rows, ""])


def values_of(key: Key) -> str:
    """The values of the key, in a few words."""
    if key.choices and len(key.choices) <= 6:
        return ", ".join(f"`{str(choice).lower() if key.kind is bool else choice}`" for choice in key.choices)
    if key.choices:
        return f"`{key.choices[0]}` to `{key.choices[-1]}`"
    kinds = {str: "text", int: "number", bool: "`true` or `false`", list: "list", dict: "object", object: "anything"}
    kind = kinds.get(key.kind, "nothing")
    least, most = key.bounds or (None, None)
    if key.kind is int and key.bounds:
        return f"{'' if key.unset is None else f'{key.unset}, or '}{least} to {most}"
    if key.kind is list and most:
        return f"list of at most {most}"
    return f"{kind} or number" if key.also else kind


def documented() -> str:
    """The table that the page has."""
    return PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
