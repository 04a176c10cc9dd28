"""The Route resource: `k8s.ovn.org/v1`, as people write it. Pure.

Every object that is valid under the original's schema is valid here; all that it does not have is optional. A Route is never
refused with an error: what is wrong with it is told in its `problems`. An entry that cannot be is left out alone. What holds for
all entries, a selector above all, must be readable, else none is taken: half a selector may be that of every pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from userspace_cni.base.errors import InvalidConfig, quote, shorten
from userspace_cni.base.object_fields import known_fields
from userspace_cni.routes.route_values import (
    NetworkEntry,
    ServiceEntry,
    read_label,
    read_labels,
    read_name,
    read_network_entry,
    read_service_entry,
)

GROUP: Final = "k8s.ovn.org"
API_VERSION: Final = f"{GROUP}/v1"
KIND: Final = "Route"
ENTRIES_MAX: Final = 1024
SELECTORS_MAX: Final = 1024
PRIORITY_MAX: Final = 1000
WORKLOADS: Final = ("Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob")

_FIELDS: Final = frozenset({"route", "svc", "pods", "namespaces", "workloads", "exclude", "priority", "feature_gate", "defaults"})
_DEFAULT_VIAS: Final = ("derive", "on-link")
_CAUTIOUS: Final[Mapping[str, bool]] = {
    "allow-apiserver": False,
    "allow-dns": False,
    "override": False,
    "keep-cluster-routes": True,
}
"""The gates, each with what counts where its value cannot be read."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class FeatureGates:
    """What `feature_gate` says, of what is known here.

    `allow_apiserver`, `allow_dns`: routes may lead to their addresses. `override`: a route of ours stands before another's to the
    same destination. `keep_cluster_routes`: what the cluster needs stays with the former default route.
    """

    allow_apiserver: bool = False
    allow_dns: bool = False
    override: bool = True
    keep_cluster_routes: bool = True


@dataclass(frozen=True)
class PodSelector:
    """Pods; "" and no labels are any. At least one says something."""

    namespace: str = ""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NamespaceSelector:
    """Namespaces; "" and no labels are any. At least one says something."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkloadSelector:
    """The pods of one workload. `kind` is one of `WORKLOADS`."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Selection:
    """The pods that any of these selects."""

    pods: tuple[PodSelector, ...] = ()
    namespaces: tuple[NamespaceSelector, ...] = ()
    workloads: tuple[WorkloadSelector, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.pods or self.namespaces or self.workloads)


@dataclass(frozen=True)
class RouteObject:
    """A Route object, as far as it could be read.

    `created`: its creationTimestamp, "" where it has none, as in a file. `selection`: which pods; empty for all. `derive`: an
    entry without a gateway takes that of the pod's own routes, else it is on-link. `problems`: what is refused, each with field,
    value and reason. `remarks`: what has no effect. `is_unusable`: nothing of it is taken, and it selects no pod: it cannot be
    read as a whole, or no entry of it can be.
    """

    name: str
    uid: str = ""
    created: str = ""
    generation: int = 0
    networks: tuple[NetworkEntry, ...] = ()
    services: tuple[ServiceEntry, ...] = ()
    selection: Selection = Selection()
    exclude: Selection = Selection()
    priority: int = 0
    gates: FeatureGates = FeatureGates()
    derive: bool = False
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    is_unusable: bool = False


def read_route(thing: Mapping[str, Any]) -> RouteObject:
    """Read a Route object, as the API or a file has it. It never raises: see `RouteObject.problems`."""
    metadata = _mapping(thing, "metadata")
    name = metadata.get("name")
    known = RouteObject(
        name if isinstance(name, str) else "", _text(metadata, "uid"), _text(metadata, "creationTimestamp"), _generation(metadata)
    )
    try:
        read_name(name, "'metadata.name'")
        return _read(known, thing)
    except InvalidConfig as error:
        return replace(known, problems=(shorten(str(error)),), is_unusable=True)
    except (RecursionError, ValueError):  # of Python's own, when it writes a value of such depth or so many digits for a message
        return replace(known, problems=("a value is nested too deeply or has too many digits to be shown",), is_unusable=True)


def without_services(route: RouteObject) -> RouteObject:
    """The Route on a host without a cluster, where no Service is known: its entries of Services are problems."""
    told = tuple(f"{each.place}: there is no cluster whose Services are known" for each in route.services)
    if not told:
        return route
    return replace(route, services=(), problems=(*route.problems, *told), is_unusable=route.is_unusable or not route.networks)


def _read(known: RouteObject, thing: Mapping[str, Any]) -> RouteObject:
    """The whole Route. Raises InvalidConfig for what holds for all of its entries."""
    spec = known_fields({} if thing.get("spec") is None else thing["spec"], _FIELDS, {}, "'spec'")
    exclude = known_fields(_given(spec, "exclude", {}), ("pods", "namespaces", "workloads"), {}, "'spec.exclude'")
    problems: list[str] = []
    gates, remarks = _gates(_given(spec, "feature_gate", {}), problems)
    selection, excluded = _selection(spec, "spec"), _selection(exclude, "spec.exclude")
    priority, derive = _priority(spec), _derive(spec)
    networks = _entries(spec, "route", read_network_entry, problems, ENTRIES_MAX)
    left = max(ENTRIES_MAX - len(_given(spec, "route", [])), 0) if isinstance(spec.get("route"), list) else ENTRIES_MAX
    services = _entries(spec, "svc", read_service_entry, problems, left)
    return replace(
        known,
        networks=networks,
        services=services,
        selection=selection,
        exclude=excluded,
        priority=priority,
        gates=gates,
        derive=derive,
        problems=tuple(problems),
        remarks=tuple(remarks),
        is_unusable=bool(problems) and not networks and not services,
    )


