"""What a container runtime says of its sandboxes; an answer that cannot be read completely counts for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc
import pytest

from userspace_cni.base.errors import DirectoryRefused, StepFailed, Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.host.runtimes.cni_cache import Sandbox
from userspace_cni.host.runtimes.cri import Cri, v1_pb2

WAIT_S: Final = 60.0
MIB: Final = 1 << 20
ONE = Sandbox("a" * 64, "shop", "web-0", "11-22", "/var/run/netns/cni-1")
TWO = Sandbox("b" * 64, "db", "db-0", "33-44", "/run/netns/cni-2")


def networked(path: object) -> dict[str, Any]:
    """The details of a sandbox whose network namespace has this path, as containerd writes them."""
    kinds = [{"type": "pid"}, {"type": "ipc"}, {"type": "network", "path": path}, {"type": "mount"}]
    return {"pid": 7, "runtimeSpec": {"ociVersion": "1.0.2", "linux": {"resources": {}, "namespaces": kinds}}}


NO_SPECS: Final[tuple[Any, ...]] = (None, 7, [], "linux", {"linux": None}, {"linux": []})
NO_NAMESPACES: Final[tuple[Any, ...]] = (None, {}, "network", 7, [None], [["type"]])
NO_PATHS: Final[tuple[Any, ...]] = (None, 7, True, [], ["/run/netns/x"], {}, "run/netns/x", "/run/\0", "/run/\ud800")
ODD: Final[tuple[Any, ...]] = (
    *("", "{", "null", "7", "[]", '"x"', "[" * 100_000, "1" * 10_000, "{}"),
    *({"runtimeSpec": value} for value in NO_SPECS),
    *({"runtimeSpec": {"linux": {"namespaces": value}}} for value in NO_NAMESPACES),
    *map(networked, NO_PATHS),
    {"runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": f"/run/netns/{name}"} for name in "ab"]}}},
    json.dumps(networked("/run/netns/x")) + " " * 4 * MIB,
)


class Runtime:
    """The server of a runtime at `path`: its sandboxes, and the details of each as text.

    `instead` replaces the answer for a sandbox, or for the list under "": bytes are sent, a status code is an error, an event is
    awaited.
    """

    def __init__(self, path: Path, service: str = "runtime.v1.RuntimeService") -> None:
        self.path = path
        self.pods: list[Sandbox] = []
        self.info: dict[str, str] = {}
        self.ended: set[str] = set()
        self.instead: dict[str, bytes | grpc.StatusCode | threading.Event] = {}
        self.listed: list[bytes] = []
        self.asked: list[tuple[str, bool]] = []
        self.going = threading.Event()
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(method)
            for name, method in (("ListPodSandbox", self._list), ("PodSandboxStatus", self._status), ("Version", self._version))
        }
        options = [("grpc.max_send_message_length", -1)]
        handler = grpc.method_handlers_generic_handler(service, handlers)
        self._server = grpc.server(ThreadPoolExecutor(40), handlers=[handler], options=options)
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def add(self, pod: Sandbox, info: Any = None) -> None:
        """Add a sandbox with these details, by default those of a pod with that path."""
        self.pods.append(pod)
        self.info[pod.id] = info if isinstance(info, str) else json.dumps(networked(pod.path) if info is None else info)

    def stop(self) -> None:
        """Let every call end, and the server."""
        self.going.set()
        self._server.stop(0).wait(WAIT_S)

    def _list(self, request: bytes, context: Any) -> bytes:
        self.listed.append(request)
        answer = v1_pb2.ListPodSandboxResponse()
        for pod in self.pods:
            metadata = v1_pb2.PodSandboxMetadata(name=pod.name, namespace=pod.namespace, uid=pod.uid)
            answer.items.append(v1_pb2.PodSandbox(id=pod.id, metadata=metadata))
        return self._answered("", answer.SerializeToString(), context)

    def _version(self, request: bytes, context: Any) -> bytes:
        answer = v1_pb2.VersionResponse(runtime_name="containerd", runtime_version="1.7.1")
        return self._answered("version", answer.SerializeToString(), context)

    def _status(self, request: bytes, context: Any) -> bytes:
        read = v1_pb2.PodSandboxStatusRequest.FromString(request)
        sandbox = read.pod_sandbox_id
        self.asked.append((sandbox, read.verbose))
        state = v1_pb2.SANDBOX_NOTREADY if sandbox in self.ended else v1_pb2.SANDBOX_READY
        status = v1_pb2.PodSandboxStatus(id=sandbox, state=state)
        answer = v1_pb2.PodSandboxStatusResponse(status=status, info={"info": self.info[sandbox]})
        return self._answered(sandbox, answer.SerializeToString(), context)

    def _answered(self, what: str, answer: bytes, context: Any) -> bytes:
        instead = self.instead.get(what, answer)
        if isinstance(instead, threading.Event):
            instead.wait(WAIT_S)
            return answer
        if isinstance(instead, grpc.StatusCode):
            context.abort(instead, "not today")
        assert isinstance(instead, bytes)
        return instead


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where sockets are: pytest's own directories are too long for them."""
    with TemporaryDirectory(prefix="uc-") as path:
        yield Path(path)


