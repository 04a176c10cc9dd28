"""The JSON Schema of a settings file, made of the table of settings: for editors, and for checks of a cluster's files. Pure.

It describes the values of each key, and the keys of the file's tables with their types.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, Literal

from userspace_cni.base.gateways import READERS as OF_GATEWAYS
from userspace_cni.base.gateways import Gateway
from userspace_cni.base.mirrors import NodeMirror
from userspace_cni.base.provider_networks import READERS as OF_PROVIDER_NETWORKS
from userspace_cni.base.provider_networks import ProviderNetwork
from userspace_cni.base.settings import TABLE, Setting
from userspace_cni.base.tenancy import READERS as OF_RULES
from userspace_cni.base.tenancy import Rule

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final[Mapping[type[Any], str]] = {str: "string", int: "integer", bool: "boolean", float: "number", tuple: "array"}
_TABLES: Final[Mapping[str, tuple[type[Any], Iterable[str], tuple[str, ...]]]] = {
    "rule": (Rule, OF_RULES, ("namespaces",)),
    "mirror": (NodeMirror, NodeMirror.__dataclass_fields__, ("name", "bridge", "output")),
    "gateway": (Gateway, OF_GATEWAYS, ("bridge",)),
    "provider_network": (ProviderNetwork, OF_PROVIDER_NETWORKS, ("name",)),
}
"""The tables of the file: what is read of one, its keys, and those that it must have."""
_WRITTEN_OTHERWISE: Final[Mapping[str, dict[str, Any]]] = {
    "move_addresses": {"enum": [False, True, "primary"]},
    "next_hop": {"type": "string"},
    "bandwidth": {"type": "object"},
}
"""Keys of tables that are read as another type, or into another field, than they are written."""


def settings_schema() -> dict[str, Any]:
    tables = {name: {"type": "array", "items": _table(*of)} for name, of in _TABLES.items()}
    return {
        "$schema": DIALECT,
        "title": "The settings of a node with the CNI plugin 'userspace'",
        "type": "object",
        "properties": {key: _value(default, setting) for key, (default, setting) in TABLE.items()} | tables,
        "additionalProperties": False,
    }


def _value(default: Any, setting: Setting) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": setting.help, "$comment": f"since {setting.since}", "type": _TYPES[type(default)]}
    if isinstance(default, tuple):
        items = {"items": {"type": "string", **setting.form.schema}}
        can_be_empty = {"default": list(default)} if len(default) >= setting.least else {"minItems": setting.least}
        return schema | can_be_empty | items
    schema["default"] = default
    return schema | dict(setting.form.schema)


def _table(kind: type[Any], keys: Iterable[str], required: tuple[str, ...]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {key: _WRITTEN_OTHERWISE.get(key) or _of_hint(hints[key]) for key in keys}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _of_hint(hint: Any) -> dict[str, Any]:
    """The JSON type of what an annotation's value is read from; nothing for what is written in a form of its own."""
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        return {"enum": [each for each in typing.get_args(hint) if each]}
    kind = "object" if is_dataclass(hint) else _TYPES.get(typing.get_origin(hint) or hint)
    return {"type": kind} if kind else {}
