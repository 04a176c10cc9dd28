"""A kubelet as drivers of devices see it: when it has claims prepared and unprepared, and what it remembers over a restart.

It speaks the real protocol, and follows the kubelet's rules: a claim is read from the API server and has to be reserved for the
pod; all claims of a pod are one call; a claim that was prepared is not prepared again while this kubelet lives. Which pods use a
claim is in a checkpoint before the call, and what was answered after it; whether a claim is prepared is not in it. The last pod
that ends has the claim unprepared, whether or not the claim's object is still there. What fails is tried again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.lab.dra.plugin_registry import VERSIONS, KubeletError, PluginRegistry
from tests.lab.kube.pods import Pod
from tests.lab.switch.switch import wait_until
from userspace_cni.linux.closing import Closing

ClaimReader = Callable[[str, str], Mapping[str, Any]]
"""A claim's object by namespace and name; KeyError without one."""
Key = tuple[str, str]


@dataclass
class ClaimInfo:
    """What the checkpoint has of a claim: `drivers` has the devices of each driver as it answered them."""

    uid: str
    namespace: str
    name: str
    pods: list[str]
    drivers: dict[str, list[dict[str, Any]]]

    @property
    def reference(self) -> dict[str, str]:
        """How the claim is named in calls."""
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}


@dataclass(frozen=True)
class Called:
    """A call that a driver has answered, or not."""

    name: str
    version: str
    endpoint: str
    claims: tuple[str, ...]