@pytest.fixture
def runtime(directory: Path) -> Iterator[Runtime]:
    made = Runtime(directory / "cri.sock")
    yield made
    made.stop()


@pytest.fixture
def cri(runtime: Runtime) -> Cri:
    return Cri(str(runtime.path))


def status(sandbox: str = ONE.id, info: Mapping[str, str] | None = None) -> bytes:
    """An answer to a question for a status."""
    shown = v1_pb2.PodSandboxStatus(id=sandbox)
    return v1_pb2.PodSandboxStatusResponse(status=shown, info=info or {}).SerializeToString()


def test_numbers_of_the_runtimes_fields() -> None:
    """Fields travel under the interface's numbers; the bytes are written out by hand."""
    only = v1_pb2.PodSandboxFilter(state=v1_pb2.PodSandboxStateValue(state=v1_pb2.SANDBOX_NOTREADY))
    assert v1_pb2.ListPodSandboxRequest(filter=only).SerializeToString() == b"\x0a\x04\x12\x02\x08\x01"
    metadata = v1_pb2.PodSandboxMetadata(name="n", uid="u", namespace="s")
    listed = v1_pb2.PodSandbox(id="i", metadata=metadata, state=v1_pb2.SANDBOX_NOTREADY)
    answer = v1_pb2.ListPodSandboxResponse(items=[listed])
    assert answer.SerializeToString() == b"\x0a\x10\x0a\x01i\x12\x09\x0a\x01n\x12\x01u\x1a\x01s\x18\x01"
    assert v1_pb2.PodSandboxStatusRequest(pod_sandbox_id="i", verbose=True).SerializeToString() == b"\x0a\x01i\x10\x01"
    shown = v1_pb2.PodSandboxStatus(id="i", state=v1_pb2.SANDBOX_NOTREADY)
    told = v1_pb2.PodSandboxStatusResponse(status=shown, info={"k": "v"})
    assert told.SerializeToString() == b"\x0a\x05\x0a\x01i\x18\x01\x12\x06\x0a\x01k\x12\x01v"


def test_sandboxes_with_their_namespaces(runtime: Runtime, cri: Cri) -> None:
    """Only ready ones are asked for, and each is asked for its details; the order is the runtime's."""
    runtime.add(ONE)
    runtime.add(TWO)
    assert (cri.sandboxes(), cri.unreadable) == ([ONE, TWO], 0)
    assert runtime.listed == [b"\x0a\x02\x12\x00"]
    assert sorted(runtime.asked) == [(ONE.id, True), (TWO.id, True)]


def test_no_sandbox(cri: Cri) -> None:
    """A runtime without sandboxes has none."""
    assert (cri.sandboxes(), cri.unreadable) == ([], 0)


def test_wanted_pods(runtime: Runtime, cri: Cri) -> None:
    """Only they are asked about; where none is wanted, the runtime is not asked at all."""
    runtime.add(ONE)
    runtime.add(TWO, "odd")
    assert (cri.sandboxes({ONE.uid, "of-another-node"}), cri.unreadable) == ([ONE], 0)
    assert [sandbox for sandbox, _ in runtime.asked] == [ONE.id]
    assert (cri.sandboxes(()), len(runtime.listed)) == ([], 1)


