"""Records of attachments, typed, and their JSON form in the store: the undo log and the deletion queue. Pure.

A record is written before the first effect and dropped after the last one is undone, so that a later process can finish
what a dead one began. It holds everything that DEL needs; neither the pod nor the configuration is read again.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from reprlib import repr as repr_short
from typing import Any, Final, Literal, TypeVar, cast, get_args

from userspace_cni.attachment.steps import STORED_TYPES, Directory, OvsPort, PodMount, PodNote, PortRef, Socket, Step, first_of
from userspace_cni.base.notices import Recipient

State = Literal["pending", "applying", "ready", "deleting"]
"""pending: addresses are being leased. applying: the first steps are true. ready: all steps are true, and ADD was answered or is
about to be. deleting: the first steps may still be true."""

SCHEMA: Final = 1
_NODE: Final = "+"
"""What the container ID of a node attachment begins with, as no container's can."""
_COMPLETE: Final = "complete"
T = TypeVar("T")
Check = Callable[[Any], bool]


class MalformedRecord(ValueError):
    """A record that this version cannot read; the text says which field is wrong."""


@dataclass(frozen=True)
class Record:
    """One attachment. `boottime_ns` is CLOCK_BOOTTIME at ADD: with `boot_id` it orders calls without a wall clock.

    `made`: keys of the shared things of its steps (Resource.key) that we made, for this attachment or another.
    A node attachment has no container: `container_id` is "+" and the kind of its wish, `ifname` the wish's name, `network` where
    the wish is from (see `wishes`), `result` while it is being changed what it had before (see `complete`).
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
    def is_nodes(self) -> bool:
        """Whether the node itself is to have it."""
        return is_nodes(self.key)

    @property
    def subject(self) -> dict[str, str]:
        """The keys of a log line by which it names the attachment."""
        if self.is_nodes:
            return {"wish": f"{self.container_id.removeprefix(_NODE)} {self.ifname}"}
        pod = f"{self.pod_namespace}/{self.pod_name}" if self.pod_name else ""
        return {"pod": pod, "network": self.network, "container": self.container_id, "interface": self.ifname}

    @property
    def recipient(self) -> Recipient:
        """Whom a notice about the attachment is for."""
        return Recipient(self.pod_namespace, self.pod_name, self.pod_uid, self.ifname)

    @property
    def port(self) -> OvsPort | None:
        """Its port; None while its addresses are being leased."""
        return first_of(self.steps, OvsPort)

    @property
    def port_ref(self) -> PortRef | None:
        """The reference by which its port is deleted, also of a port of which nothing else is known."""
        return self.port.ref if self.port else first_of(self.steps, PortRef)

    @property
    def socket(self) -> Socket | None:
        """Its socket."""
        return first_of(self.steps, Socket)

    @property
    def directory(self) -> Directory | None:
        """The directory of its socket."""
        return first_of(self.steps, Directory)

    @property
    def mount(self) -> PodMount | None:
        """The mount through which the switch sees that directory."""
        return first_of(self.steps, PodMount)

    @property
    def note(self) -> PodNote | None:
        """Its entry in the pod's annotations."""
        return first_of(self.steps, PodNote)

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
        """This record in another state."""
        return replace(self, state=state, **changes)


_FIELDS: Final = tuple(item.name for item in fields(Record))


def record_key(container_id: str, ifname: str) -> str:
    """The store's key of an attachment."""
    return f"{container_id}@{ifname}"


def node_container(kind: str) -> str:
    """What stands for the container ID of a node attachment whose wish is of this kind."""
    return f"{_NODE}{kind}"


def is_nodes(key: str) -> bool:
    """Whether the key is a node attachment's."""
    return key.startswith(_NODE)


def completed(steps: tuple[Step, ...] | None) -> dict[str, Any] | None:
    """The `result` of a node attachment that is being changed and had these steps before, None for none; see Record.complete."""
    return None if steps is None else {_COMPLETE: [step_to_json(step) for step in steps]}


def as_recorded(step: Step) -> Step:
    """The step as it will be read from a record: a plan's is compared with that one. Raises MalformedRecord."""
    return step_from_json(json.loads(json.dumps(step_to_json(step))))


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as JSON values."""
    values = {name: getattr(record, name) for name in _FIELDS}
    steps = [step_to_json(step) for step in record.steps]
    return {**values, "schema": SCHEMA, "steps": steps, "made": list(record.made)}


def record_from_json(raw: Mapping[str, Any]) -> Record:
    """The inverse of record_to_json. Raises MalformedRecord."""
    if type(raw.get("schema")) is not int or raw["schema"] != SCHEMA:
        raise MalformedRecord(f"schema is {repr_short(raw.get('schema'))}, this version reads {SCHEMA}")
    steps = raw.get("steps")
    if not isinstance(steps, list):
        raise MalformedRecord("'steps' is no list")
    values = {**raw, "steps": tuple(step_from_json(step) for step in steps)}
    return _build(Record, {key: value for key, value in values.items() if key != "schema"})


def step_to_json(step: Step) -> dict[str, Any]:
    """The step as JSON values, with its kind under "step"."""
    stored = step.stored()
    return {"step": stored.kind, **{name: _to_json(getattr(stored, name)) for name in _names(cast(Any, type(stored)))}}


@cache
def _names(kind: type[Step]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _to_json(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def step_from_json(raw: object) -> Step:
    """The inverse of step_to_json. Raises MalformedRecord."""
    kind = raw.get("step") if isinstance(raw, dict) else raw
    if not isinstance(raw, dict) or not isinstance(kind, str) or kind not in STORED_TYPES:
        raise MalformedRecord(f"unknown step {repr_short(kind)}")
    stored = _build(STORED_TYPES[kind], {key: value for key, value in raw.items() if key != "step"})
    try:
        return stored.restored()
    except (TypeError, ValueError, KeyError) as error:
        raise MalformedRecord(f"{_name_of(type(stored))}: {error!r}") from error


def _build(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from JSON values, each checked against its field's annotation."""
    checks = _checks(cast(Any, kind))
    known: dict[str, Any] = {}
    for name, value in values.items():
        if name not in checks:
            raise MalformedRecord(f"{_name_of(kind)} has no field {name!r}")
        if not checks[name](value):
            raise MalformedRecord(f"{_name_of(kind)}.{name} is {repr_short(value)}")
        known[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**known)
    except TypeError as error:
        raise MalformedRecord(str(error)) from error


def _name_of(kind: type[Any]) -> str:
    """What messages call the type: a stored form by what it is the form of."""
    return kind.__name__.removeprefix("Stored")


@cache
def _checks(kind: type[Any]) -> Mapping[str, Check]:
    """The check of a JSON value, by field. Made once per type: a node has hundreds of records."""
    hints = typing.get_type_hints(kind)
    return {item.name: _check_of(hints[item.name]) for item in fields(kind)}


def _check_of(hint: Any) -> Check:
    """A check whether a JSON value (or, for steps, a tuple of Step) is of the annotated type."""
    origin, arguments = typing.get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is types.UnionType:
        options = [_check_of(option) for option in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        each = _check_of(arguments[0])
        return lambda value: isinstance(value, (list, tuple)) and all(map(each, value))
    if origin is not None:
        values = _check_of(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(values, value.values()))
    if hint is Any:
        return lambda _: True
    if hint is Step:
        return lambda value: isinstance(value, Step)
    return lambda value: type(value) is hint
