"""docs/fastpath-reference.md: the signature and docstring of each name that the library exports, as Python's inspect has them.

`python -m tests.lab.signatures` writes it anew; a test compares.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from userspace_cni import fastpath

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "fastpath-reference.md"
HEAD: Final = """# Names of the library for vhost-user

Each name that `userspace_cni.fastpath` exports, with its signature and what it does. [fastpath.md](fastpath.md) tells how they
are used. This page is written from the code by `python -m tests.lab.signatures`.

Frames are Ethernet frames without checksum, and sizes are bytes of these. Times are seconds where a name ends in `_s`, and
nanoseconds where it ends in `_ns`. Unless its text says otherwise, a call may be made from any thread.
"""
CHAPTERS: Final = {
    "Front-end: a VM or DPDK application, towards a switch": ("FrontEnd", "FrontEndListener", "FrontEndOptions"),
    "Back-end: a switch, towards a VM or DPDK application": ("BackEnd", "BackEndListener", "BackEndOptions"),
    "Frames": ("VhostPort", "QueuePair", "QueueCounters", "Burst"),
    "A generator at one port": ("UdpFlows", "IMIX", "FrameStream", "Generator", "StreamFigures", "LatencyFigures"),
    "Load and round trips between two ports": ("Load", "Slice", "blast", "blast_both", "Echoes", "bounce", "echo"),
    "A link of the kernel": ("Tap", "Pump", "PumpEnd", "PumpCounts", "DirectionCounts"),
    "Sockets, features and huge pages": (
        "SocketAccess",
        "Peer",
        "connections_here",
        "Feature",
        "ProtocolFeature",
        "OFFLOADS",
        "read_hugepages",
        "HugePages",
        "HugepagePool",
        "HugetlbMount",
    ),
    "Errors": (
        "FastPathError",
        "MemoryShort",
        "SocketRefused",
        "NegotiationFailed",
        "MessageRefused",
        "TimedOut",
        "Disconnected",
        "Closed",
        "FrameRefused",
        "PeerError",
        "RingFault",
        "BreachReason",
        "TapRefused",
        "TapGone",
        "NoTapDevice",
    ),
}
_LONG: Final = 100
_QUOTED: Final = re.compile(r"(: |-> )(?:'([^']*)'|ForwardRef\('([^']*)'\))")
_MADE_ELSEWHERE: Final = ("FrontEnd", "VhostPort", "QueuePair")
"""Classes that users get, and do not make."""
_FOR_OWNERS: Final = ("forget", "warn_unclosed", "explain_failure", "open", "require_bare")


def render() -> str:
    """The text of the page. Raises ValueError when an exported name has no chapter."""
    listed = [name for names in CHAPTERS.values() for name in names]
    if sorted(listed) != sorted(fastpath.__all__):
        raise ValueError(f"exported or listed alone: {sorted(set(listed) ^ set(fastpath.__all__))}; CHAPTERS of {__file__}")
    parts = [HEAD]
    for chapter, names in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        parts += [part for name in names for part in _describe(name, getattr(fastpath, name))]
    return "\n".join(parts)


def _describe(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(thing, tuple):
        yield _code(f"{name} = {thing}")
        return
    if isinstance(thing, enum.Flag):
        yield _code(f"{name}: {type(thing).__name__}")
        yield f"{', '.join(f'`{member.name}`' for member in type(thing) if member in thing)}\n"
        return
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield _code(f"class {name}({thing.__mro__[1].__name__})")
        yield _text(thing)
        yield "".join(f"- `{member.name}`{_meaning(member)}\n" for member in thing)
        return
    if not isinstance(thing, type):
        yield _code(f"def {name}{_signature(thing)}")
        yield _text(thing)
        return
    yield _code(_heading(name, thing))
    yield _text(thing)
    if not dataclasses.is_dataclass(thing):
        attributes = [f"`{each}: {kind}`" for each, kind in vars(thing).get("__annotations__", {}).items() if each[0] != "_"]
        if attributes and not issubclass(thing, tuple):
            yield f"Attributes: {', '.join(attributes)}\n"
    for each, member in vars(thing).items():
        if (
            each.startswith("_")
            or each in _FOR_OWNERS
            or not (inspect.isfunction(member) or isinstance(member, property | classmethod))
        ):
            continue
        found = getattr(thing, each)
        if isinstance(member, property):
            kind = inspect.signature(member.fget).return_annotation if member.fget else "Any"
            yield _code(f"{name}.{each}: {kind}")
        else:
            yield _code(f"{name}.{each}{_signature(found)}")
        yield _text(found)


def _heading(name: str, thing: type) -> str:
    """How it is made, and of which exported class it is one."""
    made = name not in _MADE_ELSEWHERE and ("__init__" in vars(thing) or issubclass(thing, tuple))
    base = thing.__mro__[1].__name__
    if base not in (*fastpath.__all__, "Exception"):
        return f"class {name}{_signature(thing) if made else ''}"
    return f"class {name}{_signature(thing)}  # one of {base}" if made else f"class {name}({base})"


def _signature(thing: Any) -> str:
    signature = inspect.signature(thing)
    kept = [
        value.replace(default=_Shown(f"{type(value.default).__name__}({'0' if isinstance(value.default, enum.Flag) else ''})"))
        if dataclasses.is_dataclass(value.default) or isinstance(value.default, enum.Flag)
        else value
        for each, value in signature.parameters.items()
        if each != "self"
    ]
    if inspect.isclass(thing):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = _QUOTED.sub(r"\1\2\3", str(signature.replace(parameters=kept)))
    if len(text) <= _LONG:
        return text
    inside, _, result = text.removeprefix("(").rpartition(")")
    lines = "".join(f"    {each.strip()},\n" for each in re.split(r", (?![^\[(]*[\])])", inside))
    return f"(\n{lines}){result}"


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _meaning(member: enum.Enum) -> str:
    return f": {member.value}" if isinstance(member.value, str) else f" ({member.value:#x})" if member.value > 64 else ""


def _code(text: str) -> str:
    return f"```\n{text}\n```\n"


def _text(thing: Any) -> str:
    """The docstring; a tree or list in it, which is indented, as a block."""
    lines, made, block = (inspect.getdoc(thing) or "").splitlines(), [], False
    for line in lines:
        if line.startswith("    ") != block and line:
            made.append("```")
            block = not block
        made.append(line)
    return "\n".join([*made, *(["```"] if block else [])]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
