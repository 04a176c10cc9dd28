"""A request and its answer pass between shim and agent byte for byte, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import InvalidConfig, Unavailable, UnknownProtocol, UserspaceError
from userspace_cni.cni import protocol
from userspace_cni.cni.protocol import (
    MalformedRequest,
    environment,
    parse_head,
    read_reply,
    read_request,
    request_bytes,
)

VALUES = st.binary(min_size=1, max_size=200).filter(lambda raw: b"\0" not in raw)
LINES = b"POST /api/v1/add HTTP/1.1\r\nUserspace-Cni-Protocol: 1\r\n"


def head(*lines: bytes, first: bytes = b"POST /api/v1/add HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines]) + protocol.HEAD_END


def status_of(raw: bytes) -> int:
    """The status by which a head is refused."""
    with pytest.raises(MalformedRequest) as caught:
        parse_head(raw)
    return caught.value.status


@given(st.dictionaries(st.sampled_from(sorted(protocol.VARIABLES)), VALUES), st.binary(max_size=500))
def test_every_byte_of_the_variables_and_of_stdin_arrives(variables: dict[str, bytes], stdin: bytes) -> None:
    """Every byte that an environment can have is read back."""
    environ = {name: raw.decode("utf-8", "surrogateescape") for name, raw in variables.items()}

    request, body = read_request(request_bytes("/api/v1/del", environ, stdin))

    assert environment(request) == {"CNI_COMMAND": "DEL"} | environ
    assert body == stdin


@given(st.binary(max_size=300))
def test_a_body_of_any_bytes_is_answered_whole(body: bytes) -> None:
    """An answer is read back with its status and body."""
    answer = read_reply(protocol.reply(500, body))
    assert (answer.status, answer.body, answer.headers["content-type"]) == (500, body, "application/json")


@given(st.binary(max_size=400))
def test_no_bytes_make_the_parsers_fail_otherwise(raw: bytes) -> None:
    """Arbitrary input is refused with an error of ours or read."""
    for first in (raw, b"POST /api/v1/add HTTP/1.1\r\n" + raw):
        with pytest.raises((MalformedRequest, UnknownProtocol)):
            environment(read_request(first + protocol.HEAD_END)[0])
    with pytest.raises(Unavailable):
        read_reply(raw)


def test_a_request_as_the_shim_writes_it() -> None:
    """The header names, their order and the encoding are part of the protocol."""
    raw = request_bytes("/api/v1/add", {"CNI_CONTAINERID": "c0", "CNI_ARGS": "A=b c;D=é", "PATH": "/bin", "CNI_PATH": ""}, b"{}")
    assert raw == (
        b"POST /api/v1/add HTTP/1.1\r\nHost: userspace-cni\r\nUserspace-Cni-Protocol: 1\r\nCni-Containerid: c0\r\n"
        b"Cni-Args: A=b%20c;D=%C3%A9\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )


def test_headers_match_without_regard_to_case() -> None:
    """HTTP's field names have no case, and their values lose the white space around them."""
    parsed = parse_head(head(b"CNI-ifname:  net1\t ", b"userspace-cni-PROTOCOL: 1"))
    assert parsed.headers["Cni-Ifname"] == "net1"
    assert "cni-IFNAME" in parsed.headers
    assert environment(parsed) == {"CNI_COMMAND": "ADD", "CNI_IFNAME": "net1"}


def test_headers_of_a_later_shim_are_ignored() -> None:
    """An unknown Cni-* header is no variable, and no error."""
    assert environment(parse_head(head(b"Userspace-Cni-Protocol: 1", b"Cni-Next-Thing: 1"))) == {"CNI_COMMAND": "ADD"}


def test_an_empty_variable_is_unset() -> None:
    """Empty means unset, as everywhere in CNI."""
    assert environment(parse_head(head(b"Userspace-Cni-Protocol: 1", b"Cni-Netns:"))) == {"CNI_COMMAND": "ADD"}


def test_the_spools_headers_travel_as_they_are() -> None:
    """Headers beside the variables are written unchanged and can be read."""
    request, _ = read_request(request_bytes("/api/v1/del", {}, extra={"Called-Boot-Id": "a-b"}))
    assert request.headers["called-boot-id"] == "a-b"


