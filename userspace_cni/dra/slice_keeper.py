"""Keeps this node's ResourceSlices in the API as its bridges are: written when something differs, and not otherwise.

A kubelet that starts deletes all slices of its node, and those of a driver that has been away for 30 s. So one of them is
watched, and whatever others did to them is mended. All slices of a pool carry one generation, which is a higher one with each
change; those that are no longer needed are deleted last, from the highest number down, so that a process that dies meanwhile
leaves none that its successor does not find: it reads from number 0 until there is none.

What the server has of newer releases' fields is found out by a dry run, at the start and from time to time: servers drop fields
whose feature is off. Only `resource.k8s.io/v1` is spoken, which servers have from Kubernetes 1.34 on; 1.33 has beta versions
alone, off unless asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import NoSuchObject, NotAllowed, ObjectRefused, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.dra.slice_content import (
    PoolBridge,
    ServerAbilities,
    device_health,
    read_abilities,
    said_specs,
    slice_name,
    slice_specs,
    trial_specs,
)
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import NODES, RESOURCE_SLICES

MANAGER: Final = "userspace-cni-agent"
STOP_S: Final = 0.5


@dataclass(frozen=True)
class SliceTimes:
    """Seconds: changes within `settle_s` are one write; the server's slices and abilities are looked at each `look_s`, the
    bridges each `bridges_s` and when they are told to have changed."""

    settle_s: float = 0.2
    apart_s: float = 1.0
    look_s: float = 1200.0
    bridges_s: float = 1200.0
    back_off: BackOff = BackOff(1.0, 120.0, spread=0.5)


@dataclass(frozen=True)
class _Published:
    """The slices as the server has them: their owner, their specs without the generation, and the first one's version."""

    abilities: ServerAbilities
    owner: Mapping[str, Any]
    specs: list[dict[str, Any]]
    generation: int
    version: str


