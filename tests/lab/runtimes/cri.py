"""A client of the Container Runtime Interface, which asks a runtime as the kubelet does, with the few messages of `cri.proto`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from tests.lab.kube.pods import Pod
from tests.lab.runtimes.images import IMAGE
from tests.lab.switch.switch import wait_until
from userspace_cni.linux.closing import Closing

READY_S = 60.0
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Without it channels to one path share a connection, and a new daemon would be asked over the killed one's."""
_OPTIONS = [_OWN_CONNECTION, *((f"grpc.{kind}_reconnect_backoff_ms", 50) for kind in ("min", "initial", "max"))]
CALL_S = 60.0


class CriError(Exception):
    """The runtime's own words for a call that failed."""


@dataclass(frozen=True)
class Status:
    """What the runtime tells of a sandbox: `addresses` has all of its IPs, `interfaces` what it made of the CNI results."""

    ready: bool
    addresses: tuple[str, ...]
    interfaces: Mapping[str, Any]


class Cri(Closing):
    """A connection to the runtime at the unix socket `path`; sandboxes get cgroups below `cgroup`. For any number of threads."""

    def __init__(self, path: Path, cgroup: str) -> None:
        self._messages, services = _compiled()
        self._cgroup = cgroup
        self._attempts = count()
        self._channel = grpc.insecure_channel(f"unix://{path}", _OPTIONS)
        self._stub = services.RuntimeServiceStub(self._channel)

    def close(self) -> None:
        """Hang up; calls under way fail."""
        self._channel.close()

    def await_ready(self) -> None:
        """Wait until it answers, or raise CriError. containerd listens before the services exist that answer here."""
        wait_until(self._is_made, READY_S, "the runtime to have made its CRI server")

    def _is_made(self) -> bool:
        try:
            self._call("Version", timeout=READY_S, wait_for_ready=True)
        except CriError as error:
            if "not initialized yet" not in str(error):
                raise
            return False
        return True

    def network_ready(self) -> bool:
        """Whether it has a network to put sandboxes on."""
        conditions = self._call("Status").status.conditions
        return any(condition.type == "NetworkReady" and condition.status for condition in conditions)

    def networks(self) -> list[str]:
        """Names of the networks that it has read, in the order in which a sandbox joins them."""
        found = json.loads(self._call("Status", verbose=True).info["cniconfig"])["Networks"] or ()
        return [network["Config"]["Name"] for network in found if network["IFName"] != "lo"]

    def run(self, pod: Pod, handler: str = "", annotations: Mapping[str, str] | None = None, attempt: int = 0) -> str:
        """RunPodSandbox; the new sandbox's ID. `attempt` counts the sandboxes that were made for the pod before."""
        request: dict[str, Any] = {"config": self._config(pod, annotations, attempt), "runtime_handler": handler}
        return str(self._call("RunPodSandbox", **request).pod_sandbox_id)

    def stop(self, sandbox: str) -> None:
        self._call("StopPodSandbox", pod_sandbox_id=sandbox)

    def remove(self, sandbox: str) -> None:
        self._call("RemovePodSandbox", pod_sandbox_id=sandbox)

    def status(self, sandbox: str) -> Status:
        """PodSandboxStatus, with the runtime's own details."""
        answer = self._call("PodSandboxStatus", pod_sandbox_id=sandbox, verbose=True)
        network = answer.status.network
        addresses = [network.ip, *(each.ip for each in network.additional_ips)]
        interfaces = json.loads(answer.info["info"])["cniResult"]["Interfaces"]
        ready = answer.status.state == self._messages.SANDBOX_READY
        return Status(ready, tuple(address for address in addresses if address), interfaces)

    def sandboxes(self) -> list[str]:
        """IDs of all sandboxes that it knows, ready or not."""
        return [item.id for item in self._call("ListPodSandbox").items]

    def ended(self) -> list[str]:
        """IDs of all sandboxes that were stopped and not removed yet."""
        items = self._call("ListPodSandbox").items
        return [item.id for item in items if item.state != self._messages.SANDBOX_READY]

    def start(
        self, sandbox: str, pod: Pod, command: Sequence[str], mounts: Mapping[str, str], devices: Sequence[str] = ()
    ) -> str:
        """CreateContainer and StartContainer; its ID. `mounts` has the host's path of each path in the container.

        `devices`: names of CDI. A later container of the pod is another attempt at the same one.
        """
        config = {
            "metadata": {"name": "app", "attempt": next(self._attempts)},
            "image": {"image": IMAGE},
            "command": list(command),
            "mounts": [{"container_path": inside, "host_path": outside} for inside, outside in mounts.items()],
            "CDI_devices": [{"name": each} for each in devices],
        }
        request: dict[str, Any] = {"pod_sandbox_id": sandbox, "config": config, "sandbox_config": self._config(pod)}
        container = str(self._call("CreateContainer", **request).container_id)
        self._call("StartContainer", container_id=container)
        return container

    def end(self, container: str) -> None:
        """StopContainer, at once."""
        self._call("StopContainer", container_id=container)

    def run_in(self, container: str, *command: str) -> str:
        """ExecSync; what the command printed. CriError when it fails."""
        answer = self._call("ExecSync", container_id=container, cmd=command, timeout=int(CALL_S))
        if answer.exit_code:
            raise CriError(f"{command}: exit {answer.exit_code}: {answer.stderr.decode()}")
        return str(answer.stdout.decode())

    def _config(self, pod: Pod, annotations: Mapping[str, str] | None = None, attempt: int = 0) -> dict[str, Any]:
        network = self._messages.NODE if pod.host_network else self._messages.POD
        return {
            "metadata": {"name": pod.name, "uid": pod.uid, "namespace": pod.namespace, "attempt": attempt},
            "hostname": "" if pod.host_network else pod.name,
            "port_mappings": [{"host_port": host, "container_port": inside} for host, inside in pod.host_ports.items()],
            "annotations": dict(annotations or {}),
            "linux": {"cgroup_parent": self._cgroup, "security_context": {"namespace_options": {"network": network}}},
        }

    def _call(self, name: str, timeout: float = CALL_S, wait_for_ready: bool = False, **request: Any) -> Any:
        message = getattr(self._messages, f"{name}Request")(**request)
        try:
            return getattr(self._stub, name)(message, timeout=timeout, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise CriError(f"{name}: {error.details()}") from error


@cache
def _compiled() -> tuple[Any, Any]:
    """Messages and services of `cri.proto`, compiled in memory."""
    return grpc.protos_and_services("tests/lab/runtimes/cri.proto")  # type: ignore[no-any-return]
