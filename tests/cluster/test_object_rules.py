"""The custom resources on a real API server: it takes definitions and examples, and the server of the other tests has its rules.

The same requests go to both. Of an answer that is compared which counts for a client: whether it succeeded and with which error,
spec, status, who applied which field, and whether there is a new version. What servers are free to choose (UIDs, versions, times,
words) is not.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import yaml

from tests.lab.cluster.cluster import AGENT, RUNNING_S, Cluster
from tests.lab.cluster.requests import Call, send
from tests.lab.kube.apiserver import TOKEN, ApiServer
from tests.lab.kube.definitions import defined_server, definitions
from tests.lab.kube.resource_definitions import WITHOUT_CAPACITY, define_resources, resource_definitions
from tests.lab.runtimes.dockerfile import ROOT
from userspace_cni.kube.credentials import APPLY_PATCH, MERGE_PATCH
from userspace_cni.kube.resources import LEASES, NODE_STATES, PROVIDER_NETWORKS, SUBNETS, VLANS, ApiResource

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
EXAMPLE = ROOT / "deploy" / "examples" / "provider-network.yaml"
JSON = "application/json"


def thing(resource: ApiResource, name: str, **parts: Any) -> dict[str, Any]:
    """An object as a client sends it."""
    metadata = {"name": name, **parts.pop("metadata", {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **parts}


def create(resource: ApiResource, name: str, **parts: Any) -> Call:
    return "POST", resource.path(), JSON, thing(resource, name, **parts)


def merge(resource: ApiResource, name: str, body: Any, part: str = "") -> Call:
    return "PATCH", resource.path(name, subresource=part), MERGE_PATCH, body


def applied(manager: str, resource: ApiResource, name: str, part: str = "", *, force: bool = False, **parts: Any) -> Call:
    """A server-side apply."""
    path = f"{resource.path(name, subresource=part)}?fieldManager={manager}&force={str(force).lower()}"
    return "PATCH", path, APPLY_PATCH, thing(resource, name, **parts)


def condition(node: str, **more: Any) -> dict[str, Any]:
    """What a node says in a status."""
    return {"node": node, "type": "Ready", "status": "True", **more}


UPLINK = {"defaultInterface": "eth1"}
LEASE = LEASES.within("default")
CALLS: Sequence[Call] = (
    # what a schema says
    create(VLANS, "odd", spec={"id": 4095, "provider": "net1"}),
    create(VLANS, "odd", spec={"id": "1", "provider": "net1"}),
    create(VLANS, "odd", spec={"id": 1}),
    create(VLANS, "odd"),
    create(VLANS, "a", spec={"id": 1, "provider": "net1", "kept": True}, dropped=1),
    create(VLANS, "a", spec={"id": 1, "provider": "net1"}),
    create(SUBNETS, "odd", spec={"cidrBlock": "10.0.0.0/8", "gatewayType": "both"}),
    create(PROVIDER_NETWORKS, "odd", spec={**UPLINK, "moveAddresses": "yes"}),
    create(PROVIDER_NETWORKS, "odd", spec={"bond": {"members": ["eth1"]}}),
    create(PROVIDER_NETWORKS, "net1", spec={**UPLINK, "moveAddresses": "primary"}),
    merge(PROVIDER_NETWORKS, "net1", {"spec": {"moveAddresses": False}}),
    # each path its own part, conditions each their node's
    applied("n1", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n1", reason="x")]}),
    applied("n2", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n2")], "ready": True}),
    applied("n2", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n2")], "ready": True}),
    applied("n1", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n1")]}),
    applied("n1", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n2", status="False")]}),
    applied("n1", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n1")], "ready": True}),
    applied("n1", PROVIDER_NETWORKS, "net1", "status", status={"readyNodes": ["n1"]}),
    applied("n3", PROVIDER_NETWORKS, "net1", "status", status={"conditions": [condition("n3"), condition("n3")]}),
    applied("n2", PROVIDER_NETWORKS, "net1", "status", status={"ready": False}),
    merge(PROVIDER_NETWORKS, "net1", {"spec": {"mtu": 9000}, "status": {"ready": False}}, "status"),
    # a node's own object
    applied("agent", NODE_STATES, "n1", status={"chassis": "c", "specs": [{"kind": "k", "name": "n", "ready": True}]}),
    applied("agent", NODE_STATES, "n1", status={"chassis": "c", "specs": [{"kind": "k", "name": "n", "ready": True}]}),
    applied("agent", NODE_STATES, "n1", status={"chassis": "c", "specs": [{"kind": "k", "name": "n"}]}),
    merge(NODE_STATES, "n1", {"metadata": {"labels": {"a": "b"}}, "status": {"chassis": "other"}}),
    merge(NODE_STATES, "n1", {"metadata": {"labels": {"a": "b"}}}),
    applied("agent", NODE_STATES, "n1", status={"chassis": "c"}),
    applied("agent", NODE_STATES, "n1", force=True, metadata={"labels": {"mine": "1"}}, status={"chassis": "c"}),
    applied("agent", NODE_STATES, "n1", status={"chassis": "c"}),
    applied("agent", NODE_STATES, "n1", status={"addresses": ["192.0.2.11"]}),
    applied("agent", NODE_STATES, "n1", status={}),
    applied("agent", NODE_STATES, "n1"),
    merge(NODE_STATES, "n1", {}, "status"),
    applied("agent", NODE_STATES, "n2", metadata={"uid": "another"}, status={"chassis": "c"}),
    applied("agent", NODE_STATES, "n1", metadata={"uid": "another"}, status={"chassis": "c"}),
    ("PATCH", NODE_STATES.path("n1"), APPLY_PATCH, thing(NODE_STATES, "n1")),
    # versions
    ("PUT", VLANS.path("a"), JSON, thing(VLANS, "a", spec={"id": 2, "provider": "net1"})),
    ("PUT", VLANS.path("a"), JSON, thing(VLANS, "a", metadata={"resourceVersion": "1"}, spec={"id": 2, "provider": "net1"})),
    merge(VLANS, "a", {"metadata": {"resourceVersion": "1"}}),
    merge(VLANS, "a", {"spec": {"id": 1}}),
    merge(VLANS, "none", {"spec": {"id": 1}}),
    ("DELETE", VLANS.path("a"), JSON, {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "another"}}),
    ("DELETE", VLANS.path("none"), JSON, None),
    create(LEASE, "leader", spec={"holderIdentity": "a", "leaseDurationSeconds": 15}),
    create(LEASE, "leader", spec={"holderIdentity": "b"}),
    merge(LEASE, "leader", {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "b"}}),
    ("DELETE", LEASE.path("leader"), JSON, None),
    ("DELETE", VLANS.path("a"), JSON, None),
    ("DELETE", PROVIDER_NETWORKS.path("net1"), JSON, None),
    ("DELETE", NODE_STATES.path("n1"), JSON, None),
    ("GET", VLANS.path(), JSON, None),
    ("GET", "/apis/userspace-cni.io/v1alpha1/houses", JSON, None),
)  # fmt: skip


CLAIM = ApiResource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", "default")
SLICE = ApiResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
LACKING = WITHOUT_CAPACITY | {"selectableFields"}
"""What a server of 1.20 cannot have in a definition: fields to select by, and a key of a list that need not be there."""
REQUESTS = {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": "fast"}}]}}
POOL = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
OFFER = {"driver": "example.org", "nodeName": "n1", "pool": POOL}


def told(device: str, **more: Any) -> dict[str, Any]:
    """What a driver says of a device of a claim."""
    return {"driver": "example.org", "pool": "n1", "device": device, **more}


CLAIM_CALLS: Sequence[Call] = (
    create(CLAIM, "odd", spec={"devices": {"requests": [{"exactly": {"deviceClassName": "fast"}}]}}),
    create(CLAIM, "odd", spec={"devices": {"requests": [{"name": "n", "exactly": {"deviceClassName": "f", "count": 0}}]}}),
    create(CLAIM, "c", spec=REQUESTS, status={"reservedFor": []}),
    merge(CLAIM, "c", {"status": {"reservedFor": [{"resource": "pods", "name": "p"}]}}, "status"),
    merge(CLAIM, "c", {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}, "status"),
    *(
        merge(CLAIM, "c", {"status": {"devices": devices}}, "status")
        for devices in (
            [told("a"), told("b", networkData={"interfaceName": "net1"})],
            [told("a_b")],
            [told("a", networkData={"ips": ["x"] * 17})],
            [told("a", dropped=1)],
        )
    ),
    applied("driver", SLICE, "s", spec={**OFFER, "devices": [{"name": "br", "attributes": {"bridge": {"string": "br"}}}]}),
    applied("driver", SLICE, "s", spec={**OFFER, "devices": [{"name": "br", "capacity": {"ports": {"value": 4}}}]}),
    applied("driver", SLICE, "s", spec={**OFFER, "devices": [{"name": "br", "taints": [{"key": "k", "effect": "Odd"}]}]}),
    applied("driver", SLICE, "s", spec={"driver": "example.org"}),
    ("GET", CLAIM.path(), JSON, None),
    ("DELETE", CLAIM.path("c"), JSON, None),
    ("DELETE", SLICE.path("s"), JSON, None),
)  # fmt: skip


def send_here(api: ApiServer, calls: Iterable[Call]) -> list[tuple[int, dict[str, Any]]]:
    """As `tests.lab.cluster.requests.send`, to the server of the other tests."""
    answers = []
    for method, path, kind, body in calls:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "User-Agent": "tester/1"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        answers.append((answer.status, json.loads(answer.read())))
        connection.close()
    return answers


def compared(answers: Iterable[tuple[int, dict[str, Any]]]) -> list[Any]:
    """The parts of the answers that count, one after the other."""
    found: list[Any] = []
    versions: dict[str, str] = {}
    for status, body in answers:
        metadata = body.get("metadata") or {}
        if status >= 300 or "name" not in metadata or body["kind"] == "Status":
            found.append((status, [each["metadata"]["name"] for each in body.get("items") or ()]))
            continue
        version = metadata["resourceVersion"]
        is_new, versions[metadata["uid"]] = versions.get(metadata["uid"]) != version, version
        rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
        entries = [each for each in metadata["managedFields"] if each["operation"] == "Apply"]
        owners = {each["manager"]: filled(each["fieldsV1"]) for each in entries}
        kept = {key: metadata.get(key) for key in ("labels", "generation")}
        found.append((is_new, filled(rest), filled(kept), owners))
    return found


def filled(value: Any) -> Any:
    """The object without empty parts and without "." marks, whose place has changed between releases."""
    if isinstance(value, dict):
        below = {key: filled(each) for key, each in value.items() if key != "."}
        return {key: each for key, each in below.items() if each not in (None, [])}
    return [filled(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def defined(cluster: Cluster) -> Cluster:
    """The cluster with the custom resources of deploy/cluster, which are served."""
    cluster.apply(*definitions())
    names = [each["metadata"]["name"] for each in definitions()]
    cluster.kubectl("wait", "--for=condition=Established", "crd", *names, f"--timeout={RUNNING_S:.0f}s")
    return cluster


def test_the_real_server_takes_definitions_and_examples(defined: Cluster) -> None:
    """The schemas are structural, and no field of an example is refused or dropped."""
    for name in [each["metadata"]["name"] for each in definitions()]:
        conditions = {each["type"]: each["status"] for each in defined.get("crd", name)["status"]["conditions"]}
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in conditions
    documents = list(yaml.safe_load_all(EXAMPLE.read_text()))
    defined.apply(EXAMPLE)
    try:
        for each in documents:
            found = defined.get(f"{each['kind']}.v1alpha1.userspace-cni.io", each["metadata"]["name"])
            assert found["spec"] == each["spec"]
        assert "net1" in defined.kubectl("get", "userspace-cni")
    finally:
        defined.kubectl("delete", "-f", str(EXAMPLE))


def test_the_tests_server_has_the_rules_of_the_real_one(defined: Cluster) -> None:
    """Each request has the same outcome at both."""
    real = compared(send(defined.control, CALLS))
    with defined_server() as api:
        mine = compared(send_here(api, CALLS))
    differences = [(call[:2], there, here) for call, there, here in zip(CALLS, real, mine, strict=True) if there != here]
    assert differences == []


def test_claims_of_devices_are_the_same_objects_at_both(cluster: Cluster) -> None:
    """The definitions of claims and slices are taken by a server that has none such, and each request has the same outcome."""
    made = resource_definitions(LACKING)
    names = [each["metadata"]["name"] for each in made]
    cluster.apply(*made)
    try:
        cluster.kubectl("wait", "--for=condition=Established", "crd", *names, f"--timeout={RUNNING_S:.0f}s")
        real = compared(send(cluster.control, CLAIM_CALLS))
    finally:
        cluster.kubectl("delete", "crd", *names)
    with ApiServer() as api:
        define_resources(api, LACKING)
        mine = compared(send_here(api, CLAIM_CALLS))
    differences = [(call[:2], there, here) for call, there, here in zip(CLAIM_CALLS, real, mine, strict=True) if there != here]
    assert differences == []


def test_what_is_applied_again_is_unchanged(deployed: Cluster) -> None:
    """The server keeps every field as it is written: a second `kubectl apply` of the same changes nothing."""
    told = deployed.kubectl("apply", "-k", str(AGENT)).splitlines()
    assert len(told) > len(list(definitions()))
    assert [line for line in told if not line.endswith(" unchanged")] == []
