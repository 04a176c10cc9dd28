"""A kubelet as device plugins see it: its registration, its client of their lists and allocations, and its pod-resources API.

It speaks the real protocol over real sockets, and behaves like a kubelet: at its start it removes every socket in the directory
of device plugins; it connects to a plugin that registers; it never asks again for a list that has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from tests.lab.switch.switch import wait_until
from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1
from userspace_cni.host.runtimes.podresources import v1_pb2 as v1

CALL_S = 60
Given = Mapping[str, tuple[str, ...]]


class Kubelet:
    """A kubelet of the root directory `root`. `pods`: the devices by resource that it has given to pods, by namespace/name.

    `lists`: every list that it was sent, by resource, as {ID: (health, NUMA nodes)}; `registered`: how often each resource was.
    """

    def __init__(self, root: Path) -> None:
        self.plugins = root / "device-plugins"
        self.pods: dict[str, Given] = {}
        self.lists: dict[str, list[dict[str, tuple[str, tuple[int, ...]]]]] = {}
        self.registered: dict[str, int] = {}
        self.ended: list[str] = []
        self.refuses = ""
        self._socket = self.plugins / "kubelet.sock"
        self._resources = root / "pod-resources" / "kubelet.sock"
        self._channels: dict[str, Any] = {}
        self._servers: list[Any] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def start(self) -> Self:
        """Remove the sockets of plugins, and listen."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        self._resources.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            path.unlink()
        registration = grpc.unary_unary_rpc_method_handler(
            self._register, v1beta1.RegisterRequest.FromString, v1beta1.Empty.SerializeToString
        )
        listing = grpc.unary_unary_rpc_method_handler(
            self._list, v1.ListPodResourcesRequest.FromString, v1.ListPodResourcesResponse.SerializeToString
        )
        self._serve(self._socket, "v1beta1.Registration", {"Register": registration})
        self._serve(self._resources, "v1.PodResourcesLister", {"List": listing})
        return self

    def kill(self) -> None:
        """End at once, as by SIGKILL: the sockets' names stay."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
        kept = [path for path in (self._socket, self._resources) if path.exists()]
        while self._servers:
            self._servers.pop().stop(0).wait(CALL_S)
        for path in kept:
            path.unlink(missing_ok=True)
            path.touch()

    def offered(self, resource: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The last list of the resource; {} for none."""
        return self.lists.get(resource, [{}])[-1]

    def health(self, resource: str) -> set[str]:
        """The health of the resource's devices; empty when there are none."""
        return {health for health, _ in self.offered(resource).values()}

    def await_health(self, resource: str, *health: str) -> None:
        """Wait until the devices of the resource have this health."""
        wait_until(lambda: self.health(resource) == set(health), what=f"devices of {resource} being {health}")

    def allocate(self, resource: str, *devices: str) -> Any:
        """The plugin's answer for one container with these devices. Raises grpc.RpcError."""
        request = v1beta1.AllocateRequest(container_requests=[v1beta1.ContainerAllocateRequest(devices_ids=devices)])
        call = self._channels[resource].unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            request_serializer=v1beta1.AllocateRequest.SerializeToString,
            response_deserializer=v1beta1.AllocateResponse.FromString,
        )
        [answer] = call(request, timeout=CALL_S).container_responses
        return answer

    def give(self, pod: str, resource: str, *devices: str) -> Any:
        """Admit a pod, named namespace/name, with these devices in one container: as `allocate`."""
        answer = self.allocate(resource, *devices)
        self.pods[pod] = {**self.pods.get(pod, {}), resource: (*self.pods.get(pod, {}).get(resource, ()), *devices)}
        return answer

    def _serve(self, path: Path, service: str, handlers: Mapping[str, Any]) -> None:
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(4), handlers=[grpc.method_handlers_generic_handler(service, handlers)])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _register(self, request: Any, context: Any) -> Any:
        if self.refuses:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuses)
        assert request.version == "v1beta1"
        channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}")
        grpc.channel_ready_future(channel).result(CALL_S)
        with self._lock:
            self._channels[request.resource_name] = channel
            self.registered[request.resource_name] = self.registered.get(request.resource_name, 0) + 1
        threading.Thread(target=self._watch, args=(request.resource_name, channel), daemon=True).start()
        return v1beta1.Empty()

    def _watch(self, resource: str, channel: Any) -> None:
        call = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=v1beta1.Empty.SerializeToString,
            response_deserializer=v1beta1.ListAndWatchResponse.FromString,
        )
        with suppress(grpc.RpcError, ValueError):
            for answer in call(v1beta1.Empty()):
                known = {
                    device.ID: (device.health, tuple(node.ID for node in device.topology.nodes)) for device in answer.devices
                }
                self.lists.setdefault(resource, []).append(known)
        self.ended.append(resource)

    def _list(self, _request: Any, _context: Any) -> Any:
        answer = v1.ListPodResourcesResponse()
        for pod, given in self.pods.items():
            namespace, _, name = pod.partition("/")
            devices = [v1.ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in given.items()]
            container = v1.ContainerResources(name="app", devices=devices)
            answer.pod_resources.append(v1.PodResources(name=name, namespace=namespace, containers=[container]))
        return answer