def _entries(
    spec: Mapping[str, Any], key: str, read: Callable[[object, str], Found], problems: list[str], most: int
) -> tuple[Found, ...]:
    """The entries that can be, of the first `most`; why the others cannot is told."""
    value = _given(spec, key, [])
    if not isinstance(value, list):
        problems.append(f"'spec.{key}' is {quote(value)}; it must be a list")
        return ()
    found = []
    for number, each in enumerate(value[:most]):
        try:
            found.append(read(each, f"spec.{key}[{number}]"))
        except InvalidConfig as error:
            problems.append(shorten(str(error)))
    if len(value) > most:
        problems.append(f"'spec.{key}' has {len(value)} entries; a Route has {ENTRIES_MAX} at most, and the others are left out")
    return tuple(found)


def _selection(where: Mapping[str, Any], place: str) -> Selection:
    """The selectors below `place`. Raises InvalidConfig."""
    return Selection(
        _selectors(where, "pods", place, _pod_selector),
        _selectors(where, "namespaces", place, _namespace_selector),
        _selectors(where, "workloads", place, _workload_selector),
    )


def _selectors(where: Mapping[str, Any], key: str, place: str, read: Callable[[object, str], Found]) -> tuple[Found, ...]:
    value = _given(where, key, [])
    if not isinstance(value, list) or len(value) > SELECTORS_MAX:
        raise InvalidConfig(f"'{place}.{key}' is {quote(value)}", f"it must be a list, of {SELECTORS_MAX} at most")
    return tuple(read(each, f"'{place}.{key}[{number}]'") for number, each in enumerate(value))


def _pod_selector(value: object, place: str) -> PodSelector:
    fields = _saying(value, ("namespace", "name", "labels"), place)
    return PodSelector(
        read_label(fields["namespace"], f"{place}: 'namespace'") if "namespace" in fields else "",
        read_name(fields["name"], f"{place}: 'name'") if "name" in fields else "",
        read_labels(fields["labels"], f"{place}: 'labels'") if "labels" in fields else {},
    )


def _namespace_selector(value: object, place: str) -> NamespaceSelector:
    fields = _saying(value, ("name", "labels"), place)
    return NamespaceSelector(
        read_label(fields["name"], f"{place}: 'name'") if "name" in fields else "",
        read_labels(fields["labels"], f"{place}: 'labels'") if "labels" in fields else {},
    )


def _workload_selector(value: object, place: str) -> WorkloadSelector:
    fields = _saying(value, ("kind", "namespace", "name"), place)
    kind = fields.get("kind")
    if kind not in WORKLOADS:
        raise InvalidConfig(f"{place}: 'kind' is {quote(kind)}", f"it can be {', '.join(WORKLOADS)}")
    namespace = read_label(fields.get("namespace"), f"{place}: 'namespace'")
    return WorkloadSelector(str(kind), namespace, read_name(fields.get("name"), f"{place}: 'name'"))


def _saying(value: object, known: Collection[str], place: str) -> Mapping[str, Any]:
    """The fields of a selector. Raises InvalidConfig for one that says nothing, which would select everything."""
    fields = {key: each for key, each in known_fields(value, known, {}, place).items() if each is not None}
    if not fields:
        raise InvalidConfig(f"{place} is empty", f"it must have at least one of {', '.join(known)}")
    return fields


def _priority(spec: Mapping[str, Any]) -> int:
    value = _given(spec, "priority", 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= PRIORITY_MAX:
        raise InvalidConfig(f"'spec.priority' is {quote(value)}", f"it must be a whole number from 0 to {PRIORITY_MAX}")
    return value


def _derive(spec: Mapping[str, Any]) -> bool:
    """Whether entries without a gateway derive one. Raises InvalidConfig."""
    fields = known_fields(_given(spec, "defaults", {}), ("via",), {}, "'spec.defaults'")
    value = _given(fields, "via", "on-link")
    if value not in _DEFAULT_VIAS:
        raise InvalidConfig(f"'spec.defaults.via' is {quote(value)}", f"it can be {' or '.join(_DEFAULT_VIAS)}")
    return bool(value == "derive")


def _gates(value: object, problems: list[str]) -> tuple[FeatureGates, list[str]]:
    """The gates that are known here, and a remark on each that is not. Raises InvalidConfig where there is no object."""
    if not isinstance(value, dict):
        raise InvalidConfig(f"'spec.feature_gate' is {quote(value)}", "it must be an object of texts")
    known: dict[str, bool] = {}
    remarks = []
    for name, said in value.items():
        if name not in _CAUTIOUS:
            remarks.append(f"'spec.feature_gate' has {quote(name)}, which is not known here and has no effect")
            continue
        word = str(said).strip().lower() if isinstance(said, str | bool) else ""
        if word not in ("true", "false"):
            problems.append(f'\'spec.feature_gate.{name}\' is {quote(said)}; it must be "true" or "false"')
        known[name.replace("-", "_")] = word == "true" if word in ("true", "false") else _CAUTIOUS[name]
    return FeatureGates(**known), remarks


def _given(fields: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """The field's value; null is the same as none."""
    value = fields.get(key)
    return otherwise if value is None else value


def _mapping(thing: object, key: str) -> Mapping[str, Any]:
    value = thing.get(key) if isinstance(thing, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def _generation(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("generation")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