@pytest.mark.parametrize(
    ("target", "verb"),
    [
        ("/api/v1/add", "ADD"),
        ("/api/v1/del", "DEL"),
        ("/api/v1/check", "CHECK"),
        ("/api/v1/gc", "GC"),
        ("/api/v1/status", "STATUS"),
    ],
)
def test_the_target_is_the_verb(target: str, verb: str) -> None:
    """Five targets are verbs, for POST alone."""
    assert environment(read_request(request_bytes(target, {}))[0])["CNI_COMMAND"] == verb
    assert read_request(request_bytes(target, {}, method="GET"))[0].verb is None


@pytest.mark.parametrize("target", ["/api/v1/version", "/api/v1/ADD", "/api/v1/add/", "/api/v1/add?x=1", "/api/v2/add", "/"])
def test_any_other_target_is_no_verb(target: str) -> None:
    """A target that is nearly a verb is 404."""
    with pytest.raises(MalformedRequest) as caught:
        environment(read_request(request_bytes(target, {}))[0])
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "line", [b"Userspace-Cni-Protocol: 2", b"Userspace-Cni-Protocol: 01", b"Userspace-Cni-Protocol:", b"X: 1"]
)
def test_another_protocol_is_refused_by_both_its_names(line: bytes) -> None:
    """An unknown or missing protocol is code 111, and the message has both versions."""
    with pytest.raises(UnknownProtocol) as caught:
        environment(parse_head(head(line)))
    status, body = protocol.fault(caught.value)
    assert status == 400
    assert json.loads(body)["code"] == 111
    assert "this agent 1" in caught.value.message
    assert "'2'" in caught.value.message or line != b"Userspace-Cni-Protocol: 2"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n\r\n",
        head(first=b"GET /"),
        head(first=b"GET / HTTP/1.0"),
        head(first=b"GET / HTTP/1.1 "),
        head(first=b"GET  / HTTP/1.1"),
        head(first=b"GET http://x/ HTTP/1.1"),
        head(first=b"G\xc3\xa9T / HTTP/1.1"),
        head(first=b"GET /\x01 HTTP/1.1"),
        head(b"Host: a\nCni-Netns: b"),
        head(b"Host: a\rCni-Netns: b"),
        head(b"Cni-Args: a", b" folded"),
        head(b"Cni-Args: a", b"\tfolded"),
        head(b"no colon"),
        head(b": no name"),
        head(b"Cni-Args : space before the colon"),
        head(b"Cni-Args: \x00"),
        head(b"Cni-Args: \xff"),
        head(b"Cni-Args: a", b"CNI-ARGS: b"),
        head(b"Content-Length: 1", b"Content-Length: 1"),
        head(b"Content-Length: -1"),
        head(b"Content-Length: +1"),
        head(b"Content-Length: 0x1"),
        head(b"Content-Length: 1, 1"),
        head(b"Content-Length:"),
        head(b"Content-Length: \xb2"),
        head(b"Content-Length: " + b"9" * 5000),
        head(b"Transfer-Encoding: chunked"),
    ],
)
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    """Every ambiguous request is 400."""
    assert status_of(raw) == 400


def test_the_limits_are_what_the_protocol_says() -> None:
    """64 header lines, a head of 256 KiB and a body of 4 MiB are accepted; one more is refused by its own status."""
    lines = [b"X-%d: 1" % number for number in range(protocol.HEADER_LINES_MAX)]
    assert len(parse_head(head(*lines)).headers) == 64
    assert status_of(head(*lines, b"Y: 1")) == 431
    filled = head(b"Cni-Args: " + b"a" * (protocol.HEAD_MAX - len(head(b"Cni-Args: "))))
    assert len(parse_head(filled).headers["cni-args"]) > 200_000
    assert status_of(b"P" + filled) == 431
    assert parse_head(head(b"Content-Length: %d" % protocol.BODY_MAX)).length == protocol.BODY_MAX
    assert status_of(head(b"Content-Length: %d" % (protocol.BODY_MAX + 1))) == 413


