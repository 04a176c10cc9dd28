"""Writes a request to the agent and reads its answer; `protocol` does the agent's side.

It is apart from `protocol` because that imports more: the plugin as a process sends its call (`handover`) before anything else of
the program is imported, and half of its start is imports. It must import nothing slow, not even `typing`. Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from userspace_cni.cni.request import Verb

PROTOCOL: Final = 1
PROTOCOL_HEADER: Final = "Userspace-Cni-Protocol"
HEAD_MAX: Final = 256 * 1024
"""Bytes of a request from the request line to the blank line, both included."""
BODY_MAX: Final = 4 * 1024 * 1024
"""Bytes of a request's body."""
ANSWER_HEAD_MAX: Final = 64 * 1024
ANSWER_MAX: Final = 16 * 1024 * 1024
"""Bytes of an answer's head, and of its body."""
HEAD_END: Final = b"\r\n\r\n"
BOOT_ID: Final = "Called-Boot-Id"
BOOTTIME_NS: Final = "Called-Boottime-Ns"
"""When the caller was called: the boot, and CLOCK_BOOTTIME in nanoseconds, decimal. Older shims do not say it."""

VERBS_BY_TARGET: Final[Mapping[str, Verb]] = {
    "/api/v1/add": "ADD",
    "/api/v1/del": "DEL",
    "/api/v1/check": "CHECK",
    "/api/v1/gc": "GC",
    "/api/v1/status": "STATUS",
}
VARIABLES: Final[Mapping[str, str]] = {
    "CNI_CONTAINERID": "Cni-Containerid",
    "CNI_NETNS": "Cni-Netns",
    "CNI_IFNAME": "Cni-Ifname",
    "CNI_ARGS": "Cni-Args",
    "CNI_PATH": "Cni-Path",
    "CNI_NETNS_OVERRIDE": "Cni-Netns-Override",
    "TRACEPARENT": "Traceparent",
    "TRACESTATE": "Tracestate",
    "BAGGAGE": "Baggage",
}
"""The variables of the caller that travel, and their headers. Other Cni-* headers, as of a later shim, are ignored."""
ADDRESSEE: Final[Mapping[str, str]] = {
    "state_dir": "Userspace-Cni-State-Dir",
    "run_dir": "Userspace-Cni-Run-Dir",
}
"""Which agent the call is for: settings that the agent must share. The plugin as a process sends both. The shim sends `state_dir`
unless the caller's environment names a socket and no `state_dir`, and `run_dir` when that names one. Older shims send none."""

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/:;=,-")
_ENCODED: Final = tuple([chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256)])


def request_bytes(
    target: str, environ: Mapping[str, str], body: bytes = b"", *, method: str = "POST", extra: Mapping[str, str] | None = None
) -> bytes:
    """Write a whole request: the variables of `environ` that travel, then the headers `extra` as they are, then the body."""
    fields = {"Host": "userspace-cni", PROTOCOL_HEADER: str(PROTOCOL)}
    fields |= {header: encode_value(environ[name]) for name, header in VARIABLES.items() if environ.get(name)}
    fields |= {**(extra or {}), "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("ascii") + HEAD_END + body


def encode_value(value: str) -> str:
    """A variable's value as a header value: every byte outside `A-Za-z0-9._/:;=,-` as %XX."""
    return "".join([_ENCODED[byte] for byte in value.encode("utf-8", "surrogateescape")])


class AgentAnswer:
    """The agent's answer: HTTP status, headers by their names in small letters, and body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def read_answer(received: bytes | bytearray) -> AgentAnswer | None:
    """Parse the answer in what was received; None while it is not whole. Raises ValueError for what is no agent's answer."""
    line = b"HTTP/1.1 "
    if received[: len(line)] != line[: len(received)]:
        raise ValueError("it is not HTTP/1.1")
    end = received.find(HEAD_END)
    if end < 0 and len(received) <= ANSWER_HEAD_MAX:
        return None
    status, *lines = received[len(line) : max(end, 0)].decode("latin-1").split("\r\n")
    fields = [(name.lower(), value.strip(" \t")) for name, _, value in [each.partition(":") for each in lines]]
    lengths = [value for name, value in fields if name == "content-length"]
    if not (_is_number(status[:3]) and "200" <= status[:3] < "600" and status[3:4] in ("", " ")):
        raise ValueError(f"its status is {status[:40]!r}")
    if len(lengths) != 1 or not _is_number(lengths[0]) or int(lengths[0]) > ANSWER_MAX:
        raise ValueError(f"its Content-Length is {', '.join(lengths)[:40]!r}")
    begin, length = end + len(HEAD_END), int(lengths[0])
    if len(received) < begin + length:
        return None
    return AgentAnswer(int(status[:3]), dict(fields), bytes(received[begin : begin + length]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 18
