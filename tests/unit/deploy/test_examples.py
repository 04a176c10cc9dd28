"""deploy/examples: each file is valid, and says how to apply it and what to expect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes.client import ApiClient

from tests.lab.runtimes.dockerfile import ROOT
from userspace_cni.cli.main import userspace_cni

EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
NAMES = [
    "claim-multus",
    "claim-template",
    "claim-vm",
    "claim",
    "non-root",
    "ordinary-pods",
    "ovn-dpdk",
    "ovn-veth",
    "ovn-vm",
    "pair",
    "provider-network",
    "several-networks",
    "tap",
    "trunk",
    "uplink",
    "vm",
]
IMAGE = re.compile(r"image: (?:&\w+ )?([a-z][^\s*]*)$", re.MULTILINE)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def test_names() -> None:
    """The examples that should exist."""
    assert [path.stem for path in EXAMPLES] == NAMES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path: Path) -> None:
    """Its networks are what ADD takes, pods name networks of the file, the image is named once, and it says how it is applied."""
    found = documents(path)
    has_pods = any(each["apiVersion"] != "userspace-cni.io/v1alpha1" for each in found)
    has_claims = any(each["kind"].startswith("ResourceClaim") for each in found)
    # claims are judged in test_claim_examples.py, objects of the node's network in tests/unit/kube/test_node_objects.py
    if has_pods and not has_claims:
        linted = CliRunner().invoke(userspace_cni, ["lint", str(path)])
        assert linted.exit_code == 0, linted.output
    text = path.read_text()
    assert f"kubectl apply -f deploy/examples/{path.name}" in text.partition("apiVersion")[0]
    images = IMAGE.findall(re.sub(r" +#.*", "", text))
    assert len(images) == len(set(images)) == int(has_pods)
    networks = {each["metadata"]["name"] for each in found if each["kind"] == "NetworkAttachmentDefinition"}
    for each in found:
        if each["kind"] == "Deployment" and not has_claims:
            client = ApiClient()
            read = client.deserialize(json.dumps(each), "V1Deployment", "application/json")
            assert client.sanitize_for_serialization(read) == each  # type: ignore[no-untyped-call]
            asked = each["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
            assert set(re.split(", *", asked)) == networks


def test_the_vm_is_the_generators() -> None:
    """The example is what `kubevirt manifests` prints, and `kubevirt lint` finds nothing in it and its registration."""
    [path] = [path for path in EXAMPLES if path.stem == "vm"]
    printed = CliRunner().invoke(userspace_cni, ["kubevirt", "manifests", "nad", "vm"]).output
    assert documents(path) == list(yaml.safe_load_all(printed))
    binding = ROOT / "deploy" / "cluster" / "overlays" / "kubevirt" / "kubevirt.yaml"
    linted = CliRunner().invoke(userspace_cni, ["kubevirt", "lint", str(binding), str(path)])
    assert linted.exit_code == 0, linted.output
