"""A launcher pod as the sidecar sees it: its environment, and a hook manager that calls it as virt-launcher does.

The manager knows nothing of the sidecar's code but the messages. It scans each container's part of the hooks volume over and
over, dials every entry that is no directory for at most 2 s with authority "localhost", asks `Info` with 1 s to answer, remembers
sockets by file name alone, takes the newest version that both know, and hands the definition from one to the next as found.

Sources: KubeVirt's pkg/hooks/manager.go, pkg/util/net/grpc, pkg/virt-launcher/virtwrap/plugins.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc

from kubevirt.protocol import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2
from tests.lab.switch.switch import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DIAL_S = 2.0
INFO_S = 60.0
"""virt-launcher gives a sidecar 1 s; a machine that is busy with other tests may need more for any answer."""
CALLBACK_S = 60.0
PLUGIN_HOOK_S = 30.0
START_S = 60.0
_READY = grpc.ChannelConnectivity.READY.value[0]
VERSIONS: Mapping[str, ModuleType] = {"v1alpha3": v1alpha3_pb2, "v1alpha2": v1alpha2_pb2, "v1alpha1": v1alpha1_pb2}
"""Newest first."""
PLUGIN_HOOKS: Mapping[str, tuple[str, Any]] = {
    "MutateDomain": ("DomainHookService", plugins_pb2.MutateDomainRequest),
    "GuestDefinition": ("LauncherHookService", plugins_pb2.GuestDefinitionRequest),
}
"""The hook of KubeVirt 1.9 and that of 1.10, each with its service and what it is asked with."""
CONTAINER = "hook-sidecar-0"

Vmi = Mapping[str, Any] | str | bytes


class HookError(Exception):
    """A call's status: `code` is gRPC's name of it, `details` the text."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code: str = error.code().name
        self.details: str = error.details()
        super().__init__(f"{self.code}: {self.details}")


class NotReady(Exception):
    """No process serves at a socket."""


