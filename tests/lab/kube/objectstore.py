"""Objects of one resource of the API server for tests, with the real one's rules for writing them.

A write that changes nothing gives no new version. Who wrote which field is kept (managedFields): with server-side apply a field
that its manager no longer applies goes, and one that another manager owns is a conflict unless it is forced. Where there is a
status subresource, each of the two paths changes its own part. Nothing in here knows HTTP or the code under test.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.lab.kube import managed_fields as owned
from tests.lab.kube.managed_fields import Conflicts, Fields, Manager
from tests.lab.kube.schemas import check_schema, faults, prune, set_defaults
from tests.lab.kube.store import NAMES, Refusal, Store, check_preconditions, merged

_OPEN: Final[Mapping[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_OF_THE_SERVER: Final = ("", "coordination.k8s.io", "resource.k8s.io")
_OWN_METADATA: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "managedFields", "resourceVersion")


@dataclass(frozen=True)
class Kind:
    """What the server knows of a resource; `schema` is the whole object's, `has_status` says whether /status is a path.

    `selected`: fields by which lists and watches can be selected, beside the name.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False
    has_status: bool = False
    schema: Mapping[str, Any] = field(default_factory=lambda: _OPEN)
    selected: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """As in the server's messages, and as kubectl takes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


ENDPOINT_SLICES: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True)
BUILT_IN: Final = (
    Kind("", "v1", "nodes", "Node", has_status=True),
    Kind("", "v1", "services", "Service", namespaced=True, has_status=True),
    Kind("", "v1", "endpoints", "Endpoints", namespaced=True),
    ENDPOINT_SLICES,
    Kind("", "v1", "namespaces", "Namespace", has_status=True),
    Kind("apps", "v1", "replicasets", "ReplicaSet", namespaced=True, has_status=True),
    Kind("batch", "v1", "jobs", "Job", namespaced=True, has_status=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", namespaced=True),
)
SERVICE_CIDRS: Final = Kind("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", has_status=True)
"""A kind that servers have from Kubernetes 1.33 on."""
FORMER_ENDPOINT_SLICES: Final = Kind("discovery.k8s.io", "v1beta1", "endpointslices", "EndpointSlice", namespaced=True)
"""As servers before Kubernetes 1.21 have them."""


def defined(definition: Mapping[str, Any]) -> Kind:
    """The kind that a CustomResourceDefinition (apiextensions.k8s.io/v1) makes. Raises AssertionError for one that is refused."""
    spec, name = definition["spec"], definition["metadata"]["name"]
    assert definition["apiVersion"] == "apiextensions.k8s.io/v1", name
    assert name == f"{spec['names']['plural']}.{spec['group']}", f"{name}: the name must be plural.group"
    assert spec.get("preserveUnknownFields", False) is False, f"{name}: v1 allows no preserveUnknownFields"
    [version] = [each for each in spec["versions"] if each["storage"]]
    schema = version["schema"]["openAPIV3Schema"]
    check_schema(schema, name)
    assert set(schema["properties"].get("metadata", {})) <= {"type"}, f"{name}: metadata is specified implicitly"
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=spec["names"]["plural"],
        kind=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in version.get("subresources", {}),
        schema=schema,
        selected=frozenset(each["jsonPath"].removeprefix(".") for each in version.get("selectableFields", ())),
    )


@dataclass(frozen=True)
class Write:
    """One request: who asks (`manager`), for which subresource, and whether unknown fields are refused (`strict`)."""

    manager: str
    subresource: str = ""
    strict: bool = False
    force: bool = False


class ObjectStore(Store):
    """Objects of one kind by namespace and name. `writes` counts what gave a new version."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind.api_version, kind.kind, NAMES | kind.selected)
        self.of = kind
        self.writes = 0

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """As Store.dry_run, and not counted either."""
        with super().dry_run():
            writes = self.writes
            try:
                yield
            finally:
                self.writes = writes

    def item(self, thing: dict[str, Any]) -> dict[str, Any]:
        """An object as lists have it: those of custom resources name their kind."""
        return thing if self.of.group not in _OF_THE_SERVER else super().item(thing)

    def read(self, namespace: str, name: str) -> dict[str, Any]:
        """A copy of the object. Raises Refusal when there is none."""
        try:
            return self.get(namespace, name)
        except KeyError:
            raise Refusal(404, "NotFound", f'{self.of.title} "{name}" not found') from None

    def create(self, namespace: str, sent: Mapping[str, Any], write: Write) -> dict[str, Any]:
        """Make an object. Raises Refusal."""
        with self.changed:
            name = self._named(namespace, sent, (sent.get("metadata") or {}).get("name") or "")
            if (namespace, name) in self.things:
                raise Refusal(409, "AlreadyExists", f'{self.of.title} "{name}" already exists')
            if (sent["metadata"]).get("resourceVersion"):
                raise Refusal(400, "BadRequest", "resourceVersion should not be set on objects to be created")
            made = self._accepted(sent, write)
            made["metadata"] |= {"namespace": namespace} if namespace else {}
            if self.of.has_status:
                made.pop("status", None)
            return self._finish(None, made, {Manager(write.manager, "Update"): owned.fields_of(self.of.schema, made)})

    def replace(self, namespace: str, name: str, sent: Mapping[str, Any], write: Write) -> dict[str, Any]:
        """Replace the object by `sent`, in the part that the path is for. Raises Refusal."""
        with self.changed:
            old = self.read(namespace, name)
            self._named(namespace, sent, name)
            if not sent["metadata"].get("resourceVersion") and self.of.group:
                raise Refusal(422, "Invalid", "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
            check_preconditions(self.of.title, old["metadata"], sent["metadata"])
            return self._update(old, sent, write)

    def patch(self, namespace: str, name: str, patch: Mapping[str, Any], write: Write) -> dict[str, Any]:
        """Apply a merge patch, in the part that the path is for. Raises Refusal."""
        with self.changed:
            old = self.read(namespace, name)
            check_preconditions(self.of.title, old["metadata"], patch.get("metadata") or {})
            return self._update(old, merged(old, patch), write)

    def apply(self, namespace: str, name: str, config: Mapping[str, Any], write: Write) -> dict[str, Any]:
        """Server-side apply. Raises Refusal; 409 names the managers of fields in conflict."""
        with self.changed:
            self._named(namespace, config, name)
            if "managedFields" in config["metadata"]:
                raise Refusal(400, "BadRequest", "metadata.managedFields must be nil")
            old = self.things.get((namespace, name))
            if old is None and (write.subresource or config["metadata"].get("uid")):
                status, reason = (404, "NotFound") if write.subresource else (409, "Conflict")
                raise Refusal(status, reason, f'{self.of.title} "{name}" not found')
            sent = config["metadata"]
            if old is not None and sent.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                raise Refusal(422, "Invalid", f"metadata.uid: Invalid value: {sent['uid']!r}: field is immutable")
            if old is not None:
                check_preconditions(self.of.title, old["metadata"], sent)
            self._refuse_twice(config)
            checked = self._part(copy.deepcopy(dict(config)), write.subresource)
            unknown = prune(self.of.schema, {key: value for key, value in checked.items() if key not in _WHOLE})
            self._refuse_unknown(unknown, write)
            placed = {"name": name, **({"namespace": namespace} if namespace else {})}
            live = old or {"apiVersion": self.of.api_version, "kind": self.of.kind, "metadata": placed}
            made, managers = self._merged(live, checked, write)
            return self._finish(old, self._accepted(made, write), managers)

    def delete(self, namespace: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the object, or begin to if it has finalizers. Raises Refusal."""
        with self.changed:
            old = self.read(namespace, name)
            check_preconditions(self.of.title, old["metadata"], options.get("preconditions") or {})
            if old["metadata"].get("finalizers"):
                return self.put({**old, "metadata": {**old["metadata"], "deletionTimestamp": _now()}})
            self.remove(namespace, name)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _named(self, namespace: str, sent: Mapping[str, Any], name: str) -> str:
        metadata = sent.get("metadata")
        if (
            not isinstance(metadata, dict)
            or metadata.get("name", name) != name
            or metadata.get("namespace", namespace) != namespace
        ):
            raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
        if sent.get("apiVersion") != self.of.api_version or sent.get("kind") != self.of.kind:
            raise Refusal(400, "BadRequest", "the API version in the data does not match the expected API version")
        if not _NAME.fullmatch(name):
            raise Refusal(422, "Invalid", f"metadata.name: Invalid value: {name!r}")
        return name

    def _part(self, thing: dict[str, Any], subresource: str) -> dict[str, Any]:
        """The part of `sent` that the path is for."""
        if subresource:
            return {key: value for key, value in thing.items() if key in (*_WHOLE, "status")}
        return {key: value for key, value in thing.items() if key != "status"} if self.of.has_status else thing

    def _update(self, old: dict[str, Any], sent: Mapping[str, Any], write: Write) -> dict[str, Any]:
        new = self._accepted(sent, write)
        if write.subresource:
            made = {**old, "status": new.get("status")} if "status" in new else {key: old[key] for key in old if key != "status"}
        else:
            made = {**new, "status": old.get("status")} if self.of.has_status else new
            if made.get("status") is None:
                made.pop("status", None)
        manager = Manager(write.manager, "Update", write.subresource)
        return self._finish(old, made, self._updated(old, made, manager))

    def _updated(self, old: Mapping[str, Any], made: Mapping[str, Any], manager: Manager) -> dict[Manager, Fields]:
        """The owners after an update: the writer owns alone what has changed, and nothing owns what is gone."""
        different, gone = owned.changed(self.of.schema, old, made)
        managers = {who: owned.minus(owned.minus(fields, gone), different) for who, fields in _managers(old).items()}
        managers[manager] = owned.union(managers.get(manager, {}), different)
        return {who: fields for who, fields in managers.items() if fields}

    def _merged(
        self, live: dict[str, Any], config: Mapping[str, Any], write: Write
    ) -> tuple[dict[str, Any], dict[Manager, Fields]]:
        """The object and its owners after an apply."""
        schema, me = self.of.schema, Manager(write.manager, "Apply", write.subresource)
        managers = _managers(live)
        mine, former = owned.fields_of(schema, config), managers.pop(me, {})
        made = owned.applied(schema, live, config)
        others: Fields = {}
        for fields in managers.values():
            others = owned.union(others, fields)
        owned.without(schema, made, owned.minus(owned.minus(former, mine), owned.members(others)))
        different, gone = owned.changed(schema, live, made)
        taken = {who: both for who, fields in managers.items() if (both := owned.common(fields, owned.common(different, mine)))}
        if taken and not write.force:
            error = Conflicts(taken)
            raise Refusal(409, "Conflict", f"Apply failed with {len(taken)} conflicts: {error}")
        managers = {who: owned.minus(owned.minus(fields, taken.get(who, {})), gone) for who, fields in managers.items()}
        managers[me] = mine
        return made, {who: fields for who, fields in managers.items() if fields or who == me}

    def _accepted(self, sent: Mapping[str, Any], write: Write) -> dict[str, Any]:
        """What was sent as it is stored: pruned, with defaults, valid. Raises Refusal."""
        made = copy.deepcopy(dict(sent))
        whole: dict[str, Any] = {key: made.pop(key) for key in _WHOLE if key in made}
        self._refuse_unknown(prune(self.of.schema, made), write)
        set_defaults(self.of.schema, made)
        wrong = faults(self.of.schema, {"metadata": whole["metadata"], **made})
        if wrong:
            raise Refusal(422, "Invalid", f"{self.of.kind} is invalid: {'; '.join(wrong)}")
        return {**whole, **made}

    def _refuse_twice(self, config: Mapping[str, Any]) -> None:
        """Refuse an apply that has the same item of a list-map twice."""
        twice = [fault for fault in faults(self.of.schema, config) if "Duplicate value" in fault]
        if twice:
            raise Refusal(500, "InternalError", f"failed to create typed patch object: {twice[0]}")

    def _refuse_unknown(self, unknown: list[str], write: Write) -> None:
        if unknown and write.strict:
            text = ", ".join(f'unknown field "{each}"' for each in unknown)
            raise Refusal(400, "BadRequest", f"strict decoding error: {text}")

    def _finish(self, old: dict[str, Any] | None, made: dict[str, Any], managers: Mapping[Manager, Fields]) -> dict[str, Any]:
        """Store a new version, unless nothing has changed."""
        metadata = {
            key: value for key, value in made["metadata"].items() if key not in _OWN_METADATA and value not in (None, {}, [])
        }
        own = {key: old["metadata"][key] for key in _OWN_METADATA if key in old["metadata"]} if old else {}
        own = own or {"uid": str(uuid.uuid4()), "creationTimestamp": _now(), **({} if self.of in BUILT_IN else {"generation": 1})}
        made = {**made, "metadata": {**metadata, **own}}
        if old is not None:
            if _managers(old) == dict(managers) and {**made, "metadata": {**made["metadata"]}} == old:
                return copy.deepcopy(old)
            if "generation" in own and self._spec(old) != self._spec(made):
                made["metadata"]["generation"] = old["metadata"]["generation"] + 1
        made["metadata"]["managedFields"] = _written(managers, old, self.of.api_version)
        self.writes += 1
        if old is not None and old["metadata"].get("deletionTimestamp") and not made["metadata"].get("finalizers"):
            self.remove(made["metadata"].get("namespace", ""), made["metadata"]["name"])
            return made
        return self.put(made)

    def _spec(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """What a new generation is about."""
        parts = ("metadata", "status") if self.of.has_status else ("metadata",)
        return {key: value for key, value in thing.items() if key not in parts}


_WHOLE: Final = ("apiVersion", "kind", "metadata")


def _managers(thing: Mapping[str, Any]) -> dict[Manager, Fields]:
    entries = thing["metadata"].get("managedFields") or []
    return {Manager(each["manager"], each["operation"], each.get("subresource", "")): each["fieldsV1"] for each in entries}


def _written(managers: Mapping[Manager, Fields], old: Mapping[str, Any] | None, api_version: str) -> list[dict[str, Any]]:
    """metadata.managedFields; an unchanged entry keeps its time."""
    before = (old or {"metadata": {}})["metadata"].get("managedFields") or []
    entries = []
    for who, fields in sorted(managers.items(), key=lambda item: (item[0].operation, item[0].name, item[0].subresource)):
        entry = {
            "manager": who.name,
            "operation": who.operation,
            "apiVersion": api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
            **({"subresource": who.subresource} if who.subresource else {}),
        }
        same = [each for each in before if {key: value for key, value in each.items() if key != "time"} == entry]
        entries.append({**entry, "time": same[0]["time"] if same else _now()})
    return entries


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