@pytest.mark.parametrize("value", [b"%", b"%4", b"%zz", b"a%0", b"%%20", b"%+1", b"%00", b"a%00b"])
def test_broken_percent_encoding_and_nul_are_refused(value: bytes) -> None:
    """A value that cannot have been written by an encoder, or be an environment's, is 400."""
    with pytest.raises(MalformedRequest) as caught:
        environment(parse_head(head(b"Userspace-Cni-Protocol: 1", b"Cni-Args: " + value)))
    assert caught.value.status == 400
    assert "Cni-Args" in str(caught.value)


@pytest.mark.parametrize("raw", [LINES, LINES + b"Content-Length: 2\r\n\r\n{", LINES + b"Content-Length: 1\r\n\r\n{}"])
def test_a_stored_request_is_whole_or_refused(raw: bytes) -> None:
    """A spool entry that was cut short, or has bytes to spare, is no request."""
    with pytest.raises(MalformedRequest):
        read_request(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{",
        b"HTTP/2 200\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_half_an_answer_is_none(raw: bytes) -> None:
    """A client does not accept a truncated answer as success."""
    with pytest.raises(Unavailable):
        read_reply(raw)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (MalformedRequest(400, "x"), 400, 111),
        (MalformedRequest(408, "x"), 408, 11),
        (MalformedRequest(413, "x"), 413, 5),
        (MalformedRequest(431, "x"), 431, 4),
        (UnknownProtocol("x"), 400, 111),
        (Unavailable("x"), 503, 11),
        (InvalidConfig("x"), 500, 7),
    ],
)
def test_a_fault_is_an_error_of_the_plugin(error: UserspaceError, status: int, code: int) -> None:
    """Every refusal has an HTTP status and the object that a runtime prints."""
    answered, body = protocol.fault(error)
    assert answered == status
    assert {"cniVersion", "code", "msg"} <= json.loads(body).keys()
    assert json.loads(body)["code"] == code


def test_a_fault_never_reads_as_a_del_that_is_done() -> None:
    """No refusal holds the words by which runtimes take a failed DEL for success."""
    _, body = protocol.fault(MalformedRequest(404, "POST /api/v1/not found is no verb: no such file or directory"))
    assert b"not found" not in body
    assert b"no such file" not in body


# -- warnings -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=50).filter(lambda text: "\0" not in text), max_size=protocol.WARNINGS_MAX))
def test_warnings_arrive_as_they_are(warnings: list[str]) -> None:
    """What is warned of is read back, in its order, beside an answer's body, which is not touched."""
    answer = read_reply(protocol.reply(200, b"{}", warnings=warnings))
    assert (answer.status, answer.body) == (200, b"{}")
    assert protocol.warnings_of(answer.headers) == warnings


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=4000), max_size=40))
def test_warnings_are_bounded_in_number_and_size(warnings: list[str]) -> None:
    """Any text, with halves of surrogate pairs and NUL, makes a head that every shim accepts.

    The last warning says that there were more.
    """
    raw = protocol.reply(500, b"{}", warnings=warnings)
    assert raw.index(protocol.HEAD_END) < 64 << 10
    told = protocol.warnings_of(read_reply(raw).headers)
    assert len(told) <= min(len(warnings), protocol.WARNINGS_MAX)
    assert len(warnings) <= protocol.WARNINGS_MAX or "see the agent's log" in told[-1]
    assert all(len(text.encode("utf-8", "surrogateescape")) <= protocol.WARNING_MAX for text in told)


def test_how_warnings_travel() -> None:
    """The header's name, its number and the encoding are part of the protocol; an answer without any is as it always was."""
    assert protocol.reply(200, b"{}", warnings=["a key's é", "b"]) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nUserspace-Cni-Warning-1: a%20key%27s%20%C3%A9\r\n"
        b"Userspace-Cni-Warning-2: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert protocol.reply(200, b"{}") == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )


@pytest.mark.parametrize("value", ["%", "%4", "%zz", "%00", ""])
def test_a_warning_that_is_none_is_left_out(value: str) -> None:
    """An invalid warning does not make the answer be refused."""
    headers = protocol.Headers({f"{protocol.WARNING_HEADER}1": value, f"{protocol.WARNING_HEADER}3": "c"})
    assert protocol.warnings_of(headers) == ["c"]
