"""A kube-apiserver for tests, as far as pods go: a real HTTP server in a thread, with the real one's rules for writing.

The rules that matter to a writer of annotations, each as the real server has it: every write gives a new resourceVersion; a write
that carries an old one, or another pod's UID, is answered 409; a write to /status takes `status` and the metadata and ignores
`spec`, and a PUT without `status` wipes it; an object PATCH is a merge patch. Faults are injected per verb. Nothing in here knows
the code under test.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import ssl
import subprocess
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

TOKEN = "lab-token"
ANNOTATIONS_LIMIT = 256 * 1024

_POD = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)(?P<status>/status)?")
_LIST = re.compile(r"/api/v1/(?:namespaces/(?P<namespace>[^/]+)/)?pods")


@dataclass
class Fault:
    """What happens to the next `times` requests (None: to all) of `method` ("" for any), instead of an answer or before it.

    Exactly one of: `status` is answered; the connection is closed; nothing is sent for `hang` seconds, and then the connection is
    closed; the answer is sent at a byte per `drip` seconds.
    """

    method: str = ""
    status: int = 0
    close: bool = False
    hang: float = 0.0
    drip: float = 0.0
    times: int | None = None


@dataclass(frozen=True)
class Request:
    """A request as it came in; `body` is its decoded JSON, None without one."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Refusal(Exception):
    """An answer other than 200: a status code, and the reason and message of the Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class ApiServer:
    """Pods behind HTTP on a port of 127.0.0.1. `token`: the only bearer token let in. `tls`: a directory for a certificate.

    `faults` may be appended to and cleared at any time; `requests` lists what came in.
    """

    def __init__(self, token: str = TOKEN, tls: Path | None = None) -> None:
        self.token = token
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self._lock = threading.RLock()
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}
        self._version = 1000
        self._certificate = _certificate(tls) if tls else None
        self._http: _Http | None = None
        self._stopping = threading.Event()

    def start(self) -> Self:
        """Listen and serve; returns itself."""
        self._http = _Http(self, self._certificate)
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
        """The port it listens on."""
        assert self._http is not None
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """What a kubeconfig has as `server`."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path | None:
        """The certificate that clients have to trust; None without TLS."""
        return self._certificate

    def kubeconfig(self, directory: Path, user: Mapping[str, Any] | None = None) -> str:
        """Write a kubeconfig for this server to `directory`, and tell its path. `user`: how to log in; default the token."""
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
        with self._lock:
            made = copy.deepcopy(dict(pod))
            metadata = made.setdefault("metadata", {})
            metadata.setdefault("namespace", "default")
            metadata.setdefault("uid", str(uuid.uuid4()))
            made = {"kind": "Pod", "apiVersion": "v1", **made}
            made.setdefault("spec", {})
            made.setdefault("status", {"phase": "Pending"})
            self._store(made)
            return copy.deepcopy(made)

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """A copy of the pod as it is now; KeyError when there is none."""
        with self._lock:
            return copy.deepcopy(self._pods[namespace, name])

    def annotations(self, namespace: str, name: str) -> dict[str, str]:
        """The pod's annotations."""
        return dict(self.pod(namespace, name)["metadata"].get("annotations") or {})

    def change(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into the pod, as another client of the API would."""
        with self._lock:
            self._store(cast("dict[str, Any]", _merged(self._pods[namespace, name], patch)))

    def remove_pod(self, namespace: str, name: str) -> None:
        """Delete the pod at once."""
        with self._lock:
            del self._pods[namespace, name]

    def count(self, method: str) -> int:
        """How many requests of `method` came in."""
        return sum(request.method == method for request in self.requests)

    def answer(self, request: Request) -> dict[str, Any]:
        """The object that answers `request`. Raises Refusal."""
        parts = urlsplit(request.path)
        if match := _POD.fullmatch(parts.path):
            key, status = (match["namespace"], match["name"]), bool(match["status"])
            with self._lock:
                if key not in self._pods:
                    raise Refusal(404, "NotFound", f'pods "{match["name"]}" not found')
                if request.method == "GET":
                    return copy.deepcopy(self._pods[key])
                return self._write(request, self._pods[key], status)
        if (match := _LIST.fullmatch(parts.path)) and request.method == "GET":
            return self._list(match["namespace"], parse_qs(parts.query).get("fieldSelector", [""])[0])
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def fault(self, method: str) -> Fault | None:
        """The fault that meets a request of `method`; one with a number of times is used up."""
        with self._lock:
            for fault in self.faults:
                if fault.method in ("", method) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than the server lives."""
        self._stopping.wait(seconds)

    def _write(self, request: Request, old: dict[str, Any], status: bool) -> dict[str, Any]:
        if not isinstance(request.body, dict):
            raise Refusal(400, "BadRequest", "the body is not an object")
        if request.method == "PATCH":
            kind = request.headers.get("Content-Type", "")
            if kind not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
                raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
            new = cast("dict[str, Any]", _merged(old, request.body))
        elif request.method == "PUT":
            new = copy.deepcopy(request.body)
        else:
            raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        _check_preconditions(old["metadata"], request.body.get("metadata") or {})
        stored = copy.deepcopy(old)
        for key in ("annotations", "labels", "finalizers"):
            stored["metadata"].pop(key, None)
            if (new.get("metadata") or {}).get(key):
                stored["metadata"][key] = new["metadata"][key]
        _check_annotations(stored["metadata"])
        part = "status" if status else "spec"
        stored[part] = new.get(part) or {}
        self._store(stored)
        return copy.deepcopy(stored)

    def _list(self, namespace: str | None, selector: str) -> dict[str, Any]:
        field, _, value = selector.partition("=")
        if field not in ("", "spec.nodeName", "metadata.name"):
            raise Refusal(400, "BadRequest", f"field label not supported: {field}")
        with self._lock:
            pods = [pod for (place, _), pod in sorted(self._pods.items()) if namespace in (None, place)]
            if field:
                section, _, key = field.partition(".")
                pods = [pod for pod in pods if pod[section].get(key, "") == value.lstrip("=")]
            version = str(self._version)
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": copy.deepcopy(pods)}

    def _store(self, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._pods[pod["metadata"]["namespace"], pod["metadata"]["name"]] = pod


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, api: ApiServer, certificate: Path | None) -> None:
        self.api = api
        self._tls: ssl.SSLContext | None = None
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        if certificate:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate, certificate.with_name("key.pem"))

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
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing on stderr."""

    def _serve(self) -> None:
        api = self.server.api
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers.items()), _decoded(text))
        api.requests.append(request)
        fault = api.fault(self.command)
        if fault and (fault.close or fault.hang):
            api.wait(fault.hang)
            self.close_connection = True
            return
        try:
            scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
            if scheme.lower() != "bearer" or token != api.token:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if fault and fault.status:
                raise Refusal(fault.status, "Injected", "injected by the test")
            self._answer(200, api.answer(request), fault.drip if fault else 0.0)
        except Refusal as refusal:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
            facts = {"message": refusal.message, "reason": refusal.reason, "code": refusal.status}
            self._answer(refusal.status, {**status, **facts}, 0.0)

    def _answer(self, status: int, body: Mapping[str, Any], drip: float) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        for start in range(0, len(text), 1 if drip else len(text)):
            self.wfile.write(text[start : start + (1 if drip else len(text))])
            if drip:
                self.server.api.wait(drip)


def _check_preconditions(stored: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    operation = f'Operation cannot be fulfilled on pods "{stored["name"]}"'
    if sent.get("uid") and sent["uid"] != stored["uid"]:
        precondition = f"UID in precondition: {sent['uid']}, UID in object meta: {stored['uid']}"
        raise Refusal(409, "Conflict", f"{operation}: Precondition failed: {precondition}")
    if sent.get("resourceVersion") and sent["resourceVersion"] != stored["resourceVersion"]:
        modified = "the object has been modified; please apply your changes to the latest version and try again"
        raise Refusal(409, "Conflict", f"{operation}: {modified}")


def _check_annotations(metadata: Mapping[str, Any]) -> None:
    annotations = metadata.get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise Refusal(
            400, "BadRequest", "json: cannot unmarshal into Go struct field ObjectMeta.metadata.annotations of type string"
        )
    if sum(len(key) + len(value) for key, value in annotations.items()) > ANNOTATIONS_LIMIT:
        raise Refusal(422, "Invalid", "metadata.annotations: Too long: must have at most 262144 bytes")


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(copy.deepcopy(target)) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _decoded(text: bytes) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return None


def _certificate(directory: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 in `directory`, with key.pem beside it."""
    path = directory / "ca.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=lab", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return path