class SliceKeeper(Loop):
    """The slices of node `node`. Safe to use from any thread.

    `bridges` gives the bridges, None while they are not known: then the slices stay as they are. It may ask the kubelet, and is
    called in each round. `told` is called with each device's health when it may have changed, `count` with the outcome of each
    write; neither may wait.
    """

    failing = "the ResourceSlices of this node cannot be kept now; it is tried again: "
    end_s = STOP_S

    def __init__(
        self,
        objects: Objects,
        node: str,
        bridges: Callable[[], Sequence[PoolBridge] | None],
        told: Callable[[Mapping[str, bool]], None] = lambda _: None,
        count: Callable[[str], None] = lambda _: None,
        times: SliceTimes | None = None,
    ) -> None:
        super().__init__("resource-slices", "keeps the ResourceSlices of this node")
        self._objects = objects
        self._node = node
        self._bridges = bridges
        self._told = told
        self._count = count
        self._times = times or SliceTimes()
        self.settle_s, self.apart_s, self.back_off = self._times.settle_s, self._times.apart_s, self._times.back_off
        self._watched: str | None = None
        """The version of the first slice by the watch, "" where there is none; None while that is not known."""
        # only the thread uses these
        self._abilities: ServerAbilities | None = None
        self._published: _Published | None = None
        self._looked = 0.0

    @property
    def name(self) -> str:
        """Of the slice that is to be watched."""
        return slice_name(self._node, 0)

    @property
    def devices(self) -> int | None:
        """How many devices the server has of this node; None while that is not known."""
        published = self._published
        return None if published is None else sum(len(each["devices"]) for each in published.specs)

    def note_watched(self, versions: Mapping[str, str] | None) -> None:
        """Hear what the watch knows of the first slice: its version by its name. Never waits."""
        with self._wake:
            self._watched = None if versions is None else versions.get(self.name, "")
            if self._is_stale:
                self.ask()

    @property
    def _is_stale(self) -> bool:
        """Whether others may have changed the slices; also for a moment after a write, until the watch tells of it."""
        published, watched = self._published, self._watched
        return published is None or (watched is not None and watched != published.version)

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        try:
            self.keep()
        except NoSuchObject as error:
            raise UserspaceError(
                str(error), "resource.k8s.io/v1 is served by Kubernetes 1.34 and newer; kubectl api-resources"
            ) from None
        return (
            min(self._times.bridges_s, max(0.0, self._looked + self._times.look_s - time.monotonic())) if self._looked else None
        )

    def keep(self) -> None:
        """Write what is not as it should be. Raises UserspaceError; only the thread may call it, or a caller without one."""
        bridges = self._bridges()
        if bridges is None:
            return
        published = self._published
        if published is None or self._is_stale or time.monotonic() - self._looked >= self._times.look_s:
            published = self._look()
        self._told(device_health(bridges, shared=published.abilities.shared))
        specs = slice_specs(self._node, bridges, published.abilities)
        if specs != published.specs:
            self._publish(specs, published)

    def _look(self) -> _Published:
        """Read the slices, and find out what the server has."""
        self._published = None
        node = self._objects.get(NODES, self._node)
        if node is None:
            raise UserspaceError(f"the API server knows no node {self._node}", "the setting node_name")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
        found: list[Mapping[str, Any]] = []
        while (each := self._objects.get(RESOURCE_SLICES, slice_name(self._node, len(found)))) is not None:
            found.append(each)
        generations = [int(((each.get("spec") or {}).get("pool") or {}).get("generation") or 0) for each in found]
        version = found[0]["metadata"]["resourceVersion"] if found else ""
        owned = all(owner in ((each["metadata"].get("ownerReferences")) or ()) for each in found)
        specs = said_specs(found) if owned and len(set(generations)) == 1 else [{} for _ in found]
        highest = max(generations, default=0)
        self._abilities = self._try_out(owner, highest)
        self._published = published = _Published(self._abilities, owner, specs, highest, version)
        self._looked = time.monotonic()
        return published

    def _try_out(self, owner: Mapping[str, Any], generation: int) -> ServerAbilities:
        """What the server keeps of a slice, by a dry run."""
        body = _body(owner, trial_specs(self._node), generation)
        try:
            answer = self._objects.dry_run(RESOURCE_SLICES, self.name, body, manager=MANAGER, force=True)
        except (NotAllowed, NoSuchObject):
            raise
        except ObjectRefused as error:  # it does not even know the fields
            say("debug", "the server does not take all fields of a ResourceSlice", error=error)
            return ServerAbilities()
        found = read_abilities(answer.get("spec") or {})
        if found != self._abilities:
            say("info", "what the API server has for devices", shared=found.shared, taints=found.taints)
        return found

    def _publish(self, specs: list[dict[str, Any]], published: _Published) -> None:
        """Write all slices with the next generation, and delete those that are too many."""
        generation = published.generation + 1
        self._published = None  # until all are written
        outcome = "failed"
        try:
            answers = [
                self._objects.apply(
                    RESOURCE_SLICES, slice_name(self._node, number), _body(published.owner, spec, generation), manager=MANAGER
                )
                for number, spec in enumerate(specs)
            ]
            for number in reversed(range(len(specs), len(published.specs))):
                self._objects.delete(RESOURCE_SLICES, slice_name(self._node, number))
            outcome = "written"
        finally:
            self._count(outcome)
        self._published = _Published(
            published.abilities, published.owner, specs, generation, answers[0]["metadata"]["resourceVersion"]
        )
        say("info", "the ResourceSlices of this node are written", devices=self.devices, slices=len(specs), generation=generation)


def version_of(thing: Mapping[str, Any]) -> str:
    """What the watch keeps of a slice."""
    return str(thing["metadata"]["resourceVersion"])


def _body(owner: Mapping[str, Any], spec: Mapping[str, Any], generation: int) -> dict[str, Any]:
    pool = {**spec["pool"], "generation": generation}
    return {"metadata": {"ownerReferences": [owner]}, "spec": {**spec, "pool": pool}}
