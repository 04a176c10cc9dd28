"""Structural schemas of CustomResourceDefinitions, as the API server applies them: defaults, pruning, validation.

A definition with anything else (allOf, anyOf, CEL rules and the like) is refused, so that no test relies on a rule that is not
applied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_KNOWN: Final = frozenset(
    {"type", "description", "properties", "required", "items", "enum", "pattern", "minimum", "maximum", "minLength"}
    | {"maxLength", "minItems", "maxItems", "default", "format", "additionalProperties", "nullable", "x-kubernetes-list-type"}
    | {
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
    }
)
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,)
}  # fmt: skip


def check_schema(schema: Mapping[str, Any], path: str = "") -> None:
    """Raise AssertionError for a schema that is not structural, or has something that is not implemented here."""
    assert set(schema) <= _KNOWN, f"{path}: unknown to this server: {sorted(set(schema) - _KNOWN)}"
    typeless = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    assert "type" in schema or typeless, f"{path}: a structural schema has a type everywhere"
    if schema.get("x-kubernetes-list-type") == "map":
        keys, item = schema["x-kubernetes-list-map-keys"], schema["items"]
        for key in keys:
            assert key in item["properties"], f"{path}: {key} is no property of its items"
            assert key in item.get("required", ()) or "default" in item["properties"][key], f"{path}: {key} is not required"
    for name in schema.get("required", ()):
        assert name in schema.get("properties", {}), f"{path}: required {name} is no property"
    for name, child in children(schema):
        check_schema(child, f"{path}.{name}")


def children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas directly below, each with a name for messages."""
    yield from schema.get("properties", {}).items()
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield key, schema[key]


def child(schema: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The schema of a field of an object; None for an unknown one."""
    found = schema.get("properties", {}).get(name)
    more = schema.get("additionalProperties")
    if found is None and isinstance(more, Mapping):
        return more
    return found if found is not None else {} if schema.get("x-kubernetes-preserve-unknown-fields") or more is True else None


def prune(schema: Mapping[str, Any], value: Any, path: str = "") -> list[str]:
    """Remove unknown fields of `value` in place; their paths. apiVersion, kind and metadata of the whole are no part of it."""
    unknown: list[str] = []
    if isinstance(value, dict) and schema:
        for name in list(value):
            below = child(schema, name)
            if below is None:
                del value[name]
                unknown.append(f"{path}.{name}".removeprefix("."))
            else:
                unknown += prune(below, value[name], f"{path}.{name}")
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(value):
            unknown += prune(schema["items"], item, f"{path}[{index}]")
    return unknown


def set_defaults(schema: Mapping[str, Any], value: Any) -> None:
    """Fill in the defaults that the schema has, in place."""
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            if "default" in below and (name not in value or (value[name] is None and not below.get("nullable"))):
                value[name] = json.loads(json.dumps(below["default"]))
        for name in value:
            set_defaults(child(schema, name) or {}, value[name])
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for item in value:
            set_defaults(schema["items"], item)


def faults(schema: Mapping[str, Any], value: Any, path: str = "") -> list[str]:
    """What the schema does not allow in `value`, each with its path."""
    if not schema or (value is None and schema.get("nullable")):
        return []
    if schema.get("x-kubernetes-int-or-string"):
        return (
            []
            if isinstance(value, int | str) and not isinstance(value, bool)
            else [f"{path}: Invalid value: must be int or string"]
        )
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path}: Invalid value: must be of type {kind}"]
    found = [f"{path}: {fault}" for fault in _of_scalar(schema, value)]
    if isinstance(value, dict):
        found += [f"{path}.{name}: Required value" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            found += faults(child(schema, name) or {}, each, f"{path}.{name}")
    if isinstance(value, list):
        for index, each in enumerate(value):
            found += faults(schema.get("items") or {}, each, f"{path}[{index}]")
        found += [f"{path}: Duplicate value" for _ in range(_duplicates(schema, value))]
    return found


def _of_scalar(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"Unsupported value: {value!r}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"Invalid value: {value!r}: should match {schema['pattern']}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, str | list):
        unit = "Length" if isinstance(value, str) else "Items"
        if not schema.get(f"min{unit}", 0) <= len(value) <= schema.get(f"max{unit}", len(value)):
            yield f"Invalid value: {len(value)} is no allowed {unit.lower()}"


def _duplicates(schema: Mapping[str, Any], items: list[Any]) -> int:
    """How many items of a set, or of a list that is a map, occur twice."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        keys = [json.dumps({key: item.get(key) for key in schema["x-kubernetes-list-map-keys"]}) for item in items]
    elif kind == "set":
        keys = [json.dumps(item) for item in items]
    else:
        return 0
    return len(keys) - len(set(keys))
