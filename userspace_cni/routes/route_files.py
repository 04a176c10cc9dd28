"""Files with routes: the original form (`cr-config.yaml`, `cr-config.json`) and Route objects. Pure: a caller reads the text.

The original form is a list of `{svc: NAMESPACE/NAME, dev, via}` and `{route: CIDR, dev, via}`, `via` optional; or one of these
alone; or an object whose one key holds the list. In the original's document the placeholders of a Service were lost, so that it
shows `{svc: "/"}`: that means nothing. The list becomes one Route named after the file. An administrator wrote the file and
looks at what becomes of it, so an entry of this form that cannot be refuses the file, by number. Route objects are judged as in
the API: by `RouteObject.problems`. `faults_in` names everything at once, for who has just written a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import yaml

from userspace_cni.base.errors import InvalidConfig, quote, shorten
from userspace_cni.base.object_fields import known_fields
from userspace_cni.pod.strict_json import JsonReader, once
from userspace_cni.routes.resource import API_VERSION, ENTRIES_MAX, KIND, RouteObject, read_route
from userspace_cni.routes.route_values import read_dev, read_dst, read_service_entry, read_via, require_possible

BYTES_MAX: Final = 1 << 20
FAULTS_MAX: Final = 20
"""So many faults of a file are named; the others are counted."""
_DEEPEST: Final = 50
_VALUES_MAX: Final = 100_000
"""Values of a file at most, with each alias counted as everything to which it refers."""
_MERGE: Final = "<<"
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_TRY: Final = "userspace-cni routes apply --dry-run"
_SERVICE: Final = "it must be NAMESPACE/NAME, NAMESPACE/* for all Services of a namespace, or */* for all"
_REMEDY: Final = "it must be JSON or YAML: entries {svc: NAMESPACE/NAME, dev} and {route: CIDR, dev}, or Route objects"


def parse(text: str, name: str) -> Any:
    """The content of the file `name`; of several YAML documents the list of them. Raises InvalidConfig naming the file."""
    if len(text.encode("utf-8", "replace")) > BYTES_MAX:
        raise InvalidConfig(f"{name}: it has more than {BYTES_MAX >> 20} MiB", "a file of routes is shorter")
    try:
        return JsonReader(once, deepest=_DEEPEST).read(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("{", "[") and name.endswith(".json"):
            raise InvalidConfig(f"{name}: it is not JSON: {error}", _REMEDY) from None
    try:
        _require_sound(text)
        documents = [each for each in yaml.load_all(text, Loader=_Loader) if each is not None]
    except _Unsound as error:
        raise InvalidConfig(f"{name}: {error}", _REMEDY) from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, RecursionError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{name}: it is not YAML: {_why(error)}", _REMEDY) from None
    return documents[0] if len(documents) == 1 else documents


@dataclass(frozen=True)
class Fault:
    """Why an entry or object of a file cannot be. `number`: which one, from 1; `of`: the Route, "" where `text` names all."""

    number: int
    text: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.of}: {self.text}" if self.of else self.text


@dataclass
class Faults:
    """What is wrong in a file, in its order: the first `FAULTS_MAX`. `count`: of all."""

    first: list[Fault] = field(default_factory=list)
    count: int = 0

    def add(self, fault: Fault) -> None:
        self.count += 1
        if self.count <= FAULTS_MAX:
            self.first.append(fault)

    @property
    def more(self) -> int:
        """How many are not named."""
        return self.count - len(self.first)

    def require_none(self, name: str) -> None:
        """Raise InvalidConfig naming the file and the first fault."""
        if self.first:
            hint = f"{self.count} faults are in it: {_TRY} names them" if self.count > 1 else ""
            raise InvalidConfig(f"{name}: {self.first[0]}", hint)


def objects_in(data: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    """The Route objects in the content of a file, those of the original form made into one.

    Raises InvalidConfig for what is neither of the forms, for two of one name, and for values that JSON has not, as infinity.
    """
    faults = Faults()
    found = [each for each in _objects(data, name, faults) if each is not None]
    _add_twice(enumerate(map(read_route, found), 1), faults)
    faults.require_none(name)
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"{name}: a value in it is none of JSON's: {error}", _REMEDY) from None
    return tuple(found)


def routes_in(data: Any, name: str) -> tuple[RouteObject, ...]:
    """The Routes in the content of a file. Raises as `objects_in`."""
    return tuple(map(read_route, objects_in(data, name)))


def faults_in(data: Any, name: str) -> Faults:
    """All that is wrong in the content of a file: entries, objects, names given twice, and the problems of its Routes.

    Raises InvalidConfig for what is neither of the forms.
    """
    faults, others = Faults(), Faults()
    found = _objects(data, name, faults)
    routes = [(number, read_route(each)) for number, each in enumerate(found, 1) if each is not None]
    _add_twice(routes, others)
    for number, route in routes:
        for problem in route.problems:
            others.add(Fault(number, problem, _called(number, route)))
    if not others.count:
        return faults
    merged = sorted([*faults.first, *others.first], key=lambda each: each.number)
    return Faults(merged[:FAULTS_MAX], faults.count + others.count)


def has_objects(data: Any) -> bool:
    """Whether the content of a file is of Route objects, and not of the original form."""
    return any(_is_object(each) for each in (data if isinstance(data, list) else [data]))


def route_name(path: str) -> str:
    """The name of the Route that a file of the original form becomes: the file's, in the letters that names have."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return re.sub(r"[^a-z0-9]+", "-", name)[:63].strip("-") or "file"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the one of C, where it was built
    """The safe loader; a time stays the text that it is, as in JSON."""

    yaml_implicit_resolvers: ClassVar[Mapping[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


# -- Route objects ------------------------------------------------------------------------------------------------------------


def _things(data: Any) -> list[Any]:
    """The objects or entries in it, lists of lists (as documents with a List each) made flat."""
    things = []
    for each in data if isinstance(data, list) else [data]:
        if _is_object(each) and str(each.get("kind")).endswith("List") and isinstance(each.get("items"), list):
            things += each["items"]
        else:
            things.append(each)
    return things


def _is_object(thing: Any) -> bool:
    return isinstance(thing, dict) and ("kind" in thing or "apiVersion" in thing)


def _objects(data: Any, name: str, faults: Faults) -> Sequence[Mapping[str, Any] | None]:
    """As `objects_in`; None in place of each invalid entry, whose fault is reported."""
    things = _things(data)
    if not any(_is_object(each) for each in things):
        return (_simple(data, name, faults),)
    if not all(_is_object(each) for each in things):
        raise InvalidConfig(f"{name}: it has objects and entries of the other form in one list", "put them into two files")
    return [_route_object(each, number, faults) for number, each in enumerate(things, 1)]


def _route_object(thing: Mapping[str, Any], number: int, faults: Faults) -> Mapping[str, Any] | None:
    if thing.get("apiVersion") == API_VERSION and thing.get("kind") == KIND:
        return thing
    said = f"{quote(thing.get('kind'))} of {quote(thing.get('apiVersion'))}"
    faults.add(Fault(number, f"object number {number} is {said}; it must be {KIND} of {API_VERSION}"))
    return None


def _add_twice(routes: Iterable[tuple[int, RouteObject]], faults: Faults) -> None:
    """Tell of each Route whose name one before it has."""
    names: dict[str, int] = {}
    for number, route in routes:
        former = names.setdefault(route.name, number)
        if former != number and route.name:
            text = f"Route {quote(route.name)} is in it twice: objects number {former} and {number}; give each a name of its own"
            faults.add(Fault(number, text))


def _called(number: int, route: RouteObject) -> str:
    return f"Route {quote(route.name)}" if route.name else f"object number {number}"


# -- the original form --------------------------------------------------------------------------------------------------------


def _simple(data: Any, name: str, faults: Faults) -> Mapping[str, Any]:
    """The Route object of a file of the original form, without the entries that cannot be. Raises InvalidConfig."""
    entries = _entries_of(data)
    if entries is None:
        raise InvalidConfig(f"{name}: it holds {quote(data)}", _REMEDY)
    if len(entries) > ENTRIES_MAX:
        raise InvalidConfig(f"{name}: it has {len(entries)} entries", f"there can be {ENTRIES_MAX}")
    spec: dict[str, list[Mapping[str, Any]]] = {"route": [], "svc": []}
    for number, each in enumerate(entries, 1):
        try:
            key, entry = _entry(each, f"entry {number}")
        except InvalidConfig as error:
            faults.add(Fault(number, shorten(str(error))))
        else:
            spec[key].append(entry)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": route_name(name)}, "spec": spec}


def _entries_of(data: Any) -> Sequence[Any] | None:
    if isinstance(data, list):
        return data
    if not isinstance(data, dict):
        return None
    values = list(data.values())
    if len(values) == 1 and isinstance(values[0], list):
        return values[0]
    return [data] if "svc" in data or "route" in data else None


def _entry(value: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    """In which list of a Route's spec the entry belongs, and its form there. Raises InvalidConfig."""
    fields = known_fields(value, ("svc", "route", "dev", "via"), {}, where)
    if ("svc" in fields) == ("route" in fields):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must have one of 'svc' and 'route'")
    given = {} if fields.get("via") is None else {"via": fields["via"]}
    if "route" in fields:
        said = fields["route"]
        dev, via = read_dev(fields.get("dev"), f"{where}: 'dev'"), read_via(fields.get("via"), f"{where}: 'via'")
        dst = read_dst(said, via, f"{where}: 'route'")
        require_possible(dst, via, f"{where}: 'via'")
        return "route", {"dst": said.strip(), "dev": dev, **given}
    service = fields["svc"].strip() if isinstance(fields["svc"], str) else ""
    namespace, _, name = service.partition("/")
    if not namespace or not name or "/" in name:
        raise InvalidConfig(f"{where}: 'svc' is {quote(fields['svc'])}", _SERVICE)
    entry = {"namespace": namespace, "name": name, "dev": fields.get("dev"), **given}
    read_service_entry(entry, where)
    return "svc", entry


# -- YAML ---------------------------------------------------------------------------------------------------------------------


def _why(error: Exception) -> str:
    """What the parser says, with its place in the text."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if isinstance(error, yaml.MarkedYAMLError) and mark:
        said = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    else:
        said = str(error)
    return shorten(" ".join(said.split()))


class _Unsound(Exception):
    """Why a text is not constructed, though it may be YAML."""


def _require_sound(text: str) -> None:
    """Raise _Unsound for YAML that is nested too deeply, grows by aliases, or has a key twice. Reading events does not nest."""
    shape = _Shape()
    for event in yaml.parse(text, Loader=_Loader):
        shape.take(event)


class _Shape:
    """What has been read of a text: how many values, aliases counted as what they refer to, and in which collections it is."""

    def __init__(self) -> None:
        self._total = 0
        self._within: list[_OpenCollection] = []
        self._sizes: dict[str, int] = {}
        """How many values each anchor that is complete stands for."""

    def take(self, event: yaml.Event) -> None:
        """Take the next event. Raises _Unsound."""
        if isinstance(event, yaml.CollectionEndEvent):
            ended = self._within.pop()
            if ended.anchor:
                self._sizes[ended.anchor] = self._total - ended.before
        elif isinstance(event, yaml.NodeEvent):
            if self._within:
                self._within[-1].begins(event.value if isinstance(event, yaml.ScalarEvent) else None)
            self._begin(event)
        if len(self._within) > _DEEPEST:
            raise _Unsound(f"it is nested deeper than {_DEEPEST}")
        if self._total > _VALUES_MAX:
            raise _Unsound(f"it has more than {_VALUES_MAX} values, aliases counted")

    def _begin(self, event: yaml.NodeEvent) -> None:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._sizes:
                raise _Unsound(f"alias {quote(event.anchor)} refers to nothing, or to what it is in")
            self._total += self._sizes[event.anchor]
            return
        if isinstance(event, yaml.CollectionStartEvent):
            self._within.append(_OpenCollection(isinstance(event, yaml.MappingStartEvent), event.anchor, self._total))
        elif event.anchor:
            self._sizes[event.anchor] = 1
        self._total += 1


class _OpenCollection:
    """A list or object that is being read. `before`: how many values were before it."""

    def __init__(self, is_mapping: bool, anchor: str | None, before: int) -> None:
        self.anchor = anchor
        self.before = before
        self._keys: set[str] | None = set() if is_mapping else None
        self._is_key = True

    def begins(self, scalar: str | None = None) -> None:
        """Take the next value or key. Raises _Unsound for a key that it has already."""
        if self._keys is None:
            return
        if self._is_key and scalar is not None and scalar != _MERGE:
            if scalar in self._keys:
                raise _Unsound(f"key {quote(scalar)} is given twice in one object")
            self._keys.add(scalar)
        self._is_key = not self._is_key
