"""What travels between the shim and the agent: one HTTP/1.1 request per connection and its answer, as bytes.

    POST /api/v1/add HTTP/1.1
    Host: userspace-cni
    Userspace-Cni-Protocol: 1
    Cni-Containerid: 0123…              one header per variable of `VARIABLES` that is set and not empty
    Userspace-Cni-State-Dir: /var/…     which agent the call is for: settings of the caller, by `ADDRESSEE`
    Content-Length: 181
    Connection: close

    {"cniVersion": …                    stdin as it came

The body of every answer is what the plugin prints to stdout. The answer's head holds the verb's warnings, for the caller's
stderr. Nothing depends on them: a shim that does not know these headers skips them.

    HTTP/1.1 200 OK
    Userspace-Cni-Warning-1: key%20%27host.colour%27%20is%20unknown%20and%20ignored
    Content-Length: 312

A request that breaks these rules is refused whole: the agent acts as root on what it reads here, and its only writers are the
shim and `wire`. Pure: this module must never touch sockets, files or the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import InvalidConfig, Unavailable, UnknownProtocol, UserspaceError
from userspace_cni.cni.request import Called, Verb
from userspace_cni.cni.result import LATEST, error_json
from userspace_cni.cni.wire import (
    ADDRESSEE,
    BODY_MAX,
    BOOT_ID,
    BOOTTIME_NS,
    HEAD_END,
    HEAD_MAX,
    PROTOCOL,
    PROTOCOL_HEADER,
    VARIABLES,
    VERBS_BY_TARGET,
    encode_value,
    request_bytes,
)

__all__ = [
    "ADDRESSEE",
    "BODY_MAX",
    "BOOTTIME_NS",
    "BOOT_ID",
    "HEADER_LINES_MAX",
    "HEAD_END",
    "HEAD_MAX",
    "JSON",
    "PROTOCOL",
    "PROTOCOL_HEADER",
    "VARIABLES",
    "VERBS_BY_TARGET",
    "WARNINGS_MAX",
    "WARNING_HEADER",
    "WARNING_MAX",
    "Called",
    "Head",
    "Headers",
    "MalformedRequest",
    "Reply",
    "WrongAgent",
    "addressee",
    "encode_value",
    "environment",
    "fault",
    "parse_head",
    "read_call_time",
    "read_reply",
    "read_request",
    "reply",
    "request_bytes",
    "status_of",
    "warnings_of",
]

HEADER_LINES_MAX: Final = 64
JSON: Final = "application/json"

WARNING_HEADER: Final = "Userspace-Cni-Warning-"
"""The name of a warning's header, before its number from 1."""
WARNINGS_MAX: Final = 16
WARNING_MAX: Final = 1000
"""Bytes of one before encoding, which can triple them. All together fit the head that a shim takes (64 KiB)."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
_TARGET: Final = re.compile(r"/[\x21-\x7e]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\x20-\x7e]*)?")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})?")
_REASONS: Final[Mapping[int, str]] = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Unknown Target",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_CODES: Final[Mapping[int, int]] = {408: 11, 413: 5, 431: 4, 503: 11}
"""CNI codes of faults by their HTTP status: 4 is the environment, 5 stdin, 11 means that trying again may help."""


class MalformedRequest(UserspaceError):
    """A request that breaks the protocol, or is larger than it allows; nothing was done.

    `status` is the HTTP status of the answer and decides the CNI code: 4, 5 or 11 where one fits, else 111.
    """

    default_code = UnknownProtocol.default_code

    def __init__(self, status: int, reason: str) -> None:
        details = f"the agent speaks protocol {PROTOCOL}: one HTTP/1.1 request per connection"
        super().__init__(f"reading a request to the agent: {reason}", details, code=_CODES.get(status))
        self.status = status
        self.reason = reason


class WrongAgent(InvalidConfig):
    """The call is for an agent of other directories; nothing was done."""


class Headers(Mapping[str, str]):
    """Header fields; names match without regard to case."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = {name.lower(): value for name, value in fields.items()}

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._fields

    def __repr__(self) -> str:
        return f"Headers({self._fields!r})"


