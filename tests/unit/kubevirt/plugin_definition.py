"""The definition of KubeVirt's Plugin in both versions, and objects as an API server with such a definition stores them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.lab.kube.admission import evaluated
from tests.lab.kube.schemas import children, prune
from tests.unit.kubevirt.schemas import faults, schema

FILES: Final[Mapping[str, str]] = {"1.9": "crd-plugin-schema.yaml", "1.10": "crd-plugin-schema-1.10.yaml"}
_RULES: Final = "x-kubernetes-validations"


def definition(version: str) -> dict[str, Any]:
    """The CustomResourceDefinition, without the rules in CEL."""
    bare = schema(FILES[version])
    _take_rules(bare)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "plugins.plugin.kubevirt.io"},
        "spec": {
            "group": "plugin.kubevirt.io",
            "names": {"kind": "Plugin", "listKind": "PluginList", "plural": "plugins", "singular": "plugin"},
            "scope": "Cluster",
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": bare}}],
        },
    }


def stored(plugin: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The object as a server with that definition stores it, without unknown fields."""
    kept: dict[str, Any] = copy.deepcopy(dict(plugin))
    prune({**schema(FILES[version])["properties"]["spec"]}, kept["spec"])
    return kept


def refused(plugin: Mapping[str, Any], version: str) -> list[str]:
    """Why such a server refuses the object: by its schema, which `kubectl apply` validates, and by the schema's rules."""
    whole = schema(FILES[version])
    return [*faults(plugin, whole), *_broken(whole, plugin)]


def _broken(node: Mapping[str, Any], value: Any) -> Iterator[str]:
    """The messages of the rules that the object breaks, of its own schema and those below."""
    yield from (each["message"] for each in node.get(_RULES, ()) if not evaluated(each["rule"], {"self": value}))
    if isinstance(value, list):
        for item in value:
            yield from _broken(node["items"], item)
    if isinstance(value, dict):
        for name, below in node.get("properties", {}).items():
            if name in value:
                yield from _broken(below, value[name])


def _take_rules(node: dict[str, Any]) -> None:
    node.pop(_RULES, None)
    for _, below in children(node):
        _take_rules(below)  # type: ignore[arg-type]
