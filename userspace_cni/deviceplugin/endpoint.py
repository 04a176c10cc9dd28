"""The socket at which the kubelet asks about the devices of one bridge: a gRPC server of its own for each resource.

The kubelet's calls do not say which resource they are about, so each has a socket. A list is sent to the kubelet when it asks and
whenever it changes. Allocate gives a device a new directory before it answers: a device whose former pod was just deleted must
not show its files to the next one. When this process dies before the answer the kubelet refuses the pod; the directory is one
more that is replaced with the next allocation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1

THREADS_MAX: Final = 4
"""One for the list that the kubelet watches, one for a list whose kubelet has just ended, the others for allocations."""
TOLD_S: Final = 2.0
"""How long a kubelet is given to take the last list, in which all devices are unhealthy."""
_SERVICE: Final = "v1beta1.DevicePlugin"
_OPTIONS: Final = (("grpc.so_reuseport", 0),)


class Devices(Protocol):
    """What an endpoint tells and does; implemented by the plugin."""

    @property
    def resource(self) -> str: ...

    def list_devices(self) -> v1beta1.ListAndWatchResponse:
        """Every device, as it is now."""
        ...

    def allocate(self, devices: list[str]) -> v1beta1.ContainerAllocateResponse:
        """What the container is given with these devices. Raises UserspaceError."""
        ...


class DeviceEndpoint:
    """The server.

    `watched_or_not` is called, on any thread, when a kubelet begins or ends to watch the list; it must not wait.
    """

    def __init__(self, devices: Devices, path: str, watched_or_not: Callable[[], None]) -> None:
        self.path = path
        self._devices = devices
        self._watched_or_not = watched_or_not
        self._changed = threading.Condition()
        self._version = 0
        self._last = False
        self._streams: set[object] = set()
        self._identity: tuple[int, int] | None = None
        self._grpc: Any = None

    @property
    def watched(self) -> bool:
        """Whether a kubelet watches the list."""
        with self._changed:
            return bool(self._streams)

    def serve(self) -> None:
        """Listen at the path, unless this endpoint does so already. Raises Unavailable.

        A starting kubelet removes all sockets of its directory, so a socket may be gone under a server that runs.
        """
        if self._grpc is not None and self._identity == _identity(self.path):
            return
        self.close()
        server = grpc.server(ThreadPoolExecutor(THREADS_MAX, "devices"), options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            with suppress(FileNotFoundError):
                os.unlink(self.path)  # noqa: PTH108 - a former agent's: only the holder of the directory's lock comes here
            server.add_insecure_port(f"unix:{quote(self.path)}")
            server.start()
        except (OSError, RuntimeError) as error:
            raise Unavailable(f"listening at {self.path} for the kubelet: {error}", "the kubelet's directory") from None
        self._grpc, self._identity = server, _identity(self.path)

    def tell(self) -> None:
        """Send the list to the kubelet that watches it."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def retire(self) -> None:
        """Tell the kubelet that watches a last time, and end."""
        with self._changed:
            self._last = True
            self._version += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._streams, TOLD_S)
        self.close()

    def close(self) -> None:
        """End: the kubelet takes the devices for unhealthy."""
        server, self._grpc = self._grpc, None
        if server is None:
            return
        server.stop(0).wait(TOLD_S)
        if self._identity == _identity(self.path):
            with suppress(FileNotFoundError):
                os.unlink(self.path)  # noqa: PTH108

    def _handlers(self) -> Any:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "GetDevicePluginOptions": unary(_options, v1beta1.Empty.FromString, _bytes),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, v1beta1.Empty.FromString, _bytes),
                "Allocate": unary(self._allocate, v1beta1.AllocateRequest.FromString, _bytes),
            },
        )

    def _list_and_watch(self, _request: v1beta1.Empty, context: Any) -> Iterator[v1beta1.ListAndWatchResponse]:
        stream, told = object(), -1

        def ended() -> None:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify_all()
            self._watched_or_not()

        with self._changed:
            self._streams.add(stream)
        if not context.add_callback(ended):  # over already
            ended()
        self._watched_or_not()
        while True:
            with self._changed:
                while stream in self._streams and self._version == told:
                    self._changed.wait()
                if stream not in self._streams:
                    return
                told, last = self._version, self._last
            yield self._devices.list_devices()
            if last:
                return

    def _allocate(self, request: v1beta1.AllocateRequest, context: Any) -> v1beta1.AllocateResponse:
        answer = v1beta1.AllocateResponse()
        try:
            for container in request.container_requests:
                answer.container_responses.append(self._devices.allocate(list(container.devices_ids)))
        except UserspaceError as error:
            say("error", "devices could not be allocated", resource=self._devices.resource, error=error)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return answer


def _options(_request: v1beta1.Empty, _context: Any) -> v1beta1.DevicePluginOptions:
    return v1beta1.DevicePluginOptions()


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