@dataclass(frozen=True)
class Head:
    """A request without its body; `length` is the body's, in bytes."""

    method: str
    target: str
    headers: Headers
    length: int

    @property
    def verb(self) -> Verb | None:
        """The CNI verb that the request calls; None for every other target and method."""
        return VERBS_BY_TARGET.get(self.target) if self.method == "POST" else None


@dataclass(frozen=True)
class Reply:
    """An answer as a client reads it."""

    status: int
    headers: Headers
    body: bytes


def parse_head(raw: bytes) -> Head:
    """Parse a request's head: everything up to the blank line, with or without it. Raises MalformedRequest."""
    if len(raw) > HEAD_MAX:
        raise MalformedRequest(431, f"its head is longer than {HEAD_MAX} bytes")
    first, *lines = _lines(raw)
    parts = first.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]) or parts[2] != "HTTP/1.1":
        raise MalformedRequest(400, f"it begins with {first[:80]!r}, not METHOD /TARGET HTTP/1.1")
    headers = _fields(lines)
    if "Transfer-Encoding" in headers:
        raise MalformedRequest(400, "it has a Transfer-Encoding; only a body of a given Content-Length is read")
    return Head(parts[0], parts[1], headers, _length(headers))


def read_request(raw: bytes) -> tuple[Head, bytes]:
    """Parse exactly one request, as a spool entry holds it, into head and body. Raises MalformedRequest."""
    end = raw.find(HEAD_END)
    if end < 0:
        raise MalformedRequest(400, "its head does not end")
    head = parse_head(raw[: end + len(HEAD_END)])
    body = raw[end + len(HEAD_END) :]
    if len(body) != head.length:
        raise MalformedRequest(400, f"Content-Length is {head.length}, and {len(body)} bytes follow")
    return head, body


def environment(head: Head) -> dict[str, str]:
    """The CNI variables of a call, CNI_COMMAND from the target; bytes that are no UTF-8 are as in `os.environ`.

    Raises UnknownProtocol for another protocol, MalformedRequest for a target that is no verb, for broken percent-encoding and
    for NUL.
    """
    asked = head.headers.get(PROTOCOL_HEADER, "")
    if asked != str(PROTOCOL):
        spoken = f"protocol {asked[:40]!r}" if asked else "no protocol version"
        raise UnknownProtocol(
            f"the caller speaks {spoken}, this agent {PROTOCOL!r}", "install the shim of the same release: userspace-cni install"
        )
    verb = head.verb
    if verb is None:
        raise MalformedRequest(404, f"{head.method} {head.target[:80]} is not a CNI verb")
    variables = {name: _decoded(header, head.headers.get(header, "")) for name, header in VARIABLES.items()}
    return {"CNI_COMMAND": verb} | {name: value for name, value in variables.items() if value}


def addressee(head: Head) -> dict[str, str]:
    """The settings, by their keys, that the agent must share with the caller. Raises MalformedRequest as `environment` does."""
    return {key: _decoded(header, head.headers[header]) for key, header in ADDRESSEE.items() if head.headers.get(header)}


def read_call_time(head: Head) -> Called | None:
    """When the caller was called; None where the request does not say."""
    boot_id, boottime_ns = head.headers.get(BOOT_ID, ""), head.headers.get(BOOTTIME_NS, "")
    return Called(boot_id, int(boottime_ns)) if boot_id and _LENGTH.fullmatch(boottime_ns) else None


