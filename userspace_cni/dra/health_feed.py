"""Tells the kubelet of the health of this node's devices: it shows it in the status of the pods that have them.

The kubelet takes a device of which it has not heard for a while for unknown: so what is known is said again from time to time. Of
the service there are three versions, whose messages are the same on the wire but for what the first one lacks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc

from userspace_cni.dra.protocol import health_v1_pb2 as health

SERVICES: Final = ("v1.DRAResourceHealth", "v1beta1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Names of the service, which a driver names among its versions when it registers."""
AGAIN_S: Final = 10.0
"""A kubelet that is told no other time forgets after 30 s."""
BELIEVED_S: Final = 60
STREAMS_MAX: Final = 16
"""Streams at the same time. A kubelet has one; each keeps a thread, which calls about claims need, too."""
_SILENT: Final = "ovs-vswitchd, which serves the bridge, does not answer; see `userspace-cni status` on the node"


class HealthFeed:
    """The health of the devices of the pool `pool`. Safe to use from any thread."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._version = 0
        self._health: Mapping[str, bool] | None = None
        self._closed = False
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)

    def tell(self, devices: Mapping[str, bool]) -> None:
        """Take over whether each device can be used, by name. Never waits."""
        with self._changed:
            if devices != self._health:
                self._health, self._version = dict(devices), self._version + 1
                self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def handlers(self) -> list[Any]:
        """What a gRPC server needs for the service. Each stream has one of the server's threads while it lasts."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch, health.NodeWatchResourcesRequest.FromString, health.NodeWatchResourcesResponse.SerializeToString
        )
        return [grpc.method_handlers_generic_handler(name, {"NodeWatchResources": method}) for name in SERVICES]

    def _watch(
        self, _request: health.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health.NodeWatchResourcesResponse]:
        over = threading.Event()
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS_MAX} streams of health are open; close one")

        def end() -> None:
            over.set()
            self._streams.release()
            with self._changed:
                self._changed.notify_all()

        if not context.add_callback(end):
            self._streams.release()
            return
        told = 0
        while (news := self._await(told, over)) is not None:
            told, devices = news
            if devices is not None:
                yield self._response(devices)

    def _await(self, told: int, over: threading.Event) -> tuple[int, Mapping[str, bool] | None] | None:
        """Wait for another version than was told, or a while; what is known then, None when the stream is over."""
        with self._changed:
            self._changed.wait_for(lambda: over.is_set() or self._closed or self._version != told, AGAIN_S)
            return None if over.is_set() or self._closed else (self._version, self._health)

    def _response(self, devices: Mapping[str, bool]) -> health.NodeWatchResourcesResponse:
        now = int(time.time())
        return health.NodeWatchResourcesResponse(
            devices=[
                health.DeviceHealth(
                    device=health.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=health.HEALTHY if healthy else health.UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=BELIEVED_S,
                    message="" if healthy else _SILENT,
                )
                for name, healthy in sorted(devices.items())
            ]
        )
