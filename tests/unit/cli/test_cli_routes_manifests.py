"""`routes manifests` prints what deploy/cluster applies, and only rights that the agents there have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from kubernetes.client import ApiClient

from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.routes.routes_manifests import DEFINITION
from userspace_cni.routes.watching import ALL

READING = ("list", "watch")
BASE = Path(__file__).resolve().parents[3] / "deploy" / "cluster" / "base"


def printed(*more: str) -> str:
    result = CliRunner().invoke(userspace_cni, ["routes", "manifests", *more])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Each group, resource and verb."""
    return {(a, b, c) for rule in rules for a in rule["apiGroups"] for b in rule["resources"] for c in rule["verbs"]}


def test_the_definition_is_that_of_the_cluster() -> None:
    """The command prints the very file of deploy/cluster, with its comments."""
    deployed = BASE / "definitions" / "routes.yaml"
    assert DEFINITION.samefile(deployed)
    assert printed().startswith(deployed.read_text())


def test_the_same_as_yaml_and_json() -> None:
    """A stream of three objects, without aliases in those that the command makes, is the same as the JSON list."""
    found = list(yaml.safe_load_all(printed()))
    assert found == json.loads(printed("--json"))
    assert [each["kind"] for each in found] == ["CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"]
    assert printed().partition("kind: ClusterRole")[2].count("*") == 0


def test_the_rights_are_those_of_the_agents() -> None:
    """They cover what is watched and reported, and are in the role of deploy/cluster, which its account has.

    Kubernetes knows every field.
    """
    _, role, binding = json.loads(printed("--json"))
    followed = {(each.group, each.plural, verb) for each in ALL for verb in READING}
    assert rights(role["rules"]) == followed | {("", "events", "create"), ("", "events", "patch")}
    assert rights(role["rules"]) <= rights(yaml.safe_load((BASE / "cluster-role.yaml").read_text())["rules"])
    assert binding["subjects"] == yaml.safe_load((BASE / "cluster-role-binding.yaml").read_text())["subjects"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    client = ApiClient()
    for each in (role, binding):
        read = client.deserialize(json.dumps(each), f"V1{each['kind']}", "application/json")
        assert client.sanitize_for_serialization(read) == each  # type: ignore[no-untyped-call]
