"""The part of a CRD's schema that we have, and the faults of an object by it.

The rules are the API server's for structural schemas: types, required keys, patterns, enumerations, lengths. A server would
drop a key that no schema knows without a word, so such a key counts as a fault here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": float}


def schema(name: str) -> dict[str, Any]:
    """The schema in a file of `data`."""
    found: dict[str, Any] = yaml.safe_load((DATA / name).read_text())["openAPIV3Schema"]
    return found


def faults(value: Any, node: dict[str, Any], path: str = "") -> Iterator[str]:
    if node.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{path}: neither a number nor a string"
        elif isinstance(value, str) and not re.search(node.get("pattern", ""), value):
            yield f"{path}: {value!r} does not match"
        return
    kind = _TYPES[node.get("type", "object")]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{path}: {type(value).__name__} is no {node.get('type', 'object')}"
        return
    if isinstance(value, dict):
        yield from _faults_of_object(value, node, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults(item, node["items"], f"{path}[{number}]")
        if len(value) < node.get("minItems", 0) or len(value) > node.get("maxItems", len(value)):
            yield f"{path}: {len(value)} items"
    elif isinstance(value, str):
        if len(value) < node.get("minLength", 0) or value not in node.get("enum", [value]):
            yield f"{path}: {value!r}"
        if not re.search(node.get("pattern", ""), value):
            yield f"{path}: {value!r} does not match"


def _faults_of_object(value: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
    known = node.get("properties", {})
    others = node.get("additionalProperties")
    yield from (f"{path}.{key}: is required" for key in node.get("required", ()) if key not in value)
    for key, item in value.items():
        place = f"{path}.{key}"
        if key in known:
            yield from faults(item, known[key], place)
        elif isinstance(others, dict):
            yield from faults(item, others, place)
        elif known:
            yield f"{place}: is unknown"
