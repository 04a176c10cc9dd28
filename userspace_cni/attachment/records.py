"""Records of attachments, typed, and their JSON form in the store: the undo log and the deletion queue. Pure.

A record is written before the first effect and dropped after the last one is undone, so that a later process can finish
what a dead one began. It holds everything that DEL needs; neither the pod nor the configuration is read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from reprlib import repr as repr_short
from typing import Any, Final, Literal

from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.steps import CLAIM, STEP_TYPES, OwnerKind, Parts, PortRef, Step
from userspace_cni.attachment.stored_form import Codec, MalformedRecord, StoredForm, form_of
from userspace_cni.base.notices import Recipient

State = Literal["pending", "applying", "ready", "deleting"]
"""pending: addresses are being leased. applying: the first steps are true. ready: all steps are true, and ADD was answered or is
about to be. deleting: the first steps may still be true."""

SCHEMA: Final = 1
_NODE: Final = "+"
"""What the container ID of a node attachment begins with, as no container's can."""
_RUN: Final = "="
"""The same of a run's record; the run's name follows."""
_BY_FIRST: Final[Mapping[str, OwnerKind]] = {_NODE: "node", _RUN: "run", CLAIM: "claim"}
_COMPLETE: Final = "complete"


@dataclass(frozen=True)
class Record(Parts):
    """One attachment. `boottime_ns` is CLOCK_BOOTTIME at ADD: with `boot_id` it orders calls without a wall clock.

    `made`: keys of the shared things of its steps (Resource.key) that we made, for this attachment or another. A node
    attachment has no container: `container_id` is "+" and the kind of its spec, `ifname` the spec's name, `network` the source
    of the spec (see `specs`), and `result`, during a change, the last complete state (see `complete`). A run of a command has
    no container either: `container_id` is "=" and the name of the run, `network` and `ifname` its purpose (see `runs`). A device
    of a claim, which comes before its pod's container, has "_" and the claim's UID there, as `network` the claim's name, and as
    `result` what was asked for (see `claims`).
    """

    state: State
    network: str
    container_id: str
    ifname: str
    netns: str = ""
    netns_inode: int = 0
    boot_id: str = ""
    boottime_ns: int = 0
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    steps: tuple[Step, ...] = ()
    made: tuple[str, ...] = ()
    result: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """The record's name in the store: one per (container, ifname). '@' cannot occur in a container ID."""
        return record_key(self.container_id, self.ifname)

    @property
    def owner(self) -> OwnerKind:
        return owner_of(self.key)

    @property
    def run(self) -> RunId | None:
        return RunId.parse(self.container_id.removeprefix(_RUN)) if self.owner == "run" else None

    @property
    def claim_uid(self) -> str:
        """The UID of the claim of which it is a device; "" for every other owner."""
        return self.container_id.removeprefix(CLAIM) if self.owner == "claim" else ""

    @property
    def subject(self) -> dict[str, str]:
        """The keys of a log line by which it names the attachment."""
        if self.run:
            return {"purpose": self.network, "process": f"run-{self.run.pid}", "number": self.run.number}
        if self.owner == "node":
            return {"spec": f"{self.container_id.removeprefix(_NODE)} {self.ifname}"}
        pod = f"{self.pod_namespace}/{self.pod_name}" if self.pod_name else ""
        if self.owner == "claim":
            return {"claim": f"{self.pod_namespace}/{self.network}", "pod": pod, "uid": self.claim_uid, "interface": self.ifname}
        return {"pod": pod, "network": self.network, "container": self.container_id, "interface": self.ifname}

    @property
    def recipient(self) -> Recipient:
        return Recipient(self.pod_namespace, self.pod_name, self.pod_uid, self.ifname)

    @property
    def port_ref(self) -> PortRef | None:
        """Its port, also one of which nothing else is known, and a claim's that it has joined."""
        return self.port.ref if self.port else self.joined.shown if self.joined else self.bare_ref

    @property
    def complete(self) -> tuple[Step, ...] | None:
        """The steps that a node attachment had when all of them were true the last time; None if they never were."""
        if self.state == "ready":
            return self.steps
        listed = (self.result or {}).get(_COMPLETE)
        try:
            return tuple(map(step_from_json, listed)) if isinstance(listed, list) else None
        except MalformedRecord:
            return None

    def to(self, state: State, **changes: Any) -> Record:
        return replace(self, state=state, **changes)


def record_key(container_id: str, ifname: str) -> str:
    return f"{container_id}@{ifname}"


def node_container(kind: str) -> str:
    """What stands for the container ID of a node attachment whose spec is of this kind."""
    return f"{_NODE}{kind}"


def run_container(run: RunId) -> str:
    """What stands for the container ID in the record of a run."""
    return f"{_RUN}{run.name}"


def claim_container(uid: str) -> str:
    """What stands for the container ID in the records of a claim's devices: no pod's container exists yet."""
    return f"{CLAIM}{uid}"


def owner_of(key: str) -> OwnerKind:
    return _BY_FIRST.get(key[:1], "pod")


def encode_complete(steps: tuple[Step, ...] | None) -> dict[str, Any] | None:
    """The `result` of a node attachment that is being changed and had these steps before, None for none; see Record.complete."""
    return None if steps is None else {_COMPLETE: [step_to_json(step) for step in steps]}


def as_recorded(step: Step) -> Step:
    """The step as it will be read from a record: a plan's is compared with that one. Raises MalformedRecord."""
    return step_from_json(json.loads(json.dumps(step_to_json(step))))


def record_to_json(record: Record) -> dict[str, Any]:
    return {**_RECORD.write(record, whole=True), "schema": SCHEMA}


def record_from_json(raw: Mapping[str, Any]) -> Record:
    """The inverse of record_to_json. Raises MalformedRecord."""
    if type(raw.get("schema")) is not int or raw["schema"] != SCHEMA:
        raise MalformedRecord(f"schema is {repr_short(raw.get('schema'))}, this version reads {SCHEMA}")
    if not isinstance(raw.get("steps"), list):
        raise MalformedRecord("'steps' is not a list")
    return _RECORD.read({key: value for key, value in raw.items() if key != "schema"})


def step_to_json(step: Step, *, whole: bool = False) -> dict[str, Any]:
    """The step as JSON values, with its kind under "step"; `whole`: also the fields that have their defaults."""
    return {"step": step.kind, **form_of(type(step)).write(step, whole=whole)}


def step_from_json(raw: object) -> Step:
    """The inverse of step_to_json. Raises MalformedRecord."""
    kind = raw.get("step") if isinstance(raw, dict) else raw
    if not isinstance(raw, dict) or not isinstance(kind, str) or kind not in STEP_TYPES:
        raise MalformedRecord(f"unknown step {repr_short(kind)}")
    return form_of(STEP_TYPES[kind]).read({key: value for key, value in raw.items() if key != "step"})


_RECORD: Final = StoredForm(Record, {Step: Codec(step_to_json, step_from_json)})
