"""Asks the container runtime in which network namespaces its pods are: the Container Runtime Interface, runtime.v1.

It is for pods of which no file tells (`cni_cache`). The runtime answers as root, and is believed as its files are: a path is only
a name, and who enters it proves whose it is. Nothing here may change anything at the runtime.

The status of a sandbox is asked of its shim, too, and a pod can starve that: a sandbox of which no status comes is left out and
counted, and never keeps others from being found.

`v1.proto` is our own and holds only what is asked here; service and method names, field numbers and types are the interface's
(k8s.io/cri-api, pkg/apis/runtime/v1). `v1_pb2` is made of it, never edited, at the top of the repository:

    .venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. userspace_cni/host/runtimes/cri/*.proto
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.threads import refused
from userspace_cni.host.runtimes.cni_cache import Sandbox
from userspace_cni.host.runtimes.unix_rpc import GrpcConnection, RpcUnanswered

if TYPE_CHECKING:
    from userspace_cni.host.runtimes.cri import v1_pb2

ASK_S: Final = 2.0
"""containerd 1.6 tells 42 sandboxes in 35 ms; for a shim that hangs it waits 4 s itself."""
STATUSES_S: Final = 4.0
"""So long may the statuses of all sandboxes take together."""
_AT_ONCE: Final = 8
"""Requests under way: shims that hang keep the others waiting only when there are as many."""
_SERVICE: Final = "/runtime.v1.RuntimeService"
_ANSWER_MAX: Final = 16 << 20
"""The kubelet's own bound. The list has the annotations of all pods, which are their tenants'."""
_VERSION_MAX: Final = 64 << 10
_INFO_MAX: Final = 4 << 20
"""Characters of what the runtime tells of one sandbox."""
_GONE: Final = "NOT_FOUND"
"""The status of a call about a sandbox that was removed after the list."""
_HOSTS: Final = "/proc/1/"
"""A path below it is of the host's own namespace."""


