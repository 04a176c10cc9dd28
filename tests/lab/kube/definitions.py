"""The custom resources of deploy/cluster, for the API server of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.kube.apiserver import ApiServer

DEFINITIONS: Final = Path(__file__).resolve().parents[3] / "deploy" / "cluster" / "base" / "definitions"


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, as they are deployed; the caller may change them."""
    found: list[dict[str, Any]] = json.loads(_read_once())
    return found


@cache
def _read_once() -> str:
    """All of them as JSON: reading their YAML takes fifty times as long, and most tests of the API server begin with that."""
    return json.dumps([yaml.safe_load(path.read_text()) for path in sorted(DEFINITIONS.glob("*.yaml"))])


def multus_definition() -> dict[str, Any]:
    """That of NetworkAttachmentDefinitions, which Multus brings."""
    return _definition("NetworkAttachmentDefinition", "network-attachment-definitions", "v1")


def multi_policy_definition() -> dict[str, Any]:
    """That of MultiNetworkPolicies, which Multus' project brings."""
    return _definition("MultiNetworkPolicy", "multi-networkpolicies", "v1beta1")


def _definition(kind: str, plural: str, version: str) -> dict[str, Any]:
    group = "k8s.cni.cncf.io"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def define_all(api: ApiServer) -> None:
    for each in definitions():
        api.define(each)


@contextmanager
def defined_server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        define_all(started)
        yield started
