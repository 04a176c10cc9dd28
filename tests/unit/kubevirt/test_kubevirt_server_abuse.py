"""What a caller may send by mistake is refused by name. The next call is answered."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from kubevirt.definition import DOMAIN_MAX, VMI_MARKS_MAX, VMI_MAX
from kubevirt.protocol import info_pb2
from tests.lab.guests.hooks import INFO_S, Callback, HookError, HookManager, Sidecar, call, dialled, vmi

HUGE = """<domain type='kvm'><name>default_vm1</name><memory unit='KiB'>1048576</memory>
  <memoryBacking><hugepages/><source type='memfd'/></memoryBacking><devices/></domain>"""
VMI = vmi(net1="vhostuser")
CELL = "<cell id='0' cpus='0' memory='1048576' unit='KiB' memAccess='private'/>"
RESET = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01"
"""HTTP/2's frame RST_STREAM for stream 1."""
DTD = "<!DOCTYPE domain [<!ENTITY a 'b'>]>" + HUGE


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def half_a_call(method: str) -> bytes:
    """The beginning of a connection, a call's headers, and the first bytes of a message that is announced with 4096."""
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items()
    )
    begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    return begin + frame(1, 4, 1, headers) + frame(0, 0, 1, b"\0" + (4096).to_bytes(4) + b"x" * 100)


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with TemporaryDirectory(prefix="uk-") as directory, Sidecar(Path(directory)) as started:
        yield started


@pytest.fixture
def callback(sidecar: Sidecar) -> Iterator[Callback]:
    """Calls the sidecar. After the test the same process must still answer."""
    pid = sidecar.pid
    (callback,) = HookManager(sidecar.hooks.parent).collect().callbacks
    yield callback
    assert b"vhostuser" in callback.on_define_domain(HUGE, VMI)
    assert sidecar.pid == pid


@pytest.mark.parametrize(
    ("domain", "guest", "told"),
    [
        (b"\xff\xfe<domain/>", VMI, "VM default/vm1, networks net1: the domain XML is not UTF-8"),
        ("", VMI, "VM default/vm1, networks net1: "),
        ("<domain>", VMI, "VM default/vm1, networks net1: "),
        (DTD, VMI, "VM default/vm1, networks net1: "),
        ("<domain>" + "<a>" * 100_000 + "</a>" * 100_000 + "</domain>", VMI, f"bytes and {DOMAIN_MAX} are read at most"),
        (HUGE, b"", "VM unknown: the VMI is not JSON"),
        (HUGE, b"\xff{}", "VM unknown: the VMI is not JSON"),
        (HUGE, "[]", "VM unknown: the VMI is a list"),
        (HUGE, "[" * 20_000, "VM unknown: the VMI is not JSON"),
        (HUGE, {"metadata": {"name": "x"}}, "no metadata.namespace"),
        (HUGE, b" " * VMI_MAX + b"{}", f"bytes and {VMI_MAX} are read at most"),
        (HUGE, b"[" + b"{}," * (VMI_MARKS_MAX // 2) + b"{}]", f"commas and {VMI_MARKS_MAX} are read at most"),
        ("<domain/>", VMI, "VM default/vm1, networks net1: the definition has no <devices> (bad-input); "),
    ],
)
def test_what_can_not_be_read(callback: Callback, domain: str | bytes, guest: dict[str, object] | bytes, told: str) -> None:
    """Unreadable input is INVALID_ARGUMENT, with the VM as far as it is known, the trap and a remedy."""
    with pytest.raises(HookError) as refused:
        callback.on_define_domain(domain, guest)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert told in refused.value.details
    assert "(bad-input); " in refused.value.details


def test_what_would_not_work(callback: Callback) -> None:
    """A definition with which no VM can start is FAILED_PRECONDITION, with VM, network, trap and remedy."""
    private = HUGE.replace("<devices/>", f"<vcpu>1</vcpu><cpu><numa>{CELL}</numa></cpu><devices/>")
    with pytest.raises(HookError) as refused:
        callback.on_define_domain(private, VMI)
    assert refused.value.code == "FAILED_PRECONDITION"
    assert refused.value.details.startswith("VM default/vm1, networks net1: ")
    assert refused.value.details.count("default/vm1") == 1
    assert "(private-memory); " in refused.value.details


def test_a_message_over_the_limit(callback: Callback) -> None:
    """A message that is larger than any definition and VMI together is refused before it is in memory."""
    with pytest.raises(HookError) as refused:
        callback.on_define_domain(b"x" * (2 << 20), VMI)
    assert refused.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "junk", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 70_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64]
)
def test_a_peer_that_speaks_something_else(callback: Callback, junk: bytes) -> None:
    """Bytes that are not HTTP/2, and peers that send nothing and stay, do not disturb the next caller."""
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as peer:
        silent.connect(str(callback.path))
        peer.connect(str(callback.path))
        try:
            peer.sendall(junk)
        except BrokenPipeError:
            assert junk
        assert b"vhostuser" in callback.on_define_domain(HUGE, VMI)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("/kubevirt.hooks.v1alpha4.Callbacks/OnDefineDomain", grpc.StatusCode.UNIMPLEMENTED),
        ("/kubevirt.hooks.v1alpha1.Callbacks/Shutdown", grpc.StatusCode.UNIMPLEMENTED),
        ("/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain", grpc.StatusCode.INTERNAL),
    ],
)
def test_a_call_that_is_none(callback: Callback, method: str, code: grpc.StatusCode) -> None:
    """An unknown method and a message that is not protobuf get gRPC's own errors."""
    with dialled(callback.path) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(b"\xff\xff\xff", timeout=60)
        assert refused.value.code() == code


def test_calls_that_never_come_whole(callback: Callback) -> None:
    """However many calls of any kind are half sent, Info is answered in time, the calls are ended, and definitions are made."""
    methods = ("v1alpha3.Callbacks/OnDefineDomain", "v1alpha3.Callbacks/Shutdown", "info.Info/Info")
    with ExitStack() as peers:
        for number in range(150):
            peer = peers.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(str(callback.path))
            peer.sendall(half_a_call(f"/kubevirt.hooks.{methods[0 if number < 120 else number % 3]}"))
        for _ in range(3):
            with dialled(callback.path) as channel:
                assert call(channel, info_pb2, "Info.Info", info_pb2.InfoParams(), INFO_S).versions
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(callback.path))
        peer.sendall(half_a_call(f"/kubevirt.hooks.{methods[0]}"))
        peer.settimeout(60)
        received = b""
        while RESET not in received:
            received += peer.recv(4096)
            assert received


def test_callers_that_hang_up(callback: Callback) -> None:
    """Many callers that end during a call leave no connection and no thread behind that disturbs others."""
    for _ in range(10):
        with dialled(callback.path) as channel:
            ask = channel.unary_unary("/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain")
            for _ in range(5):
                ask.future(b"", timeout=60).cancel()
    assert b"vhostuser" in callback.on_define_domain(HUGE, VMI)


def test_the_log_stays_readable(sidecar: Sidecar, callback: Callback) -> None:
    """Each refusal is one line of the log, with the trap and the remedy."""
    with pytest.raises(HookError):
        callback.on_define_domain("<domain\nx", VMI)
    assert [line for line in sidecar.log.splitlines() if not re.match(r"time=\S+Z level=", line)] == []
    lines = [line for line in sidecar.log.splitlines() if " level=error " in line]
    assert "vm=default/vm1" in lines[-1]
    assert "trap=bad-input" in lines[-1]
    assert "remedy=" in lines[-1]
