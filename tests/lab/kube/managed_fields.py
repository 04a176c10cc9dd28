"""Who owns which field of an object: sets of fields, and what server-side apply does with them.

A set of fields is written as metadata.managedFields has it (FieldsV1): an object with a key per field, `f:` and the field's name,
`k:` and the keys of an item of a list that is a map, `v:` and an item of a set; "." in it is the thing itself. A leaf is {}.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.lab.kube.schemas import child

Fields = dict[str, Any]
ITSELF: Final = "."
_UNMANAGED: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
    | {"deletionTimestamp", "deletionGracePeriodSeconds"}
)
METADATA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "finalizers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "items": {"type": "object", "x-kubernetes-map-type": "atomic"},
        },
    },
}
"""The fields of every object's metadata that can be owned."""


@dataclass(frozen=True)
class Manager:
    """Who wrote: a name, how ("Apply" or "Update"), and to which subresource ("" for the object)."""

    name: str
    operation: str
    subresource: str = ""


class Conflicts(Exception):
    """Fields of other managers would change; `fields` maps each manager to its fields."""

    def __init__(self, fields: Mapping[Manager, Fields]) -> None:
        super().__init__(f"conflicts with {', '.join(sorted(each.name for each in fields))}: {list(fields.values())}")
        self.fields = fields


def fields_of(schema: Mapping[str, Any], thing: Mapping[str, Any]) -> Fields:
    """The fields of an object, without those that no manager owns."""
    found: Fields = {}
    for name, value in _owned(thing).items():
        found[f"f:{name}"] = _fields(METADATA if name == "metadata" else child(schema, name) or {}, value)
    return found