@dataclass
class DraKubelet(Closing):
    """The kubelet of the root directory `root`, not started yet. `checkpoint`: its file, which outlives it.

    `calls`: those of all its lives. Pods may be prepared and unprepared at the same time, on different threads.
    """

    root: Path
    checkpoint: Path
    claims: ClaimReader
    versions: Sequence[str] = tuple(VERSIONS)
    calls: list[Called] = field(default_factory=list)
    _registry: PluginRegistry | None = None
    _infos: dict[Key, ClaimInfo] = field(default_factory=dict)
    _prepared: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        """Read the checkpoint, and look for drivers."""
        kept = json.loads(self.checkpoint.read_text()) if self.checkpoint.exists() else []
        self._infos = {(each["namespace"], each["name"]): ClaimInfo(**each) for each in kept}
        self._registry = PluginRegistry(self.root / "plugins_registry", self.versions)
        return self

    def close(self) -> None:
        """End as by SIGKILL: the checkpoint stays."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.close()
        self._prepared.clear()

    def restart(self) -> None:
        """End and begin again."""
        self.close()
        self.start()

    @property
    def registry(self) -> PluginRegistry:
        assert self._registry, "the kubelet does not run"
        return self._registry

    def await_driver(self, driver: str, instances: int = 1) -> None:
        """Wait until so many instances of the driver are registered, and one accepts calls."""
        wait_until(
            lambda: len(self.registry.instances(driver)) == instances and self.registry.instance(driver).connected,
            what=f"{instances} of {driver} to be registered: {self.registry.refused}",
        )

    def prepare(self, pod: Pod, *claims: str) -> None:
        """Have the pod's claims prepared, once. Raises KubeletError."""
        read = [self._read(pod, name) for name in claims]
        for each in read:
            for driver in each.drivers:
                self.registry.instance(driver)  # before anything is remembered of the pod
        with self._lock:
            due = [known for each in read if (known := self._referred(each, pod)).uid not in self._prepared]
        for driver, infos in _by_driver(due):
            answer = self._call(driver, "NodePrepareResources", infos)
            for info in infos:
                info.drivers[driver] = [_device(each) for each in answer[info.uid].devices]
        with self._lock:
            self._prepared |= {each.uid for each in due}
            self._save()

    def admit(self, pod: Pod, *claims: str) -> None:
        """As `prepare`, tried until it succeeds, as the kubelet does with a pod that cannot start."""
        self._retried(lambda: self.prepare(pod, *claims), f"claims {claims} of {pod.name} to be prepared")

    def cdi_devices(self, pod: Pod, request: str = "") -> list[str]:
        """The CDI names that a container of the pod gets which uses all requests of its claims, or this one."""
        devices = [each for info in self._used(pod) for of in info.drivers.values() for each in of]
        wanted = [each for each in devices if not request or not each["requests"] or request in each["requests"]]
        return [name for each in wanted for name in each["cdi"]]

    def unprepare(self, pod: Pod) -> None:
        """Have those of the pod's claims unprepared that no other pod uses, once. Raises KubeletError."""
        self._unprepare(pod.uid)

    def end(self, pod: Pod) -> None:
        """As `unprepare`, tried until it succeeds."""
        self._retried(lambda: self._unprepare(pod.uid), f"the claims of {pod.name} to be unprepared")

    def reconcile(self, active: Collection[Pod] = ()) -> None:
        """What the kubelet does every minute: unprepare what pods used that are no longer active. Raises KubeletError."""
        gone = {uid for info in self._infos.values() for uid in info.pods} - {each.uid for each in active}
        for uid in sorted(gone):
            self._unprepare(uid)

    def remembers(self) -> list[str]:
        """The UIDs of the claims in the checkpoint."""
        return [each.uid for each in self._infos.values()]

    def called(self, name: str) -> int:
        """How often a claim was in such a call."""
        return sum(len(each.claims) for each in self.calls if each.name == name)

    def _read(self, pod: Pod, name: str) -> ClaimInfo:
        """The claim as the API server has it, if the pod may use it. Raises KubeletError."""
        try:
            claim = self.claims(pod.namespace, name)
        except KeyError:
            raise KubeletError(f"fetch ResourceClaim {name}: not found") from None
        status, uid = claim.get("status") or {}, str(claim["metadata"]["uid"])
        if not any(each["uid"] == pod.uid for each in status.get("reservedFor", ())):
            raise KubeletError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({uid})")
        if "allocation" not in status:
            raise KubeletError(f"ResourceClaim {name}: not allocated")
        drivers: dict[str, list[dict[str, Any]]] = {each["driver"]: [] for each in status["allocation"]["devices"]["results"]}
        return ClaimInfo(uid, pod.namespace, name, [], drivers)

    def _referred(self, claim: ClaimInfo, pod: Pod) -> ClaimInfo:
        """The claim as it is known, used by this pod, too. Raises KubeletError."""
        known = self._infos.setdefault((claim.namespace, claim.name), claim)
        if known.uid != claim.uid:
            raise KubeletError(f"old ResourceClaim with same name {claim.name} and different UID {known.uid} still exists")
        known.pods = sorted({*known.pods, pod.uid})
        self._save()
        return known

    def _unprepare(self, uid: str) -> None:
        with self._lock:
            used = [each for each in self._infos.values() if uid in each.pods]
            due = [each for each in used if len(each.pods) == 1]
            for info in used:
                if info not in due:
                    info.pods.remove(uid)
        for driver, infos in _by_driver(due):
            self._call(driver, "NodeUnprepareResources", infos)
        with self._lock:
            for info in due:
                self._infos.pop((info.namespace, info.name), None)
                self._prepared.discard(info.uid)
            self._save()

    def _call(self, driver: str, name: str, infos: Sequence[ClaimInfo]) -> Mapping[str, Any]:
        """The driver's answer by UID, which has to be about exactly these claims, and good. Raises KubeletError."""
        instance = self.registry.instance(driver)
        self.calls.append(Called(name, instance.version, instance.endpoint, tuple(each.uid for each in infos)))
        answer: Mapping[str, Any] = instance.call(name, [each.reference for each in infos]).claims
        names = {each.uid: each.name for each in infos}
        for uid, result in answer.items():
            if uid not in names:
                raise KubeletError(f"{name} returned result for unknown claim UID {uid}")
            if result.error:
                raise KubeletError(f"{name} failed for ResourceClaim {names[uid]}: {result.error}")
        if missing := set(names) - set(answer):
            raise KubeletError(f"{name} skipped {len(missing)} ResourceClaims")
        return answer

    def _used(self, pod: Pod) -> list[ClaimInfo]:
        return [each for each in self._infos.values() if pod.uid in each.pods]

    def _save(self) -> None:
        written = self.checkpoint.with_suffix(".new")
        written.write_text(json.dumps([vars(each) for each in self._infos.values()]))
        written.rename(self.checkpoint)

    def _retried(self, act: Callable[[], None], what: str) -> None:
        heard: list[str] = []

        def done() -> bool:
            try:
                act()
            except KubeletError as error:
                heard.append(str(error))
                return False
            return True

        try:
            wait_until(done, what=what, pause=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}: {heard[-1]}") from None


def _by_driver(infos: Sequence[ClaimInfo]) -> Iterator[tuple[str, list[ClaimInfo]]]:
    for driver in sorted({driver for each in infos for driver in each.drivers}):
        yield driver, [each for each in infos if driver in each.drivers]


def _device(device: Any) -> dict[str, Any]:
    """A device of an answer, as the checkpoint has it."""
    return {
        "pool": device.pool_name,
        "device": device.device_name,
        "requests": list(device.request_names),
        "cdi": list(device.cdi_device_ids),
    }