class Cri:
    """The runtime at the unix socket `socket`, a path of the host. For one thread at a time."""

    def __init__(self, socket: str, root: HostRoot = HERE) -> None:
        self._socket = socket
        self._root = root
        self.unreadable = 0
        """How many ready sandboxes the last look could not use."""

    def sandboxes(self, wanted: Collection[str] | None = None) -> list[Sandbox]:
        """Every ready sandbox with a network namespace of its own; `wanted`: only these pods' uids, one request for each.

        Raises UserspaceError: Unavailable where the runtime does not answer within ASK_S, or tells the status of none of them;
        StepFailed where it does not speak runtime.v1.
        """
        self.unreadable = 0
        if wanted is not None and not wanted:
            return []
        details = "does the runtime run? is the setting cri_socket right?"
        with GrpcConnection(self._root.path(self._socket), _ANSWER_MAX, details) as connection:
            ready = [each for each in self._listed(connection) if wanted is None or each.metadata.uid in wanted]
            paths = self._paths(connection, [each.id for each in ready])
        return [
            Sandbox(each.id, each.metadata.namespace, each.metadata.name, each.metadata.uid, paths[each.id])
            for each in ready
            if each.id in paths
        ]

    def read_version(self) -> str:
        """`containerd 1.6.20`: the runtime's name and version. Raises Unavailable."""
        from userspace_cni.host.runtimes.cri import v1_pb2

        what = f"asking the container runtime at {self._socket} for its version"
        with GrpcConnection(self._root.path(self._socket), _VERSION_MAX, "does the runtime run?") as connection:
            answer = connection.ask(what, f"{_SERVICE}/Version", v1_pb2.VersionRequest(), v1_pb2.VersionResponse, ASK_S)
        return f"{answer.runtime_name} {answer.runtime_version}".strip()

    def _listed(self, connection: GrpcConnection) -> list[v1_pb2.PodSandbox]:
        """The ready sandboxes, whatever their network."""
        from userspace_cni.host.runtimes.cri import v1_pb2

        what = f"asking the container runtime at {self._socket} for its sandboxes"
        only = v1_pb2.PodSandboxFilter(state=v1_pb2.PodSandboxStateValue(state=v1_pb2.SANDBOX_READY))
        request = v1_pb2.ListPodSandboxRequest(filter=only)
        try:
            answer = connection.ask(what, f"{_SERVICE}/ListPodSandbox", request, v1_pb2.ListPodSandboxResponse, ASK_S)
        except RpcUnanswered as error:
            if error.status == "UNIMPLEMENTED":
                raise StepFailed(
                    f"{what}: it does not speak runtime.v1 of the Container Runtime Interface",
                    "containerd speaks it since 1.6, unless 'cri' is in disabled_plugins; is the setting cri_socket right?",
                ) from None
            raise
        return [each for each in answer.items if each.state == v1_pb2.SANDBOX_READY and each.id]

    def _paths(self, connection: GrpcConnection, sandboxes: list[str]) -> dict[str, str]:
        """The path of each of these that is ready still and has a network namespace of its own."""
        within = Deadline.after(STATUSES_S)
        pool = ThreadPoolExecutor(_AT_ONCE, "cri")
        try:
            answers = list(pool.map(lambda sandbox: self._status(connection, sandbox, within), sandboxes))
        except RuntimeError as error:
            raise refused(f"asking the container runtime at {self._socket} for {len(sandboxes)} sandboxes") from error
        finally:
            pool.shutdown(cancel_futures=True)
        failed = [each for each in answers if isinstance(each, RpcUnanswered) and each.status != _GONE]
        if failed and len(failed) == len(answers):
            raise failed[0]
        found = {sandbox: _path(sandbox, each) for sandbox, each in zip(sandboxes, answers, strict=True)}
        self.unreadable = sum(path is None for path in found.values())
        return {sandbox: path for sandbox, path in found.items() if path}

    def _status(
        self, connection: GrpcConnection, sandbox: str, within: Deadline
    ) -> v1_pb2.PodSandboxStatusResponse | RpcUnanswered:
        """What the runtime tells of the sandbox, or why it does not. Raises Unanswered where there is no runtime any more."""
        from userspace_cni.host.runtimes.cri import v1_pb2

        what = f"asking the container runtime at {self._socket} for sandbox {sandbox}"
        request = v1_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
        seconds = min(ASK_S, within.remaining())
        try:
            return connection.ask(what, f"{_SERVICE}/PodSandboxStatus", request, v1_pb2.PodSandboxStatusResponse, seconds)
        except RpcUnanswered as error:
            if error.status == "UNAVAILABLE":
                raise
            return error


def _path(sandbox: str, answer: v1_pb2.PodSandboxStatusResponse | RpcUnanswered) -> str | None:
    """The path of its network namespace; "" where it has none or is gone, None where the answer cannot be used."""
    from userspace_cni.host.runtimes.cri import v1_pb2

    if isinstance(answer, RpcUnanswered):
        return "" if answer.status == _GONE else None
    if answer.status.id != sandbox:
        return None
    return _path_in(answer.info.get("info", "")) if answer.status.state == v1_pb2.SANDBOX_READY else ""


def _path_in(info: str) -> str | None:
    """The network namespace that the runtime's own details name; "" for the host's, None for details of another form."""
    try:
        content = json.loads(info) if len(info) <= _INFO_MAX else None
    except (ValueError, RecursionError):
        return None
    for key in ("runtimeSpec", "linux", "namespaces"):
        content = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
        return None
    networks = [each.get("path", "") for each in content if each.get("type") == "network"]
    path = networks[0] if networks else ""
    if len(networks) > 1 or not isinstance(path, str) or not path.isprintable() or path[:1] not in ("", "/"):
        return None
    return "" if path.startswith(_HOSTS) else path
