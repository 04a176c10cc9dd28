"""A kube-apiserver for tests: a real HTTP server in a thread, with the rules of the real one for what it serves.

The rules that matter to a writer of annotations, each as the real server has it: every write gives a new resourceVersion; a write
that carries an old one, or another pod's UID, is answered 409; a write to /status takes `status` and the metadata and ignores
`spec`, and a PUT without `status` wipes it; an object PATCH is a merge patch. Lists are selected and paged; a watch goes on from
a version, sends bookmarks, ends after timeoutSeconds, and is answered 410 when the version is forgotten. Custom resources, Nodes
and Leases (tests/lab/kube/objectstore.py) have server-side apply, too. Faults are injected per verb. Nothing in here knows the
code under test.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.lab.kube.eventstore import EventStore
from tests.lab.kube.objectstore import BUILT_IN, Kind, ObjectStore, Write, defined
from tests.lab.kube.podstore import PodStore
from tests.lab.kube.store import Refusal, Selection, Store, merged

TOKEN = "lab-token"
WATCH_S = 1800.0
"""How long a watch lasts without timeoutSeconds."""

_POD = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)(?P<status>/status)?")
_APPLY = "application/apply-patch+yaml"
_EVENTS = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/events(?:/(?P<name>[^/]+))?")
_OBJECTS = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?P<status>/status)?)?"
)


@dataclass
class Fault:
    """What happens to the next `times` requests (None: to all) of `method` ("" for any), instead of an answer or before it.

    `method` is GET, LIST, WATCH, PATCH, PUT, POST, DELETE or EVENT, as `Request.verb` has it; `about`: a part of the path, as
    "/subnets", of the only requests that are met. Exactly one of: `status` is answered; the connection is closed; nothing is sent
    for `hang` seconds, and then the connection is closed; the answer is sent at a byte per `drip` seconds; the body of the answer
    is `cut` after so many bytes and the connection closed; `garbage` is sent as the body.
    """

    method: str = ""
    status: int = 0
    close: bool = False
    hang: float = 0.0
    drip: float = 0.0
    times: int | None = None
    cut: int | None = None
    garbage: bytes = b""
    about: str = ""


@dataclass(frozen=True)
class Request:
    """A request as it came; `body` is its decoded JSON, None without one."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def verb(self) -> str:
        """The method, with GET told apart: GET of one object, LIST, WATCH. EVENT is every request about Events."""
        parts = urlsplit(self.path)
        if _EVENTS.fullmatch(parts.path):
            return "EVENT"
        match = _OBJECTS.fullmatch(parts.path)
        if self.method != "GET" or not match or match["name"]:
            return self.method
        return "WATCH" if parse_qs(parts.query).get("watch", [""])[0] in ("1", "true") else "LIST"

    def option(self, name: str) -> str:
        """A parameter of the query; "" when it is missing."""
        return parse_qs(urlsplit(self.path).query).get(name, [""])[0]


@dataclass(eq=False)
class _Open:
    """A watch that is being served: its connection, and lines to be sent beside its events."""

    connection: socket.socket
    lines: list[bytes] = field(default_factory=list)