def test_many_sandboxes(runtime: Runtime, cri: Cri) -> None:
    """All sandboxes of a full node are returned."""
    pods = [Sandbox(f"{number:064x}", "ns", f"app-{number}", f"uid-{number}", f"/run/netns/{number}") for number in range(250)]
    for pod in pods:
        runtime.add(pod)
    assert cri.sandboxes() == pods
    assert not any(thread.name.startswith("cri") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "info",
    [
        *(networked(""), networked("/proc/1/ns/net"), {"runtimeSpec": {"linux": {"namespaces": []}}}),
        {"runtimeSpec": {"linux": {"namespaces": [{"type": "network"}, {"type": "pid", "path": "/proc/7/ns/pid"}]}}},
    ],
)
def test_pods_on_the_nodes_network(runtime: Runtime, cri: Cri, info: Any) -> None:
    """They have no namespace of their own: left out, and not counted."""
    runtime.add(TWO, info)
    runtime.add(ONE)
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], 0)


@pytest.mark.parametrize("info", ODD, ids=range(len(ODD)))
def test_details_that_tell_nothing(runtime: Runtime, cri: Cri, info: Any) -> None:
    """Details that are no JSON, of another form or type, with two namespaces, or longer than 4 MiB are left out and counted."""
    runtime.add(TWO, info)
    runtime.add(ONE)
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], 1)


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        *((status(TWO.id), 1), (status(TWO.id, {"other": "{}"}), 1), (b"", 1), (b"\xff\xff", 1)),
        (status(ONE.id, {"info": json.dumps(networked(ONE.path))}), 1),
        *((status(TWO.id, {"info": "x" * 17 * MIB}), 1), (grpc.StatusCode.UNKNOWN, 1), (grpc.StatusCode.NOT_FOUND, 0)),
    ],
    ids=["no details", "other details", "empty", "no message", "of another", "huge", "an error", "gone"],
)
def test_a_status_that_tells_nothing(runtime: Runtime, cri: Cri, answer: bytes | grpc.StatusCode, counted: int) -> None:
    """So is a status without details, of another sandbox, beyond any limit, or an error.

    One that is gone since is not counted.
    """
    runtime.add(TWO)
    runtime.add(ONE)
    runtime.instead[TWO.id] = answer
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], counted)
    del runtime.instead[TWO.id]
    assert (cri.sandboxes(), cri.unreadable) == ([TWO, ONE], 0)


def test_a_sandbox_that_ends_meanwhile(runtime: Runtime, cri: Cri) -> None:
    """A sandbox that was ready in the list and has ended by its status is left out."""
    runtime.add(ONE)
    runtime.add(TWO)
    runtime.ended = {TWO.id}
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], 0)


def test_sandboxes_that_were_not_asked_for(runtime: Runtime, cri: Cri) -> None:
    """A runtime that takes no filter lists those that have ended, too; they and one without a name are left out."""
    runtime.add(ONE)
    ended = v1_pb2.PodSandbox(id=TWO.id, state=v1_pb2.SANDBOX_NOTREADY)
    metadata = v1_pb2.PodSandboxMetadata(name=ONE.name, namespace=ONE.namespace, uid=ONE.uid)
    listed = [ended, v1_pb2.PodSandbox(), v1_pb2.PodSandbox(id=ONE.id, metadata=metadata)]
    runtime.instead[""] = v1_pb2.ListPodSandboxResponse(items=listed).SerializeToString()
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], 0)


def test_a_runtime_that_does_not_answer(runtime: Runtime, cri: Cri, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Unavailable; the error names the socket, and the setting that says where it is."""
    monkeypatch.setattr("userspace_cni.host.runtimes.cri.ASK_S", 0.1)
    runtime.instead[""] = runtime.going
    with pytest.raises(Unavailable, match=rf"{runtime.path}.*DEADLINE_EXCEEDED.*setting cri_socket"):
        cri.sandboxes()


def test_statuses_that_do_not_come(runtime: Runtime, cri: Cri, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none of them comes the runtime is Unavailable, however many there are."""
    monkeypatch.setattr("userspace_cni.host.runtimes.cri.ASK_S", 1.0)
    monkeypatch.setattr("userspace_cni.host.runtimes.cri.STATUSES_S", 0.3)
    for number in range(30):
        pod = Sandbox(f"{number:064x}", "ns", "app", "uid", "/run/netns/x")
        runtime.add(pod)
        runtime.instead[pod.id] = runtime.going
    with pytest.raises(Unavailable, match=rf"{runtime.path}.*DEADLINE_EXCEEDED.*setting cri_socket"):
        cri.sandboxes()


def test_statuses_that_are_all_errors(runtime: Runtime, cri: Cri) -> None:
    """A runtime whose own time is over answers only errors: Unavailable, with its words."""
    runtime.add(ONE)
    runtime.instead[ONE.id] = grpc.StatusCode.UNKNOWN
    with pytest.raises(Unavailable, match=rf"{runtime.path} for sandbox {ONE.id}: UNKNOWN: not today.*setting cri_socket"):
        cri.sandboxes()
    runtime.instead[ONE.id] = grpc.StatusCode.NOT_FOUND
    assert (cri.sandboxes(), cri.unreadable) == ([], 0)


def test_a_status_that_does_not_come(runtime: Runtime, cri: Cri) -> None:
    """One sandbox whose status hangs does not keep the others from being returned."""
    runtime.add(TWO)
    runtime.add(ONE)
    runtime.instead[TWO.id] = runtime.going
    assert (cri.sandboxes(), cri.unreadable) == ([ONE], 1)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"\xff\xff", "INTERNAL"), (b"\x0a\x00" * 9 * MIB, "RESOURCE_EXHAUSTED"), (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")],
    ids=["no message", "huge", "an error"],
)
def test_a_list_that_tells_nothing(runtime: Runtime, cri: Cri, answer: bytes | grpc.StatusCode, code: str) -> None:
    """An invalid list is an error, and never "no sandboxes"."""
    runtime.instead[""] = answer
    with pytest.raises(Unavailable, match=rf"{runtime.path}.*{code}.*setting cri_socket"):
        cri.sandboxes()