def applied(schema: Mapping[str, Any], live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """`live` with all that `config` says: objects and lists that are maps are merged, other lists replaced."""
    made = copy.deepcopy(dict(live))
    for name, value in config.items():
        below = METADATA if name == "metadata" else child(schema, name) or {}
        made[name] = _merge(below, made.get(name), value)
    return made


def without(schema: Mapping[str, Any], thing: dict[str, Any], fields: Fields) -> None:
    """Remove these fields from the object, in place. What becomes empty by that is null, as in the real server.

    Few schemas allow that.
    """
    for key, below in fields.items():
        name = key.removeprefix("f:")
        if name in thing:
            _remove_field(METADATA if name == "metadata" else child(schema, name) or {}, thing, name, below)


def changed(schema: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Fields, Fields]:
    """The fields that are new or have another value, and those that are gone."""
    old, new = fields_of(schema, before), fields_of(schema, after)
    different = _differing(schema, _owned(before), _owned(after))
    return different, minus(old, new)


def union(one: Fields, other: Fields) -> Fields:
    made = {**one}
    for key, below in other.items():
        made[key] = union(made[key], below) if key in made else below
    return made


def minus(one: Fields, other: Fields) -> Fields:
    made: Fields = {}
    for key, below in one.items():
        if key not in other:
            made[key] = below
            continue
        rest = minus(below, other[key])
        if rest:
            made[key] = rest
    return made


def common(one: Fields, other: Fields) -> Fields:
    made: Fields = {}
    for key, below in one.items():
        if key not in other:
            continue
        if _is_leaf(below) or _is_leaf(other[key]):
            if _is_leaf(below) and _is_leaf(other[key]):
                made[key] = {}
            continue
        both = common(below, other[key])
        if both:
            made[key] = both
    return made


def _owned(thing: Mapping[str, Any]) -> dict[str, Any]:
    """The object without what no manager owns."""
    made = {key: value for key, value in thing.items() if key not in ("apiVersion", "kind")}
    metadata = {key: value for key, value in (made.get("metadata") or {}).items() if key not in _UNMANAGED}
    return {**made, "metadata": metadata} if metadata else {key: value for key, value in made.items() if key != "metadata"}


def _is_leaf(fields: Fields) -> bool:
    return not fields or set(fields) == {ITSELF}


def _fields(schema: Mapping[str, Any], value: Any) -> Fields:
    if isinstance(value, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        return {f"f:{name}": _fields(child(schema, name) or {}, each) for name, each in value.items()}
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind == "map":
        return {_key(schema, item): {ITSELF: {}, **_fields(schema["items"], item)} for item in value}
    if isinstance(value, list) and kind == "set":
        return {f"v:{json.dumps(item)}": {} for item in value}
    return {}


def _key(schema: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    keys = {name: item[name] for name in sorted(schema["x-kubernetes-list-map-keys"]) if name in item}
    return f"k:{json.dumps(keys, separators=(',', ':'))}"


def _merge(schema: Mapping[str, Any], live: Any, config: Any) -> Any:
    if isinstance(live, dict) and isinstance(config, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        made = dict(live)
        for name, value in config.items():
            made[name] = _merge(child(schema, name) or {}, live.get(name), value)
        return made
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(live, list) and isinstance(config, list) and kind == "map":
        mine = {_key(schema, item): item for item in config}
        old = {_key(schema, item): item for item in live}
        kept = [_merge(schema["items"], item, mine[key]) if key in mine else item for key, item in old.items()]
        return [*kept, *(item for key, item in mine.items() if key not in old)]
    if isinstance(live, list) and isinstance(config, list) and kind == "set":
        return [*live, *(item for item in config if item not in live)]
    return copy.deepcopy(config)


def _remove(schema: Mapping[str, Any], value: Any, fields: Fields) -> None:
    for key, below in fields.items():
        if isinstance(value, dict) and key.startswith("f:"):
            name = key.removeprefix("f:")
            if name in value:
                _remove_field(child(schema, name) or {}, value, name, below)
        elif isinstance(value, list) and key.startswith("k:"):
            for item in [each for each in value if _key(schema, each) == key]:
                if ITSELF in below:
                    value.remove(item)
                else:
                    _remove(schema["items"], item, below)
        elif isinstance(value, list) and key.startswith("v:"):
            value[:] = [each for each in value if f"v:{json.dumps(each)}" != key]


def _remove_field(schema: Mapping[str, Any], of: dict[str, Any], name: str, fields: Fields) -> None:
    if _is_leaf(fields):
        del of[name]
        return
    _remove(schema, of[name], fields)
    if not of[name]:
        of[name] = None


def _differing(schema: Mapping[str, Any], before: Any, after: Any) -> Fields:
    """The fields of `after` that `before` lacks or has with another value."""
    made: Fields = {}
    for name, value in after.items():
        below = METADATA if name == "metadata" else child(schema, name) or {}
        different = _difference(below, before.get(name, _ABSENT), value)
        if different is not None:
            made[f"f:{name}"] = different
    return made


_ABSENT: Final = object()


def _difference(schema: Mapping[str, Any], before: Any, after: Any) -> Fields | None:
    """The fields below one that differ, {} for the field itself, None for no difference."""
    if before is _ABSENT:
        return _fields(schema, after)
    if isinstance(before, dict) and isinstance(after, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        found = {
            f"f:{name}": below
            for name, value in after.items()
            if (below := _difference(child(schema, name) or {}, before.get(name, _ABSENT), value)) is not None
        }
        return found or None
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(before, list) and isinstance(after, list) and kind == "map":
        old = {_key(schema, item): item for item in before}
        items: Fields = {}
        for item in after:
            key = _key(schema, item)
            below = _difference(schema["items"], old.get(key, _ABSENT), item)
            if below is not None:
                items[key] = {ITSELF: {}, **below} if key not in old else below
        return items or None
    if isinstance(before, list) and isinstance(after, list) and kind == "set":
        return {f"v:{json.dumps(each)}": {} for each in after if each not in before} or None
    return None if before == after else _fields(schema, after)


def members(fields: Fields) -> Fields:
    """The fields, with every list item that has an owned field owned itself, so that it is not removed."""
    return {
        key: members(below) | ({ITSELF: {}} if key.startswith("k:") and below else {}) if below else {}
        for key, below in fields.items()
    }