class ApiServer:
    """Pods behind HTTP on a port of 127.0.0.1. `token`: the only bearer token let in. `tls`: a directory for a certificate.

    `faults` may be appended to and cleared at any time; `requests` lists what came in. `bookmark_s`: how often a watch gets a
    bookmark; `watch_s`: how long it lasts at most, whatever was asked for. `gone_in_stream`: a watch of a forgotten version is
    answered by an event (what the real server mostly does), else by the status 410. `silent`: open watches are sent nothing, and
    do not end.
    """

    def __init__(self, token: str = TOKEN, tls: Path | None = None) -> None:
        self.token = token
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.bookmark_s = 60.0
        self.watch_s = WATCH_S
        self.gone_in_stream = True
        self.silent = False
        self.asks_certificate = False
        self.store = PodStore()
        self.events = EventStore()
        self._stores: dict[str, ObjectStore] = {kind.title: ObjectStore(kind) for kind in BUILT_IN}
        self._guard = threading.Lock()
        self._open: list[_Open] = []
        self._certificate = make_certificate(tls) if tls else None
        self._http: _Http | None = None
        self._port = 0
        self._stopping = threading.Event()

    def start(self) -> Self:
        """Listen and serve; returns itself. After `stop` it serves the same pods again, on the same port."""
        self._stopping.clear()
        self._http = _Http(self, self._certificate, self._port)
        self._port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop serving, end hanging requests and close every connection. A second call does nothing."""
        self._stopping.set()
        if self._http is not None:
            self._http.shutdown()
            self._http.close_connections()
            self._http.server_close()
            self._http = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        assert self._http is not None
        return self._port

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path | None:
        """The certificate that clients have to trust; None without TLS."""
        return self._certificate

    def kubeconfig(self, directory: Path, user: Mapping[str, Any] | None = None) -> str:
        """Write a kubeconfig for this server to `directory`; the file's path. `user`: how to log in; default the token."""
        cluster: dict[str, Any] = {"server": self.url}
        if self._certificate:
            cluster["certificate-authority"] = str(self._certificate)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "node", "user": dict(user) if user is not None else {"token": self.token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "node"}}],
            "current-context": "lab",
        }
        path = directory / "kubeconfig"
        path.touch(0o600)
        path.write_text(json.dumps(config))
        return str(path)

    def add_pod(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace a pod, with what the server sets (uid, resourceVersion, namespace) when absent. Returns a copy."""
        return self.store.add(pod)

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """A copy of the pod as it is now; KeyError when there is none."""
        return self.store.get(namespace, name)

    def annotations(self, namespace: str, name: str) -> dict[str, str]:
        return dict(self.pod(namespace, name)["metadata"].get("annotations") or {})

    def change(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into the pod, as another client of the API would."""
        self.store.merge(namespace, name, patch)

    def remove_pod(self, namespace: str, name: str) -> None:
        self.store.remove(namespace, name)

    def define(self, definition: Mapping[str, Any]) -> ObjectStore:
        """Serve the kind of a CustomResourceDefinition from now on, which was 404 before; returns its objects."""
        return self.serve(defined(definition))

    def serve(self, kind: Kind) -> ObjectStore:
        """Serve the kind from now on, which was 404 before; returns its objects."""
        self._stores[kind.title] = ObjectStore(kind)
        return self._stores[kind.title]

    def objects(self, title: str) -> ObjectStore:
        """The objects of a resource, as "nodes" or "subnets.userspace-cni.io"; KeyError for one that is not defined."""
        return self._stores[title]

    def stores(self) -> list[ObjectStore]:
        """The objects of each resource that is served beside pods and Events."""
        return list(self._stores.values())

    def add(self, thing: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
        """Create an object, or replace it whatever its version, as a user does; with its status. Returns a copy."""
        [store] = [
            each for each in self._stores.values() if (each.api_version, each.kind) == (thing["apiVersion"], thing["kind"])
        ]
        write = Write("kubectl", strict=True)
        name = thing["metadata"]["name"]
        with store.changed:
            if (namespace, name) in store.things:
                version = store.read(namespace, name)["metadata"]["resourceVersion"]
                metadata = {**thing["metadata"], "resourceVersion": version}
                made = store.replace(namespace, name, {**thing, "metadata": metadata}, write)
            else:
                made = store.create(namespace, thing, write)
            if "status" in thing and store.of.has_status:
                made = store.patch(namespace, name, {"status": thing["status"]}, Write("kubectl", "status", strict=True))
        return made

    def count(self, verb: str) -> int:
        """How many requests of `verb` (as `Request.verb` has it) came in."""
        return sum(request.verb == verb for request in self.requests)

    @property
    def watches(self) -> int:
        with self._guard:
            return len(self._open)

    def close_watches(self) -> None:
        """Close the connections of all open watches, also in the middle of a line."""
        with self._guard:
            for watch in self._open:
                _shut(watch.connection)

    def say(self, line: bytes) -> None:
        """Send a line of the test's own to all open watches."""
        with self._guard:
            for watch in self._open:
                watch.lines.append(line)
        for store in (self.store, *self._stores.values()):
            with store.changed:
                store.changed.notify_all()

    def answer(self, request: Request) -> dict[str, Any]:
        """The object that answers `request`, which is no watch. Raises Refusal."""
        path = urlsplit(request.path).path
        if request.option("dryRun") not in ("", "All"):
            raise Refusal(400, "BadRequest", f"dryRun: Invalid value: {request.option('dryRun')!r}")
        if request.option("dryRun") and (_POD.fullmatch(path) or _EVENTS.fullmatch(path)):
            raise Refusal(501, "NotImplemented", "this server makes no dry runs of pods and Events")
        if match := _POD.fullmatch(path):
            return self._one(request, match["namespace"], match["name"], bool(match["status"]))
        if match := _EVENTS.fullmatch(path):
            return self._event(request, match["namespace"], match["name"])
        store = self.store_of(request)
        if request.verb == "LIST":
            return store.page(selection_of(request, store), int(request.option("limit") or 0), request.option("continue"))
        if isinstance(store, ObjectStore):
            return _dry_run(store, request) if request.option("dryRun") else _write(store, request)
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def store_of(self, request: Request) -> Store:
        """What a request is about. Raises Refusal for a resource that is not served."""
        match = _OBJECTS.fullmatch(urlsplit(request.path).path)
        title = f"{match['plural']}.{match['group']}" if match and match["group"] else match["plural"] if match else ""
        store = self.store if title == "pods" else self._stores.get(title)
        if store is None or (isinstance(store, ObjectStore) and f"/{store.of.version}/" not in request.path):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return store

    def fault(self, request: Request) -> Fault | None:
        """The fault that meets a request; one with a number of times is used up."""
        with self._guard:
            for fault in self.faults:
                if fault.method in ("", request.verb) and fault.about in request.path and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than the server lives."""
        self._stopping.wait(seconds)

    def serve_watch(self, request: Request, connection: socket.socket, send: Callable[[bytes], None]) -> None:
        """Send the lines of a watch until its time is up, its version is forgotten or the server stops."""
        watch = _Open(connection)
        with self._guard:
            self._open.append(watch)
        try:
            self._follow(request, watch, send)
        finally:
            with self._guard:
                self._open.remove(watch)

    def _follow(self, request: Request, watch: _Open, send: Callable[[bytes], None]) -> None:
        store = self.store_of(request)
        selection, version = selection_of(request, store), int(request.option("resourceVersion") or 0)
        end = time.monotonic() + min(float(request.option("timeoutSeconds") or self.watch_s), self.watch_s)
        bookmarks = request.option("allowWatchBookmarks") in ("1", "true")
        bookmark_at = time.monotonic() + self.bookmark_s
        peer = select.poll()
        peer.register(watch.connection, select.POLLRDHUP)
        while not self._stopping.is_set() and (self.silent or time.monotonic() < end):
            with store.changed:
                if self.silent or not (watch.lines or version < store.version):
                    store.changed.wait(min(0.05, self.bookmark_s))
                if peer.poll(0):
                    raise ConnectionAbortedError("the peer has closed its end")
                lines, watch.lines[:] = list(watch.lines), []
                try:
                    changes = [] if self.silent else store.since(version) if version else store.all()
                except Refusal as refusal:
                    send(_line({"type": "ERROR", "object": refusal.body()}))
                    return
                version = version if self.silent else store.version
            lines += [_line(event) for change in changes if (event := selection.event(change))]
            if bookmarks and not self.silent and time.monotonic() >= bookmark_at:
                bookmark_at = time.monotonic() + self.bookmark_s
                lines.append(_bookmark(store, version))
            for line in lines:
                send(line)
        if bookmarks and not self._stopping.is_set():
            send(_bookmark(store, version))

    def _one(self, request: Request, namespace: str, name: str, status: bool) -> dict[str, Any]:
        with self.store.changed:
            try:
                old = self.store.get(namespace, name)
            except KeyError:
                raise Refusal(404, "NotFound", f'pods "{name}" not found') from None
            if request.method == "GET":
                return old
            if request.method == "DELETE":
                return self._delete(request, old)
            if not isinstance(request.body, dict):
                raise Refusal(400, "BadRequest", "the body is not an object")
            if request.method == "PUT":
                return self.store.write(old, request.body, request.body, status)
            if request.method == "PATCH":
                kind = request.headers.get("Content-Type", "")
                if kind not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
                    raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
                return self.store.write(old, merged(old, request.body), request.body, status)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _event(self, request: Request, namespace: str, name: str | None) -> dict[str, Any]:
        """Create or change an Event, as for an account that has neither get nor list."""
        if not isinstance(request.body, dict):
            raise Refusal(403, "Forbidden", 'User "node" cannot read resource "events"')
        if request.method == "POST" and name is None:
            return self.events.create(namespace, request.body)
        if request.method == "PATCH" and name is not None:
            return self.events.patch(namespace, name, request.body)
        raise Refusal(403, "Forbidden", 'User "node" cannot do this with resource "events"')

    def _delete(self, request: Request, old: dict[str, Any]) -> dict[str, Any]:
        """With a grace period this only begins a deletion; the kubelet ends it by one with a grace period of 0."""
        options = request.body if isinstance(request.body, dict) else {}
        namespace, name = old["metadata"]["namespace"], old["metadata"]["name"]
        if options.get("gracePeriodSeconds") != 0:
            return self.store.mark_deleted(namespace, name)
        self.store.remove(namespace, name)
        return old


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, api: ApiServer, certificate: Path | None, port: int) -> None:
        self.api = api
        self._tls: ssl.SSLContext | None = None
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)
        if certificate:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
            if api.asks_certificate:
                self._tls.verify_mode = ssl.CERT_REQUIRED
                self._tls.load_verify_locations(certificate)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._tls:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._guard:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._guard:
            for connection in self._connections:
                _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: in many tests the client hangs up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        ...

    def _serve(self) -> None:
        api = self.server.api
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = _decoded(text, self.headers.get("Content-Type", ""))
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        api.requests.append(request)
        fault = api.fault(request) or Fault()
        if fault.close or fault.hang:
            api.wait(fault.hang)
            self.close_connection = True
            return
        try:
            self._admit(fault)
            if request.verb == "WATCH":
                self._watch(request, fault)
            else:
                answer = fault.garbage or json.dumps(api.answer(request)).encode()
                self._answer(201 if request.method == "POST" else 200, answer, fault)
        except Refusal as refusal:
            self._answer(refusal.status, json.dumps(refusal.body()).encode(), Fault())

    def _admit(self, fault: Fault) -> None:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or token != self.server.api.token:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if fault.status:
            raise Refusal(fault.status, "Injected", "injected by the test")

    def _watch(self, request: Request, fault: Fault) -> None:
        """Send a watch in chunks, as the real server does; the last chunk is empty when the watch ends in an orderly way."""
        api, version = self.server.api, int(request.option("resourceVersion") or 0)
        if version and not api.gone_in_stream:
            api.store_of(request).since(version)
        selection_of(request, api.store_of(request))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = [fault.cut]

        def send(line: bytes) -> None:
            piece = line if left[0] is None else line[: left[0]]
            if left[0] is not None:
                left[0] -= len(piece)
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"", fault.drip)
            if left[0] == 0:
                raise ConnectionAbortedError

        try:
            if fault.garbage:
                send(fault.garbage)
            else:
                api.serve_watch(request, self.connection, send)
            self._write(b"0\r\n\r\n", 0.0)
        except OSError:
            self.close_connection = True

    def _answer(self, status: int, text: bytes, fault: Fault) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self._write(text[: fault.cut], fault.drip)
        if fault.cut is not None:
            self.close_connection = True

    def _write(self, text: bytes, drip: float) -> None:
        for start in range(0, len(text), 1 if drip else max(1, len(text))):
            self.wfile.write(text[start : start + (1 if drip else len(text))])
            if drip:
                self.server.api.wait(drip)


def selection_of(request: Request, store: Store) -> Selection:
    """What a list or a watch is about. Raises Refusal for a field that the resource is not selected by."""
    match = _OBJECTS.fullmatch(urlsplit(request.path).path)
    namespace = (match["namespace"] or "") if match else ""
    return Selection(namespace, request.option("fieldSelector"), request.option("labelSelector"), store.known)


def _dry_run(store: ObjectStore, request: Request) -> dict[str, Any]:
    """As `_write`, but nothing is stored: the answer has the stored version, or none if there is none. Raises Refusal."""
    match = _OBJECTS.fullmatch(urlsplit(request.path).path)
    assert match
    with store.dry_run():
        made = _write(store, request)
    stored = store.things.get((match["namespace"] or "", match["name"] or ""))
    version = {"resourceVersion": stored["metadata"]["resourceVersion"]} if stored else {}
    metadata = {key: each for key, each in made["metadata"].items() if key != "resourceVersion"}
    return {**made, "metadata": {**metadata, **version}}


def _write(store: ObjectStore, request: Request) -> dict[str, Any]:
    """The object that answers a request about one object, which is no list. Raises Refusal."""
    match = _OBJECTS.fullmatch(urlsplit(request.path).path)
    assert match
    namespace, name = match["namespace"] or "", match["name"] or ""
    if match["status"] and not store.of.has_status:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    if request.method == "GET":
        return store.read(namespace, name)
    if request.method == "DELETE" and name and not match["status"]:
        return store.delete(namespace, name, request.body if isinstance(request.body, dict) else {})
    if not isinstance(request.body, dict):
        raise Refusal(400, "BadRequest", "the body is not an object")
    kind = request.headers.get("Content-Type", "")
    is_apply = request.method == "PATCH" and kind == _APPLY
    manager = request.option("fieldManager") or (
        "" if is_apply else request.headers.get("User-Agent", "unknown").partition("/")[0]
    )
    if not manager:
        raise Refusal(422, "Invalid", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
    strict = request.option("fieldValidation") == "Strict"
    write = Write(manager, "status" if match["status"] else "", strict, request.option("force") == "true")
    if request.method == "POST" and not name:
        return store.create(namespace, request.body, write)
    if request.method == "PUT" and name:
        return store.replace(namespace, name, request.body, write)
    if is_apply and name:
        return store.apply(namespace, name, request.body, write)
    if request.method == "PATCH" and name:
        if kind != "application/merge-patch+json":
            raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
        return store.patch(namespace, name, request.body, write)
    raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _bookmark(store: Store, version: int) -> bytes:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    thing = {"kind": store.kind, "apiVersion": store.api_version, "metadata": metadata}
    rest = {"spec": {"containers": None}, "status": {}} if store.kind == "Pod" else {}
    return _line({"type": "BOOKMARK", "object": {**thing, **rest}})


def _shut(connection: socket.socket) -> None:
    """End a connection that another thread reads or writes, also an SSLSocket, whose own shutdown is for its own thread."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _decoded(text: bytes, kind: str) -> Any:
    """The decoded body.

    None if it is invalid. What is to be applied is read as YAML, whose parser does not accept all of JSON.
    """
    with suppress(ValueError, yaml.YAMLError):
        return yaml.load(text, yaml.CSafeLoader) if kind == _APPLY else json.loads(text)
    return None


def make_certificate(directory: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 in `directory`, with key.pem beside it."""
    path = directory / "ca.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=lab", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return path
