"""The JSON Schema of a network's configuration, made of the table of its keys: for editors, and for checks of manifests. Pure.

It says of each key alone what it can be. What keys are together, and which unknown key is a misspelt one, ADD and `lint` say.
Keys of ours match in any case: the canonical spelling is a property, and a pattern of all others refers to it. No spelling has
both, or a checker would report each error in the value twice, and again for each object around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from userspace_cni.cni.network_keys import TABLE, Key

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final[Mapping[type[Any], str]] = {
    str: "string", int: "integer", bool: "boolean", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
_NOTHING: Final[list[Any]] = [None, "", [], {}, False, 0]
"""The values of a key that says nothing."""
_LIMITS: Final = ("runtimeConfig.bandwidth", "bandwidth")
"""An object whose keys are those of another one."""
_NETWORKS: Final = "serviceCIDRs"
_BY_NODE: Final = "node"


def network_schema(consumers: Iterable[str]) -> dict[str, Any]:
    """The schema. `consumers`: what key `consumer` can be."""
    top = _object("")
    top["properties"]["consumer"]["enum"] = [*consumers, "", None]
    return {
        "$schema": DIALECT,
        "title": "A network of CNI type 'userspace'",
        **top,
        "type": "object",
        "required": [key.name for key in TABLE if key.required and not key.place],
    }


def _object(place: str) -> dict[str, Any]:
    """The schema of the object at that place; a list's is that of its items."""
    keys = [key for key in TABLE if key.place == _same(place)]
    schema: dict[str, Any] = {"type": ["object", "null"], "properties": {key.name: _value(key, place) for key in keys}}
    here = "#/properties/" + place.replace(".", "/properties/") if place else "#"
    if place == "mirrors":
        schema["type"], here = "object", f"{here}/items"
    patterns = {_other_spellings(key.name): {"$ref": f"{here}/properties/{key.name}"} for key in keys if not key.standard}
    return schema | {"patternProperties": patterns} if patterns else schema


def _other_spellings(name: str) -> str:
    """The pattern of all spellings of a key but the canonical one: up to one letter as in it, that letter not, the rest in any
    case. It does without a lookahead, which checkers in Go do not have."""
    any_case = [f"[{each.lower()}{each.upper()}]" if each.isalpha() else each for each in name]
    ways = (f"{name[:at]}{each.swapcase()}{''.join(any_case[at + 1 :])}" for at, each in enumerate(name) if each.isalpha())
    return f"^({'|'.join(ways)})$"


def _same(place: str) -> str:
    return _LIMITS[1] if place == _LIMITS[0] else place


def _value(key: Key, place: str) -> dict[str, Any]:
    path = f"{place}.{key.name}" if place else key.name
    described = f"{key.help}{f'; without it {key.default}' if key.default else ''}"
    described += "".join(f"; needs {other}: {value}" for other, value in key.beside.items())
    schema: dict[str, Any] = {"description": described, "$comment": f"since {key.since}"}
    if any(each.place == _same(path) for each in TABLE) and key.kind is not list:
        inner = _object(path)
        if key.kind is object:
            del inner["type"]
        return schema | inner
    if key.kind in (object, type(None)):
        return schema | ({"enum": _NOTHING} if key.kind is not object else {"maxItems": key.bounds[1]} if key.bounds else {})
    return schema | _typed_value(key, path)


def _typed_value(key: Key, path: str) -> dict[str, Any]:
    """What a value of one JSON type, or of two, can be."""
    schema: dict[str, Any] = {}
    least, most = key.bounds or (None, None)
    kinds = [_TYPES[kind] for kind in dict.fromkeys((key.kind, key.also, None if key.required else type(None))) if kind]
    if key.choices:
        unsaid = () if key.required else ("", None) if key.kind is str else (None,)
        return schema | {"enum": [*key.choices, *unsaid]}
    schema["type"] = kinds
    if key.also is int:
        schema["minimum"] = 0
    if key.kind is int and key.bounds:
        bounds = {"minimum": least, "maximum": most}
        return schema | (bounds if key.unset is None else {"anyOf": [{"enum": [key.unset, None]}, bounds]})
    if key.kind is str and most:
        schema["maxLength"] = most
    if key.kind is str and key.pattern:
        schema["pattern"] = f"^({key.pattern}){'' if key.required else '?'}$"
    if key.kind is list and key.bounds:
        schema["maxItems"] = most
    if key.item:
        schema["items"] = dict(key.item)
    if path == "mirrors":
        schema["items"] = _object(path)
    return (
        {**schema, "type": [*kinds, "string"], "if": {"type": "string"}, "then": {"const": _BY_NODE}}
        if path == _NETWORKS
        else schema
    )
