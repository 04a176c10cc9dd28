"""How OVSDB's remotes are reached: `unix:PATH`, `tcp:HOST:PORT`, `ssl:HOST:PORT`.

ovs.stream has one set of files for TLS in a process; here each remote has its own, because a node's agent and OVN's databases are
of different authorities. It does not return why a connection failed, either. And ovs.jsonrpc asks a stream for 4 kB at a time,
where a message about the ports of a burst has 60.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Final

import ovs.stream

from userspace_cni.base.deadline import Deadline
from userspace_cni.ovsdb.database import Tls

_SECONDS: Final = 0.25
"""How long a look at a remote that has just failed may take."""
_RECORD: Final = 1 << 14
_READ: Final = 1 << 16
_FILES: Final[dict[str, Tls]] = {}
_LOCK: Final = threading.Lock()


class _LargeReads(ovs.stream.Stream):  # type: ignore[misc]
    """A stream that gives all that has come, up to `_READ` bytes, where fewer are asked for."""

    def recv(self, n: int) -> tuple[int, Any]:
        code, data = super().recv(max(n, _READ) if n else 0)
        return code, data


class UnixStream(_LargeReads, ovs.stream.UnixStream):  # type: ignore[misc]
    """As the base class."""


class TcpStream(_LargeReads, ovs.stream.TCPStream):  # type: ignore[misc]
    """As the base class."""


class TlsStream(ovs.stream.SSLStream):  # type: ignore[misc]
    """As the base class, with the files of the remote."""

    @staticmethod
    def _open(suffix: str, dscp: int) -> tuple[int, Any]:
        files = _FILES.get(suffix)
        if files is None:
            return errno.ENOKEY, None
        try:
            _context(files)  # a file that is missing, or is no key: the base class would leave its socket open
            with _LOCK:
                ovs.stream.Stream.ssl_set_private_key_file(files.key)
                ovs.stream.Stream.ssl_set_certificate_file(files.certificate)
                ovs.stream.Stream.ssl_set_ca_cert_file(files.authority)
                code, opened = ovs.stream.SSLStream._open(suffix, dscp)  # noqa: SLF001 - there is no other way in
        except ssl.SSLError:  # whose number is OpenSSL's own
            return errno.EPROTO, None
        except OSError as error:
            return error.errno or errno.EPROTO, None
        if code and opened is not None:
            opened.close()
        return code, opened


ovs.stream.Stream.register_method("unix", UnixStream)
ovs.stream.Stream.register_method("tcp", TcpStream)
ovs.stream.Stream.register_method("ssl", TlsStream)


def trust(remote: str, files: Tls | None) -> None:
    """Use these files, or none, for this remote from now on."""
    _, _, address = remote.partition(":")
    if files is None:
        _FILES.pop(address, None)
    else:
        _FILES[address] = files


def why_refused(remote: str) -> str:
    """Why a connection has just failed, by another one."""
    kind, _, address = remote.partition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_SECONDS)
                probe.connect(address)
        else:
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as probe:
                if kind == "ssl":
                    _shake_hands(probe, _FILES.get(address))
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return "it closed the connection, or does not speak OVSDB"


def _shake_hands(probe: socket.socket, files: Tls | None) -> None:
    if files is None:
        raise ValueError("there is no key and certificate for it")
    # not wrap_socket(), which takes the descriptor and does not close it where the peer has reset the connection by then
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls, done, deadline = _context(files).wrap_bio(incoming, outgoing), False, Deadline.after(_SECONDS)
    while not done:
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            done = True
        if not deadline.remaining():  # the socket's own time begins anew with each byte
            raise TimeoutError("the TLS handshake does not end")
        probe.sendall(outgoing.read())
        if not done and (data := probe.recv(_RECORD)):
            incoming.write(data)
        elif not done:
            incoming.write_eof()


def _context(files: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as ovs.stream, and as OVS: certificates name no hosts
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key, password=bytes)  # of an encrypted key OpenSSL would ask a terminal
    return context
