"""A real API server accepts what we give users for KubeVirt: nothing is refused, and no field is dropped.

The definitions are made of excerpts of KubeVirt's own schemas (tests/unit/kubevirt/data). An object from which something was cut
may have any field; elsewhere an unknown field is dropped, as on a cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.cluster.cluster import RUNNING_S, Cluster
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)
OVERLAY = ROOT / "deploy" / "cluster" / "overlays" / "kubevirt"
EXAMPLE = ROOT / "deploy" / "examples" / "vm.yaml"
_SCHEMAS = ROOT / "tests" / "unit" / "kubevirt" / "data"
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def opened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, in which each object that was cut, which then has no type, may have any field."""
    properties = {name: opened(each) for name, each in schema.get("properties", {}).items()}
    made = {**schema, "properties": properties} if properties else dict(schema)
    return made if "type" in schema or "x-kubernetes-int-or-string" in schema else {**made, **_OPEN}


def schema_of(name: str) -> dict[str, Any]:
    return opened(yaml.safe_load((_SCHEMAS / f"{name}.yaml").read_text())["openAPIV3Schema"])


def definition(kind: str, group: str, schema: Mapping[str, Any], version: str = "v1", *, plural: str = "") -> dict[str, Any]:
    """A CustomResourceDefinition of a kind with namespaces."""
    names = {"kind": kind, "plural": plural or f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    metadata = {"name": f"{names['plural']}.{group}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def definitions() -> list[dict[str, Any]]:
    """What Multus, KubeVirt and the HyperConverged operator define."""
    instance = schema_of("crd-vmi-interfaces-schema")["properties"]["spec"]
    template = {"type": "object", "properties": {"metadata": _OPEN, "spec": instance}}
    machine = {"type": "object", "properties": {"spec": {**_OPEN, "properties": {"template": template}}}}
    return [
        definition("KubeVirt", "kubevirt.io", schema_of("crd-kubevirt-network-schema")),
        definition("VirtualMachine", "kubevirt.io", machine),
        definition("HyperConverged", "hco.kubevirt.io", _OPEN, "v1beta1"),
        definition("NetworkAttachmentDefinition", "k8s.cni.cncf.io", _OPEN, plural="network-attachment-definitions"),
    ]


@pytest.fixture(scope="module")
def kubevirt(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with those definitions, and the CR that KubeVirt's operator has: it has fields of its own.

    Each test makes or changes objects of its own names, and leaves them to the end of the definitions.
    """
    defined = definitions()
    cluster.apply(*defined, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubevirt"}})
    names = [each["metadata"]["name"] for each in defined]
    try:
        cluster.kubectl("wait", "--for=condition=Established", "crd", *names, f"--timeout={RUNNING_S:.0f}s")
        metadata = {"name": "kubevirt", "namespace": "kubevirt"}
        own = {"configuration": {"network": {"defaultNetworkInterface": "masquerade"}}}
        wait_until(lambda: "kubevirts" in cluster.kubectl("api-resources"), RUNNING_S, "the kinds to be served")
        made = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": metadata, "spec": own}
        cluster.kubectl("create", "-f", "-", told=json.dumps(made))  # as KubeVirt's guide has it; see the overlay about `apply`
        yield cluster
    finally:
        cluster.delete("crd", *names)
        cluster.delete("namespace", "kubevirt", "--wait=false")


def manifests(*what: str) -> str:
    """What `userspace-cni kubevirt manifests` prints."""
    argv = [sys.executable, "-m", "userspace_cni", "kubevirt", "manifests", *what]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def lost(wanted: object, found: object, path: str = "") -> list[str]:
    """Paths of what is in `wanted` and not the same in `found`."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return [each for key, value in wanted.items() for each in lost(value, found.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [each for number, value in enumerate(wanted) for each in lost(value, found[number], f"{path}[{number}]")]
    return [] if wanted == found else [path]


def assert_there(cluster: Cluster, documents: str) -> None:
    """Assert that each document is in the cluster with every field."""
    for wanted in yaml.safe_load_all(documents):
        metadata = wanted["metadata"]
        found = cluster.get(wanted["kind"], metadata["name"], f"--namespace={metadata['namespace']}")
        assert lost(wanted, found) == []


def test_binding_is_registered(kubevirt: Cluster, tmp_path: Path) -> None:
    """The overlay, and the printed patch as its comment says: KubeVirt's CR has the binding, and what it had before."""
    kubevirt.kubectl("apply", "--server-side", "--field-manager=userspace-cni", "-k", str(OVERLAY))
    assert_there(kubevirt, (OVERLAY / "kubevirt.yaml").read_text())
    patch = tmp_path / "binding.yaml"
    patch.write_text(manifests("kubevirt", "--binding", "other"))
    kubevirt.kubectl("patch", "kubevirt", "kubevirt", "--namespace=kubevirt", "--type=merge", f"--patch-file={patch}")
    assert_there(kubevirt, patch.read_text())
    network = kubevirt.get("kubevirt", "kubevirt", "--namespace=kubevirt")["spec"]["configuration"]["network"]
    assert set(network["binding"]) == {"vhostuser", "other"}
    assert network["defaultNetworkInterface"] == "masquerade"


def test_binding_is_registered_where_an_operator_owns_kubevirt(kubevirt: Cluster, tmp_path: Path) -> None:
    """The patch for the HyperConverged CR, as its comment says."""
    name, namespace = "kubevirt-hyperconverged", "kubevirt"
    metadata = {"name": name, "namespace": namespace}
    kubevirt.apply({"apiVersion": "hco.kubevirt.io/v1beta1", "kind": "HyperConverged", "metadata": metadata, "spec": {}})
    patch = tmp_path / "binding.yaml"
    patch.write_text(manifests("hco", f"--operator-namespace={namespace}"))
    served = "hyperconvergeds.v1beta1.hco.kubevirt.io"
    kubevirt.kubectl("patch", served, name, f"--namespace={namespace}", "--type=merge", f"--patch-file={patch}")
    assert_there(kubevirt, patch.read_text())


def test_networks_and_machines_are_taken(kubevirt: Cluster) -> None:
    """Network and VM are accepted completely, from the example and as printed with every option."""
    printed = manifests("nad", "vm", "--vlan=100", "--mtu=9000", "--dedicated", "--queues=2", "--vm=other", "--name=other")
    for documents in (EXAMPLE.read_text(), printed):
        kubevirt.kubectl("apply", "-f", "-", told=documents)
        assert_there(kubevirt, documents)