def reply(status: int, body: bytes, content_type: str = JSON, warnings: Sequence[str] = ()) -> bytes:
    """Write a whole answer, with at most WARNINGS_MAX warnings, each of at most WARNING_MAX bytes."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unnamed')}", f"Content-Type: {content_type}"]
    lines += [f"{WARNING_HEADER}{number}: {text}" for number, text in enumerate(_bounded(warnings), 1)]
    lines += [f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(lines).encode("ascii") + HEAD_END + body


def _bounded(warnings: Sequence[str]) -> Iterator[str]:
    """The warnings as header values; where there are too many, the last one says where the others are."""
    shown = list(warnings)
    if len(shown) > WARNINGS_MAX:
        shown[WARNINGS_MAX - 1 :] = ["there are more warnings: see the agent's log"]
    for text in shown:
        raw = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")
        yield encode_value(
            (raw if len(raw) <= WARNING_MAX else raw[: WARNING_MAX - 3] + b"...").decode("utf-8", "surrogateescape")
        )


def warnings_of(headers: Headers) -> list[str]:
    """The warnings of an answer, in their order. They are untrusted text, which may have control characters.

    Never fails: a malformed warning is left out.
    """
    found = []
    for number in range(1, WARNINGS_MAX + 1):
        header = f"{WARNING_HEADER}{number}"
        with suppress(MalformedRequest):
            found.append(_decoded(header, headers.get(header, "")))
    return [text[:WARNING_MAX] for text in found if text]


def fault(error: UserspaceError) -> tuple[int, bytes]:
    """Status and body that refuse a request before any verb has run.

    The text is safe for DEL: runtimes take a failed DEL for done when its answer has certain words (`result.safe_for_del`).
    """
    return status_of(error), error_json(error, LATEST, for_del=True)


def status_of(error: UserspaceError) -> int:
    """The HTTP status of an error: its own, 400 for another protocol, 421 for another agent, 503 if transient, else 500.

    All but 500 say that no verb has run.
    """
    if isinstance(error, MalformedRequest):
        return error.status
    if isinstance(error, WrongAgent):
        return 421
    if isinstance(error, UnknownProtocol):
        return 400
    return 503 if isinstance(error, Unavailable) else 500


def read_reply(raw: bytes) -> Reply:
    """Parse one whole answer. Raises Unavailable when it is cut short or malformed: the request may have been served or not."""
    end = raw.find(HEAD_END)
    try:
        first, *lines = _lines(raw[:end]) if end >= 0 else [""]
        status = _STATUS_LINE.fullmatch(first)
        headers = _fields(lines)
        length = _length(headers)
    except MalformedRequest as error:
        raise Unavailable("reading the agent's answer: it is not HTTP", error.reason) from error
    body = raw[end + len(HEAD_END) :]
    if status is None or "Content-Length" not in headers or len(body) != length:
        raise Unavailable(
            f"reading the agent's answer: it is cut short or no HTTP ({len(raw)} bytes came)", "see the agent's log"
        )
    return Reply(int(status[1]), headers, body)


def _lines(raw: bytes) -> list[str]:
    """The lines before the blank one. A lone CR or LF is no line end."""
    lines = raw.removesuffix(HEAD_END).decode("latin-1").split("\r\n")
    if any("\r" in line or "\n" in line for line in lines):
        raise MalformedRequest(400, "a line does not end in CR LF")
    return lines


def _fields(lines: list[str]) -> Headers:
    if len(lines) > HEADER_LINES_MAX:
        raise MalformedRequest(431, f"it has more than {HEADER_LINES_MAX} header lines")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # a folded line begins with white space, which is no token either
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise MalformedRequest(400, f"the header line {line[:80]!r} does not read NAME: VALUE in visible ASCII")
        if name.lower() in fields:
            raise MalformedRequest(400, f"header {name[:80]} comes twice")
        fields[name.lower()] = value.strip(" \t")
    return Headers(fields)


def _length(headers: Headers) -> int:
    text = headers.get("Content-Length", "0")
    if not _LENGTH.fullmatch(text):
        raise MalformedRequest(400, f"Content-Length is {text[:40]!r}, not a decimal number")
    length = int(text)
    if length > BODY_MAX:
        raise MalformedRequest(413, f"its body has {length} bytes, and at most {BODY_MAX} are read")
    return length


def _decoded(header: str, value: str) -> str:
    def byte(escape: re.Match[bytes]) -> bytes:
        if escape[1] is None:
            raise MalformedRequest(400, f"header {header} has a % without two hexadecimal digits")
        return bytes.fromhex(escape[1].decode())

    raw = _ESCAPE.sub(byte, value.encode("ascii"))
    if b"\0" in raw:
        raise MalformedRequest(400, f"header {header} holds a NUL, which no environment variable can")
    return raw.decode("utf-8", "surrogateescape")
