"""A collector of traces that a test looks into: it takes OTLP over HTTP, or behaves in a way that no collector should."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Manner = Literal["good", "silent", "endless", "dripping", "away", "busy", "refusing", "partial", "garbage"]
MANNERS: Final[tuple[Manner, ...]] = ("silent", "endless", "dripping", "away", "busy", "refusing", "partial", "garbage")
_STATUS: Final = {"busy": 503, "refusing": 400}
_CHUNK: Final = b"x" * 65536


class TraceCollector:
    """A running one. `manner` may be changed meanwhile; `requests`: what came in whole, decoded."""

    def __init__(self, manner: Manner, scheme: str) -> None:
        self.manner = manner
        self._scheme = scheme
        self.asked = 0
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[tuple[str, str]] = []
        self.over = threading.Event()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def spans(self) -> list[Span]:
        return [
            span for request in self.requests for of in request.resource_spans for scope in of.scope_spans for span in scope.spans
        ]

    def calls(self, verb: str) -> list[Span]:
        """The spans of calls of this verb."""
        return [span for span in self.spans() if span.name == f"CNI {verb}"]

    def below(self, parent: Span) -> list[Span]:
        return [span for span in self.spans() if span.parent_span_id == parent.span_id]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        manner = self.manner
        if manner == "away":
            handler.connection.close()
            return
        if manner == "silent":
            self.over.wait()
            return
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if manner in ("endless", "dripping"):
            self.requests.append(ExportTraceServiceRequest.FromString(body))
            self._go_on(handler, manner)
            return
        handler.send_response(_STATUS.get(manner, 200))
        if manner == "partial":
            told = ExportTraceServiceResponse()
            told.partial_success.rejected_spans, told.partial_success.error_message = 1, "no room"
            content = told.SerializeToString()
        else:
            content = b"\xff" * 100 if manner == "garbage" else b""
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
        if manner in ("good", "partial", "garbage"):
            self.paths.append((handler.path, handler.headers["Content-Type"]))
            self.requests.append(ExportTraceServiceRequest.FromString(body))

    def _go_on(self, handler: BaseHTTPRequestHandler, manner: Manner) -> None:
        """Answer until the other side has gone: with as much as it takes, or with a byte now and then."""
        head = b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if manner == "endless" else b"X-Slow: ")
        with suppress(OSError):
            handler.wfile.write(head)
            while not self.over.wait(0 if manner == "endless" else 0.05):
                handler.wfile.write(_CHUNK if manner == "endless" else b"x")


def attributes(pairs: Any) -> dict[str, str | int]:
    """The attributes of a span or a resource."""
    found: dict[str, str | int] = {}
    for pair in pairs:
        assert isinstance(pair, KeyValue)
        value = pair.value
        found[pair.key] = value.int_value if value.WhichOneof("value") == "int_value" else value.string_value
    return found


@contextmanager
def collecting(manner: Manner = "good", certificate: Path | None = None) -> Iterator[TraceCollector]:
    """A collector until the end of the block; with a certificate, whose key.pem is beside it, by TLS."""
    collector = TraceCollector(manner, "https" if certificate else "http")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError, ValueError):
                collector.answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        collector.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.over.set()
            server.shutdown()
            thread.join()
