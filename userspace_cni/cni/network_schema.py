"""The JSON Schema of a network's configuration, made of the table of its keys: for editors, and for checks of manifests. Pure.

It says of each key alone what it can be. What keys are together, and which unknown key is a misspelt one, ADD and `lint` say.
Keys of ours match in any case: the canonical spelling is a property, every other one follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from userspace_cni.cni.network_keys import TABLE, Key

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final[Mapping[type[Any], str]] = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}
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
        "required": ["cniVersion", "name", "type"],
    }


def _object(place: str) -> dict[str, Any]:
    """The schema of the object at that place; a list's is that of its items."""
    keys = [key for key in TABLE if key.place == _same(place)]
    schema: dict[str, Any] = {"type": ["object", "null"], "properties": {key.name: _value(key, place) for key in keys}}
    here = "#/properties/" + place.replace(".", "/properties/") if place else "#"
    if place == "mirrors":
        schema["type"], here = "object", f"{here}/items"
    schema["patternProperties"] = {
        f"^{''.join(f'[{each.lower()}{each.upper()}]' if each.isalpha() else each for each in key.name)}$": {
            "$ref": f"{here}/properties/{key.name}"
        }
        for key in keys
        if not key.standard
    }
    return schema if schema["patternProperties"] else {name: schema[name] for name in ("type", "properties")}


def _same(place: str) -> str:
    return _LIMITS[1] if place == _LIMITS[0] else place


def _value(key: Key, place: str) -> dict[str, Any]:
    path = f"{place}.{key.name}" if place else key.name
    described = f"{key.help}{f'; without it {key.default}' if key.default else ''}"
    schema: dict[str, Any] = {"description": described, "$comment": f"since {key.since}"}
    if key.kind is dict and any(each.place == _same(path) for each in TABLE):
        return schema | _object(path)
    if key.kind is object:
        return schema
    kinds = [_TYPES[kind] for kind in (key.kind, key.also) if kind]
    if not key.required:
        kinds.append("null")
    if key.choices:
        return schema | {"enum": [*key.choices, *(("",) if key.kind is str else ()), None]}
    schema["type"] = kinds
    least, most = key.bounds or (None, None)
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