@contextmanager
def dialled(path: Path, seconds: float = START_S) -> Iterator[grpc.Channel]:
    """A connection to the socket, made within `seconds`. Raises NotReady."""
    channel = grpc.insecure_channel(
        f"unix:{path}", [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    )
    try:
        if not _is_ready(channel._channel, time.time() + seconds):
            raise NotReady(str(path))
        yield channel
    finally:
        channel.close()


def _is_ready(inner: Any, end: float) -> bool:
    """Whether it is connected before the time `end`.

    (grpc.channel_ready_future only looks every 0.2 s, in a thread for which the end of the channel waits.)
    """
    while (state := inner.check_connectivity_state(True)) != _READY:
        if time.time() >= end:
            return False
        inner.watch_connectivity_state(state, end)
    return True


def call(channel: grpc.Channel, file: ModuleType, method: str, request: Any, seconds: float | None) -> Any:
    """Call Service.Method of a protocol module. Raises HookError."""
    service, _, name = method.partition(".")
    descriptor = file.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    answer = getattr(file, descriptor.output_type.name)
    ask = channel.unary_unary(
        f"/{descriptor.containing_service.full_name}/{name}", type(request).SerializeToString, answer.FromString
    )
    try:
        return ask(request, timeout=seconds)
    except grpc.RpcError as error:
        raise HookError(error) from None


def vmi(name: str = "vm1", /, **bindings: str) -> dict[str, Any]:
    """A VMI in namespace "default" with a secondary network for each of `bindings`: network's name -> binding's name."""
    return {
        "metadata": {"namespace": "default", "name": name, "uid": "5b3b7c1e-0000-4000-8000-000000000001"},
        "spec": {
            "domain": {
                "devices": {"interfaces": [{"name": net, "binding": {"name": binding}} for net, binding in bindings.items()]},
                "memory": {"hugepages": {"pageSize": "2Mi"}},
            },
            "networks": [{"name": net, "multus": {"networkName": "dpdk"}} for net in bindings],
        },
    }


def encoded(vmi: Vmi) -> bytes:
    if isinstance(vmi, bytes):
        return vmi
    return vmi.encode() if isinstance(vmi, str) else json.dumps(vmi).encode()


class Callback:
    """A collected sidecar: its socket, its version, its answer to Info."""

    def __init__(self, path: Path, version: str, info: Any) -> None:
        self.path = path
        self.version = version
        self.info = info

    @property
    def points(self) -> set[str]:
        return {point.name for point in self.info.hookPoints}

    def ask(self, method: str, seconds: float | None = CALLBACK_S, **fields: Any) -> Any:
        """Call a method of Callbacks on a connection of its own, as virt-launcher does. Raises HookError, NotReady."""
        file = VERSIONS[self.version]
        request = getattr(file, file.DESCRIPTOR.services_by_name["Callbacks"].methods_by_name[method].input_type.name)
        with dialled(self.path) as channel:
            return call(channel, file, f"Callbacks.{method}", request(**fields), seconds)

    def on_define_domain(self, xml: str | bytes, vmi: Vmi, seconds: float | None = CALLBACK_S) -> bytes:
        """This sidecar's definition of a VM."""
        domain = xml if isinstance(xml, bytes) else xml.encode()
        return bytes(self.ask("OnDefineDomain", seconds, domainXML=domain, vmi=encoded(vmi)).domainXML)


class HookManager:
    """Collects sidecars below `directory`, the whole hooks volume. `versions`: those that this KubeVirt knows, newest first.

    `flat`: an older KubeVirt's layout, where all sidecars have one directory, and directories in it are dialled too.
    """

    def __init__(self, directory: Path, versions: Sequence[str] = tuple(VERSIONS), *, flat: bool = False) -> None:
        self._directory = directory
        self._versions = versions
        self._flat = flat
        self._processed: set[str] = set()
        self.callbacks: list[Callback] = []

    def collect(self, sidecars: int = 1, seconds: float = START_S) -> Self:
        """Wait for so many sidecars. Raises HookError when one does not answer Info in time, as virt-launcher ends then."""
        wait_until(lambda: self._scan() >= sidecars, seconds, f"{sidecars} sidecars below {self._directory}")
        return self

    def on_define_domain(self, xml: str, vmi: Vmi) -> str:
        """The definition after all sidecars."""
        domain = xml.encode()
        for callback in self._asked("OnDefineDomain"):
            domain = callback.on_define_domain(domain, vmi)
        return domain.decode()

    def pre_cloud_init_iso(self, source: bytes, data: bytes, vmi: Vmi) -> tuple[bytes, bytes]:
        """What the first sidecar makes of both forms of cloud-init's data."""
        ask = self.callbacks[0].ask
        result = ask("PreCloudInitIso", cloudInitNoCloudSource=source, cloudInitData=data, vmi=encoded(vmi))
        return result.cloudInitNoCloudSource, result.cloudInitData

    def shutdown(self) -> None:
        for callback in self._asked("Shutdown"):
            if callback.version == "v1alpha3":
                callback.ask("Shutdown")

    def _asked(self, point: str) -> list[Callback]:
        return [callback for callback in self.callbacks if point in callback.points]

    def _scan(self) -> int:
        for entry in self._entries():
            if entry.name in self._processed:
                continue
            try:
                self.callbacks.append(self._processed_one(entry))
            except NotReady:
                continue
            self._processed.add(entry.name)
        return len(self._processed)

    def _entries(self) -> list[Path]:
        if self._flat:
            return sorted(self._directory.iterdir())
        parts = [part for part in sorted(self._directory.iterdir()) if part.is_dir()]
        return [entry for part in parts for entry in sorted(part.iterdir()) if not entry.is_dir()]

    def _processed_one(self, path: Path) -> Callback:
        with dialled(path, DIAL_S) as channel:
            info = call(channel, info_pb2, "Info.Info", info_pb2.InfoParams(), INFO_S)
        version = next((version for version in self._versions if version in info.versions), None)
        assert version, f"{path} speaks {list(info.versions)}"
        return Callback(path, version, info)


def plugin_hook(
    path: Path, xml: str | bytes, vmi: Vmi, context: str = "Boot", *, kind: str = "libvirt", hook: str = "MutateDomain"
) -> str:
    """Call a structured plugin's sidecar as virt-launcher does. `hook`: of PLUGIN_HOOKS. Raises HookError, NotReady."""
    assert stat.S_ISSOCK(path.lstat().st_mode), "virt-launcher refuses symlinks"
    service, message = PLUGIN_HOOKS[hook]
    request = message(
        domain_type=kind,
        domain=xml if isinstance(xml, bytes) else xml.encode(),
        vmi=encoded(vmi),
        sidecar_context=plugins_pb2.SidecarContext(invocation_context=context),
    )
    with dialled(path) as channel:
        return bytes(call(channel, plugins_pb2, f"{service}.{hook}", request, PLUGIN_HOOK_S).domain).decode()


class Sidecar:
    """The sidecar's process in a container named `container`; the hooks volume is `directory`, which HookManager gets too.

    `part`: of the volume, what the container has: by default its own name, "" in an older KubeVirt. `environment`: what KubeVirt
    or the image adds to it.
    """

    def __init__(self, directory: Path, container: str = CONTAINER, part: str | None = None, /, **environment: str) -> None:
        self.hooks = directory / (container if part is None else part)  # without a name: the whole volume
        self.hooks.mkdir(exist_ok=True)
        self._python: Sequence[str] = [sys.executable]
        self._environment = {
            "PATH": os.environ["PATH"],
            "CONTAINER_NAME": container,
            "NETWORK_BINDING_PLUGIN_NAME": "vhostuser",
            "USERSPACE_CNI_KUBEVIRT_HOOKS_DIRECTORY": str(self.hooks),
            **environment,
        }
        self._log = tempfile.NamedTemporaryFile(prefix="sidecar-", suffix=".log")  # noqa: SIM115 -- read until the end
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, wait: bool = True, python: Sequence[str] = ()) -> Self:
        """Start it, and wait until it serves; AssertionError with its log when it does not.

        `python`: another interpreter, with its options, or a command that becomes one; from then on.
        """
        self._python = python or self._python
        argv = [*self._python, "-m", "kubevirt", *arguments]
        began = len(self.log)
        self._process = subprocess.Popen(
            argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        if wait:
            wait_until(lambda: "msg=serving" in self.log[began:] or self._ended(), START_S, "the sidecar to serve")
        return self

    def __enter__(self) -> Self:
        return self if self._process else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def socket(self) -> Path:
        container, binding = self._environment["CONTAINER_NAME"], self._environment["NETWORK_BINDING_PLUGIN_NAME"]
        return self.hooks / f"{binding}-{container}.sock"

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def memory(self) -> dict[str, int]:
        """VmRSS and VmHWM in KiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}

    def end(self, sign: signal.Signals | None = signal.SIGTERM) -> int:
        """Tell it to end, unless that was done already (None); its exit code."""
        assert self._process
        if sign:
            self._process.send_signal(sign)
        return self._process.wait(START_S)

    def close(self) -> None:
        """End it whatever state it is in."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ended(self) -> bool:
        assert self._process
        assert self._process.poll() is None, self.log
        return False
