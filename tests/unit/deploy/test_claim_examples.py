"""deploy/examples with claims of devices: what the API takes, what the driver takes of it, and which devices they select."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes.client import ApiClient

from kubevirt.lint.linted_documents import ManifestDocument, judge
from tests.lab.kube.admission import evaluated
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.resource_definitions import define_resources
from tests.lab.runtimes.dockerfile import ROOT
from userspace_cni.cli.main import userspace_cni
from userspace_cni.dra.claim_objects import Parameters
from userspace_cni.dra.claim_parameters import network_of
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.dra.slice_content import PoolBridge, ServerAbilities, slice_specs

EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("claim*.yaml"))
CLASS = CLUSTER / "overlays" / "dra" / "component" / "device-class.yaml"
MODELS = {"ResourceClaim": "ResourceV1ResourceClaim"}
"""Names of the client's models where they are not as those of other kinds."""
CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def claim_specs(path: Path) -> dict[str, dict[str, Any]]:
    """The `spec` of each claim that the example has or makes, by the name of the object."""
    found = [each for each in documents(path) if each["kind"] in CLAIMS]
    return {each["metadata"]["name"]: each["spec"].get("spec", each["spec"])["devices"] for each in found}


def users(path: Path) -> list[dict[str, Any]]:
    """The specs in the example that name claims: a pod's, a template's, a VM's."""
    found = []
    for each in documents(path):
        spec = each.get("spec", {})
        found += [part for part in (spec, spec.get("template", {}).get("spec", {})) if "resourceClaims" in part]
    return found


def test_there_are_some() -> None:
    """The examples that should exist."""
    assert [path.stem for path in EXAMPLES] == ["claim-multus", "claim-template", "claim-vm", "claim"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_server_takes_them(path: Path) -> None:
    """Claims and templates are valid, and Kubernetes knows every field of the pods and the class with its type."""
    client = ApiClient()
    with ApiServer() as api:
        define_resources(api)
        for each in (*documents(path), yaml.safe_load(CLASS.read_text())):
            if each["kind"] in (*CLAIMS, "DeviceClass"):
                api.add(each, each["metadata"].get("namespace", "") if each["kind"] == "DeviceClass" else "default")
            if each["apiVersion"] not in ("kubevirt.io/v1", "k8s.cni.cncf.io/v1"):
                read = client.deserialize(json.dumps(each), MODELS.get(each["kind"], f"V1{each['kind']}"), "application/json")
                assert client.sanitize_for_serialization(read) == each  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_names_fit_together(path: Path) -> None:
    """Pods name claims of the file, containers and networks claims of the pod, requests the class that is deployed."""
    claims, kind = claim_specs(path), yaml.safe_load(CLASS.read_text())["metadata"]["name"]
    requests = {each["name"] for devices in claims.values() for each in devices["requests"]}
    assert {each["exactly"]["deviceClassName"] for devices in claims.values() for each in devices["requests"]} == {kind}
    assert {name for devices in claims.values() for each in devices["config"] for name in each["requests"]} == requests
    [spec] = users(path)
    named = {each.get("resourceClaimName") or each["resourceClaimTemplateName"] for each in spec["resourceClaims"]}
    assert named == set(claims)
    called = {each["name"] for each in spec["resourceClaims"]}
    used = {each["name"] for part in spec.get("containers", ()) for each in part["resources"]["claims"]}
    networks = [each["resourceClaim"] for each in spec.get("networks", ()) if "resourceClaim" in each]
    assert used | {each["claimName"] for each in networks} == called
    assert {each["requestName"] for each in networks} <= requests


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_driver_takes_the_parameters(path: Path) -> None:
    """They are a network of the device's bridge in which `lint` finds nothing."""
    for devices in claim_specs(path).values():
        for each in devices["config"]:
            assert each["opaque"]["driver"] == DRIVER
            network = network_of([Parameters("FromClaim", each["opaque"]["parameters"])], "br0")
            given = json.dumps({"cniVersion": "1.0.0", "name": "claim", "type": "userspace", **network})
            linted = CliRunner().invoke(userspace_cni, ["lint", "-"], input=given)
            assert linted.exit_code == 0, linted.output


def test_the_vm_can_migrate() -> None:
    """`kubevirt lint` has notes on the VM alone: what is not in the file. Without the consumer it would not migrate."""
    [path] = [each for each in EXAMPLES if each.stem == "claim-vm"]
    given = documents(path)
    judged = judge([ManifestDocument(path.name, each) for each in given])
    assert [each.message for each in judged.findings if each.severity != "note"] == []
    [config] = given[0]["spec"]["spec"]["devices"]["config"]
    del config["opaque"]["parameters"]["consumer"]
    judged = judge([ManifestDocument(path.name, each) for each in given])
    assert [each.name for each in judged.findings if each.severity != "note"] == ["not-migratable"]


@pytest.mark.parametrize("path", [*EXAMPLES, CLASS], ids=lambda path: path.stem)
def test_selectors(path: Path) -> None:
    """They find the bridge's device as a node publishes it, in either form, and no other driver's."""
    claims = claim_specs(path) if path != CLASS else {"": {"requests": [{"exactly": documents(path)[0]["spec"]}]}}
    for devices in claims.values():
        for selector in (each for request in devices["requests"] for each in request["exactly"]["selectors"]):
            expression = selector["cel"]["expression"]
            for shared in (True, False):
                assert evaluated(expression, {"device": seen_by_cel("br0", DRIVER, shared=shared)}) is True
            assert evaluated(expression, {"device": seen_by_cel("br1", DRIVER)}) is (path == CLASS)
    if path == CLASS:
        assert evaluated(expression, {"device": seen_by_cel("br0", "gpu.example.com")}) is False


def seen_by_cel(bridge: str, driver: str, *, shared: bool = True) -> dict[str, Any]:
    """A bridge's device as the scheduler shows it to selectors: attributes by domain, those without one by the driver's."""
    [spec] = slice_specs("n1", [PoolBridge(bridge, healthy=True, room=1, free=1)], ServerAbilities(shared=shared))
    [device] = spec["devices"]
    found: dict[str, dict[str, Any]] = {}
    for name, value in device["attributes"].items():
        domain, _, key = name.rpartition("/")
        found.setdefault(domain or driver, {})[key] = next(iter(value.values()))
    return {"driver": driver, "attributes": found}
