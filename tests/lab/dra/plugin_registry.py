"""How a kubelet finds drivers of devices: it watches a directory for sockets, asks each what it is, and tells it the outcome.

A socket that is made anew, by whatever process, is another registration; one that has gone ends its own. Instances of one driver
stand beside each other: the latest one that accepts connections is used, and if none does, the latest one.
"""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc

from userspace_cni.dra.protocol import dra_v1_pb2, dra_v1beta1_pb2
from userspace_cni.dra.protocol import pluginregistration_v1_pb2 as registration
from userspace_cni.linux.closing import Closing

VERSIONS: Final[Mapping[str, ModuleType]] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
"""The newest first."""
CALL_S: Final = 45.0
"""As long as a kubelet waits for a driver."""
_INFO_S: Final = 1.0
_NOTIFY_S: Final = 5.0
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.2
"""A kubelet waits half a second before it asks a refused plugin again, and each time twice as long as before."""
_OWN: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_RECONNECT: Final = tuple((f"grpc.{kind}_reconnect_backoff_ms", 50) for kind in ("initial", "max"))
"""Pauses between two attempts. The third kind, `min`, is how long one attempt may take, which on a busy machine is long."""

Identity = tuple[int, int]


class KubeletError(Exception):
    """Why a kubelet cannot go on with a pod; its text becomes an event of the pod."""


@dataclass(eq=False)
class Instance(Closing):
    """A registered instance of a driver, and the version of the protocol that is spoken with it."""

    driver: str
    endpoint: str
    version: str
    channel: Any = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(f"unix:{self.endpoint}", [*_OWN, *_RECONNECT])

    def close(self) -> None:
        """Hang up."""
        self.channel.close()

    @property
    def connected(self) -> bool:
        return accepts(self.endpoint)

    def call(self, name: str, claims: Sequence[Mapping[str, str]]) -> Any:
        """NodePrepareResources or NodeUnprepareResources of these claims (uid, namespace, name). Raises KubeletError."""
        messages = VERSIONS[self.version]
        call = self.channel.unary_unary(
            f"/k8s.io.kubelet.pkg.apis.dra.{self.version}.DRAPlugin/{name}",
            request_serializer=getattr(messages, f"{name}Request").SerializeToString,
            response_deserializer=getattr(messages, f"{name}Response").FromString,
        )
        request = getattr(messages, f"{name}Request")(claims=[messages.Claim(**each) for each in claims])
        try:
            return call(request, timeout=CALL_S)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the instance has been unregistered meanwhile
            raise KubeletError(f"{name}: {error}") from None


class PluginRegistry(Closing):
    """The part of a kubelet of the directory `directory` that knows these versions.

    `refused`: the last reason for each socket that was not taken; `registered`: how often each driver was.
    """

    def __init__(self, directory: Path, versions: Sequence[str] = tuple(VERSIONS)) -> None:
        self.directory = directory
        self.refused: dict[str, str] = {}
        self.registered: dict[str, int] = {}
        self._versions = versions
        self._known: dict[str, tuple[Identity, Instance | None]] = {}
        self._instances: list[Instance] = []
        self._due: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._watch, name="plugin registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, and hang up; the sockets stay."""
        self._ending.set()
        self._thread.join()
        while self._instances:
            self._instances.pop().close()

    def instances(self, driver: str) -> list[Instance]:
        """Those of the driver, the latest last."""
        with self._lock:
            return [each for each in self._instances if each.driver == driver]

    def instance(self, driver: str) -> Instance:
        """The one to call. Raises KubeletError."""
        found = self.instances(driver)
        if not found:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((each for each in reversed(found) if each.connected), found[-1])

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        there = {str(path): identity for path in self.directory.iterdir() if (identity := _socket(path))}
        for path, (identity, instance) in list(self._known.items()):
            if there.get(path) != identity:
                del self._known[path]
                if instance is not None:
                    self._unregister(instance)
        for path, identity in there.items():
            if path not in self._known and time.monotonic() >= self._due.get(path, 0.0):
                with suppress(grpc.RpcError):
                    self._register(path, identity)
                self._due[path] = time.monotonic() + _AGAIN_S

    def _unregister(self, instance: Instance) -> None:
        with self._lock:
            self._instances.remove(instance)
        instance.close()

    def _register(self, path: str, identity: Identity) -> None:
        """Ask the socket what it is, and tell it whether it is taken. One whose endpoint another one has is not asked again."""
        if not accepts(path):
            return
        with grpc.insecure_channel(f"unix:{path}", _OWN) as channel:
            info = _asked(channel, "GetInfo", registration.InfoRequest(), registration.PluginInfo, _INFO_S)
            endpoint = info.endpoint or path
            refusal, instance = self._fault(info), None
            if not refusal and any(each.endpoint == endpoint for each in self.instances(info.name)):
                refusal = f"endpoint {endpoint} already registered for DRA driver plugin {info.name}"
                self._known[path] = (identity, None)
            if not refusal:
                instance = Instance(info.name, endpoint, self._version(info))
                with self._lock:
                    self._instances.append(instance)
                    self.registered[info.name] = self.registered.get(info.name, 0) + 1
                self._known[path] = (identity, instance)
            self.refused.update({path: refusal} if refusal else {})
            status = registration.RegistrationStatus(plugin_registered=not refusal, error=refusal)
            _asked(channel, "NotifyRegistrationStatus", status, registration.RegistrationStatusResponse, _NOTIFY_S)

    def _fault(self, info: Any) -> str:
        """What is wrong with a plugin; "" for nothing."""
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}"
        if not self._version(info):
            return f"none of services supported by the plugin ({list(info.supported_versions)}) are supported by the kubelet"
        return ""

    def _version(self, info: Any) -> str:
        """The newest version that both have; "" for none."""
        offered = set(info.supported_versions)
        return next((each for each in VERSIONS if each in self._versions and f"{each}.DRAPlugin" in offered), "")


def accepts(path: str) -> bool:
    """Whether a process accepts connections at the unix socket."""
    with socket.socket(socket.AF_UNIX) as trial, suppress(OSError):
        trial.connect(path)
        return True
    return False


def _socket(path: Path) -> Identity | None:
    """What distinguishes a socket from a later one of its name; None for what is no socket, and for hidden names."""
    with suppress(OSError):
        facts = path.lstat()
        if stat.S_ISSOCK(facts.st_mode) and not path.name.startswith("."):
            return facts.st_ino, facts.st_ctime_ns
    return None


def _asked(channel: Any, name: str, message: Any, answered: Any, seconds: float) -> Any:
    call = channel.unary_unary(
        f"/pluginregistration.Registration/{name}",
        request_serializer=type(message).SerializeToString,
        response_deserializer=answered.FromString,
    )
    return call(message, timeout=seconds)