def test_a_runtime_that_ends_meanwhile(runtime: Runtime, cri: Cri) -> None:
    """A runtime that ends after the list is Unavailable."""
    runtime.add(ONE)
    runtime.add(TWO)
    runtime.instead[TWO.id] = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(Unavailable, match=f"sandbox {TWO.id}"):
        cri.sandboxes()


def test_an_older_runtime(directory: Path) -> None:
    """A runtime that speaks only runtime.v1alpha2 is distinguished from one
    that does not answer, because waiting does not help.
    """
    made = Runtime(directory / "cri.sock", "runtime.v1alpha2.RuntimeService")
    try:
        with pytest.raises(StepFailed, match=rf"{made.path}.*does not speak runtime\.v1 .*since 1\.6.*setting cri_socket"):
            Cri(str(made.path)).sandboxes()
    finally:
        made.stop()


@pytest.mark.parametrize("name", ["absent", "absent/below", "file", "file/below", "x" * 200, "50%20 of#it?"])
def test_a_socket_that_is_none(directory: Path, name: str) -> None:
    """Absent, a file, or a name that is too long for a socket: Unavailable."""
    (directory / "file").touch()
    with pytest.raises(Unavailable, match="setting cri_socket"):
        Cri(f"{directory}/{name}").sandboxes()


def test_a_socket_with_an_odd_name(directory: Path) -> None:
    """Its name is not read as a URL."""
    made = Runtime(directory / "plain.sock")
    made.add(ONE)
    (directory / "50%20 of#it?").symlink_to(made.path)
    try:
        assert Cri(f"{directory}/50%20 of#it?").sandboxes() == [ONE]
    finally:
        made.stop()


def test_a_socket_of_another_root(runtime: Runtime, directory: Path) -> None:
    """An agent in a container finds the host's socket, through the host's links; links in a circle are refused."""
    runtime.add(ONE)
    (directory / "link").symlink_to("/cri.sock")
    (directory / "circle").symlink_to("/circle")
    root = HostRoot(str(directory))
    assert Cri("/link", root).sandboxes() == [ONE]
    with pytest.raises(DirectoryRefused, match="circle"):
        Cri("/circle", root).sandboxes()


def test_no_thread_can_be_started(runtime: Runtime, cri: Cri, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing thread passes by itself: Unavailable."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("cri"):
            raise RuntimeError("can't start new thread")
        start(thread)

    runtime.add(ONE)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match="no thread can be started"):
        cri.sandboxes()


def test_what_is_not_imported() -> None:
    """gRPC and protobuf are imported by a question to the runtime, not before."""
    program = "import sys, userspace_cni.host.runtimes.cri, userspace_cni.host.runtimes.podresources; print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "'userspace_cni.host.runtimes.cri'" in shown
    assert "grpc" not in shown
    assert "google" not in shown


def test_its_version(runtime: Runtime, cri: Cri) -> None:
    """Name and version; an answer that cannot be had is no version."""
    assert cri.read_version() == "containerd 1.7.1"
    runtime.instead["version"] = grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(Unavailable, match="for its version"):
        cri.read_version()
