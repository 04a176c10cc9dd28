"""The sockets at which the kubelet calls the driver, and by which it learns of it.

Each process has sockets of its own name: while a driver is updated, the kubelet knows both instances, and calls the latest that
serves. Only one agent of a node serves: a lock of the driver's directory excludes others, and its holder removes what killed ones
left. The service's socket is there before the one that registers it, and goes after it.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH108, PTH112, PTH208

from __future__ import annotations

import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from userspace_cni.base.beneath import make_trusted
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.log import say
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.dra.dra_node import ClaimRef, DraNode
from userspace_cni.dra.protocol import dra_v1_pb2 as dra_v1
from userspace_cni.dra.protocol import dra_v1beta1_pb2 as dra_v1beta1
from userspace_cni.dra.protocol import pluginregistration_v1_pb2 as registration

CALLS_MAX: Final = 128
"""Calls that are served at the same time: one for each pod that starts or ends, and streams of health."""
REQUEST_S: Final = 5.0
"""Within which the request of a call comes. A kubelet sends both together."""
TOLD_S: Final = 2.0
REGISTRY: Final = "plugins_registry"
PLUGINS: Final = "plugins"
VERSIONS: Final[Mapping[str, Any]] = {"v1": dra_v1, "v1beta1": dra_v1beta1}
_OPTIONS: Final = (("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", CALLS_MAX // 2))
"""A call keeps its thread from its begin on, also while its request does not come: a client that hangs leaves half to others, and
what several take is free again after REQUEST_S."""
_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.{}.DRAPlugin"
_OF_REGISTRY: Final = re.compile(rf"{re.escape(DRIVER)}(-.+)?-reg\.sock")
_OF_DRIVER: Final = re.compile(r"dra(-.+)?\.sock")

Identity = tuple[int, int] | None


class AwaitedRequests:
    """Calls whose request has not come yet. Safe to use from any thread.

    gRPC has no deadline for that. So calls are served as streams of requests, of which the first counts: on the wire they are the
    same, and a call of a stream can be ended while it waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[grpc.ServicerContext, float] = {}

    def handler(self, answer: Callable[[Any], Any], read: Callable[[bytes], Any]) -> Any:
        """What serves a method: `answer` to the request that `read` decodes."""

        def serve(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._lock:
                self._since[context] = time.monotonic()
            try:
                request = next(requests, None)
            finally:
                with self._lock:
                    del self._since[context]
            if request is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request")
            return answer(request)

        return grpc.stream_unary_rpc_method_handler(serve, read, _bytes)

    @property
    def number(self) -> int:
        return len(self._since)

    def end_late(self, seconds: float) -> None:
        """End the calls that have waited longer. Waits for nothing."""
        with self._lock:
            late = [context for context, since in self._since.items() if time.monotonic() - since > seconds]
        for context in late:
            context.cancel()
        if late:
            say("warning", "calls at the driver's socket were ended, because their requests did not come", calls=len(late))


class DraSockets:
    """Both servers. `kubelet_dir`: the kubelet's root as the host calls it, `here`: as this process sees it.

    `handlers` and `services`: what is served beside claims, and the names that the kubelet is told of. For one thread, but for
    the calls.
    """

    def __init__(
        self,
        node: DraNode,
        kubelet_dir: str,
        here: str,
        handlers: Sequence[Any] = (),
        services: Sequence[str] = (),
    ) -> None:
        self._node = node
        instance = secrets.token_hex(4)
        self._endpoint = f"{kubelet_dir}/{PLUGINS}/{DRIVER}/dra-{instance}.sock"
        self._directory = f"{here}/{PLUGINS}/{DRIVER}"
        self._registry = f"{here}/{REGISTRY}"
        self._paths = (f"{self._directory}/dra-{instance}.sock", f"{self._registry}/{DRIVER}-{instance}-reg.sock")
        self._handlers = handlers
        self._versions = [*(f"{version}.DRAPlugin" for version in VERSIONS), *services]
        self._locked: int | None = None
        self._servers: list[tuple[Any, str, Identity]] = []
        self._awaited = AwaitedRequests()
        self.known = False
        """Whether the kubelet has taken the driver."""

    @property
    def whole(self) -> bool:
        """Whether both sockets are there as they were made. Waits for nothing."""
        return len(self._servers) == len(self._paths) and all(_identity(path) == made for _, path, made in self._servers)

    @property
    def has_kubelet(self) -> bool:
        """Whether the kubelet has a directory in which drivers register."""
        return os.path.isdir(self._registry)

    @property
    def waiting(self) -> int:
        """How many calls wait for their request now; each has a thread."""
        return self._awaited.number

    def end_late(self) -> None:
        """End calls whose requests do not come: they keep threads that others need. Waits for nothing."""
        self._awaited.end_late(REQUEST_S)

    def serve(self) -> bool:
        """Listen at both sockets, unless that is so; False while another agent serves this kubelet. Raises Unavailable."""
        if self.whole:
            return True
        self.close()
        try:
            if not self._hold():
                return False
            self._remove_left()
            claims = [_claim_handler(self._node, version, self._awaited) for version in VERSIONS]
            self._listen(self._paths[0], [*claims, *self._handlers], CALLS_MAX)
            self._listen(self._paths[1], [self._registration()], 2)
        except (OSError, RuntimeError) as error:
            self.close()
            raise Unavailable(f"listening for the kubelet: {error}", "setting kubelet_dir") from None
        return True

    def close(self) -> None:
        """End: the kubelet takes the driver for gone. Calls under way end."""
        self.known = False
        for server, path, made in reversed(self._servers):
            if made == _identity(path):
                with suppress(OSError):
                    os.unlink(path)
            server.stop(TOLD_S).wait(TOLD_S)
        self._servers = []
        fd, self._locked = self._locked, None
        if fd is not None:
            os.close(fd)

    def _hold(self) -> bool:
        make_trusted(self._directory, 0o750)
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._locked = fd
        return True

    def _remove_left(self) -> None:
        """Remove the sockets of agents that were killed: who holds the lock is the only one that serves."""
        for directory, form in ((self._registry, _OF_REGISTRY), (self._directory, _OF_DRIVER)):
            for name in filter(form.fullmatch, os.listdir(directory)):
                with suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{name}")

    def _listen(self, path: str, handlers: Iterable[Any], threads: int) -> None:
        server = grpc.server(ThreadPoolExecutor(threads, "dra"), options=_OPTIONS)
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(f"unix:{quote(path)}")
        server.start()
        self._servers.append((server, path, _identity(path)))

    def _registration(self) -> Any:
        handler = self._awaited.handler
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": handler(self._info, registration.InfoRequest.FromString),
                "NotifyRegistrationStatus": handler(self._noted, registration.RegistrationStatus.FromString),
            },
        )

    def _info(self, _request: Any) -> registration.PluginInfo:
        return registration.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=self._endpoint, supported_versions=self._versions)

    def _noted(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        self.known = status.plugin_registered
        if status.plugin_registered:
            say("info", "the kubelet knows the driver of devices", driver=DRIVER, socket=self._endpoint)
        else:
            say("error", "the kubelet refuses the driver of devices; it asks again", driver=DRIVER, problem=status.error)
        return registration.RegistrationStatusResponse()


def _claim_handler(node: DraNode, version: str, awaited: AwaitedRequests) -> Any:
    """The service of that version: the messages differ in their names alone."""
    messages = VERSIONS[version]

    def prepare(request: Any) -> Any:
        answer = messages.NodePrepareResourcesResponse()
        for uid, done in node.prepare(_claims(request)).items():
            answer.claims[uid].error = str(done.error) if done.error else ""
            answer.claims[uid].devices.extend(
                messages.Device(
                    request_names=[each.request], pool_name=each.pool, device_name=each.device, cdi_device_ids=each.cdi_ids
                )
                for each in done.devices
            )
        return answer

    def unprepare(request: Any) -> Any:
        answer = messages.NodeUnprepareResourcesResponse()
        for uid, error in node.unprepare(_claims(request)).items():
            answer.claims[uid].error = str(error) if error else ""
        return answer

    return grpc.method_handlers_generic_handler(
        _SERVICE.format(version),
        {
            "NodePrepareResources": awaited.handler(prepare, messages.NodePrepareResourcesRequest.FromString),
            "NodeUnprepareResources": awaited.handler(unprepare, messages.NodeUnprepareResourcesRequest.FromString),
        },
    )


def _claims(request: Any) -> list[ClaimRef]:
    """Each claim of the request once."""
    return list({each.uid: ClaimRef(each.namespace, each.name, each.uid) for each in request.claims}.values())


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def _identity(path: str) -> Identity:
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
