"""Manifests with and without faults: every trap is found by its name, at its place, with a remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubevirt.kubevirt_traps import SEVERITIES, TRAPS
from kubevirt.lint.linted_documents import ManifestDocument, judge
from kubevirt.lint.vm_claims import CLASS
from kubevirt.manifests import ManifestOptions, hco_manifests, kubevirt_manifests, nad_manifests, vm_manifests
from kubevirt.plugin_manifests import plugin_manifests
from kubevirt.plugin_schema import Version
from tests.unit.kubevirt import lint_files
from tests.unit.kubevirt.lint_cases import CASES, claim_template
from tests.unit.kubevirt.lint_files import Files, found, grave, launcher_plugin, plugin, pod, told_pod
from tests.unit.kubevirt.plugin_definition import stored
from tests.unit.kubevirt.schemas import schema

ROOT = Path(__file__).resolve().parents[3]
MAKERS = {
    "kubevirt": (kubevirt_manifests, nad_manifests, vm_manifests),
    "hco": (hco_manifests, nad_manifests, vm_manifests),
    "plugin": (plugin_manifests, nad_manifests, vm_manifests),
}
WANTED = {"usual": ManifestOptions(), "tuned": lint_files.WANTED}


# -- what is right -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("makers", MAKERS.values(), ids=MAKERS)
def test_our_own_manifests_are_clean(makers: tuple[Callable[[ManifestOptions], Any], ...], wanted: ManifestOptions) -> None:
    """What `kubevirt manifests` prints has no finding at all, not even a note."""
    objects = [
        each.object
        for make in makers
        for each in make(ManifestOptions(**{**vars(wanted), "injected": makers[0] is plugin_manifests}))
    ]
    assert found(*objects) == []


def test_a_launcher_pod_is_clean() -> None:
    """A launcher pod as KubeVirt makes it, with what Multus tells, has no finding."""
    assert found(pod(), told_pod()) == []


def test_documents_of_others_are_ignored() -> None:
    """Unknown kinds and groups are reported as ignored, and not judged."""
    others = [{"apiVersion": "v1", "kind": "Service"}, {"apiVersion": "other.io/v1", "kind": "Plugin"}, [1], 3, {}]
    ordinary = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    judged = judge([ManifestDocument("f", each) for each in (*others, ordinary)])
    assert (judged.findings, judged.checked, len(judged.ignored)) == ((), {}, 6)


def test_a_list_is_what_is_in_it() -> None:
    """The objects of a list are judged, as `kubectl get -o yaml` prints them; lists may be of lists."""
    files = Files()
    files.nic["model"] = "e1000"
    listed = {"kind": "List", "items": [files.kubevirt, {"kind": "List", "items": [files.network, files.vm]}]}
    assert [each.name for each in grave(found(listed))] == ["wrong-model"]


def test_what_was_not_given_is_a_note() -> None:
    """A VM without other objects is judged by itself. A note says what could not be judged."""
    [only] = found(Files().vm)
    assert (only.name, only.severity) == ("not-given", "note")
    assert "KubeVirt" in only.message
    assert "'dpdk'" in only.message


def test_bindings_can_be_named() -> None:
    """With the names of our bindings given, nothing is guessed from other names."""
    files = Files()
    files.nic["model"] = "e1000"
    documents = [ManifestDocument("f", each) for each in (files.kubevirt, files.network, files.vm)]
    assert [each.name for each in grave(list(judge(documents, ["vhostuser"]).findings))] == ["wrong-model"]
    assert grave(list(judge(documents, ["another"]).findings)) == []


# -- what is wrong -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_traps(case: str) -> None:
    """Each trap is found by its name, with severity and remedy. Without the mistake there is no such finding."""
    name, severity, spoil = CASES[case]
    assert Files().findings() == []
    files = Files()
    spoil(files)
    mine = [each for each in files.findings() if (each.name, each.severity) == (name, severity)]
    assert mine
    for each in mine:
        assert each.subject.startswith("f.yaml: ")
        assert each.remedy
        assert "\n" not in each.message + each.remedy


@pytest.mark.parametrize("case", CASES)
def test_a_trap_brings_no_others_with_it(case: str) -> None:
    """One mistake causes one kind of finding, or two if it is two faults, so the user need not guess which is the cause."""
    files = Files()
    CASES[case][2](files)
    assert len({each.name for each in grave(files.findings())}) <= 2


def test_a_forks_binding_is_told_for_the_vm_alone() -> None:
    """Without the network's file, too, the finding has place and alternatives, and a misspelt method is named."""
    files = Files()
    files.nic.pop("binding")
    files.nic.update(vhostuser={}, masquerad={}, mac="02:00:00:00:00:01")
    interface = "spec.template.spec.domain.devices.interfaces[1]"
    assert {each.path: each.remedy for each in grave(found(files.vm))} == {
        f"{interface}.vhostuser": "write `binding: {name: vhostuser}`, with the name that the KubeVirt object registers",
        f"{interface}.masquerad": "write masquerade",
    }


def test_every_field_of_an_interface_is_known() -> None:
    """None of KubeVirt's own fields counts as an unknown binding."""
    spec = schema("crd-vmi-interfaces-schema.yaml")["properties"]["spec"]["properties"]
    fields = spec["domain"]["properties"]["devices"]["properties"]["interfaces"]["items"]["properties"]
    files = Files()
    files.domain["devices"]["interfaces"].append(dict.fromkeys(fields) | {"name": "third", "bridge": {}})
    assert len(fields) > 15
    assert [each for each in found(files.vm) if each.name in ("unknown-binding", "field-case")] == []


def test_places_in_an_object_are_exact() -> None:
    """A finding names file, object and the path within the object."""
    files = Files()
    files.nic["model"] = "e1000"
    files.spec(mtu=9200)
    places = {each.name: (each.subject, each.path) for each in files.findings()}
    vm = "f.yaml: VirtualMachine nfv/dpdk-vm"
    assert places == {
        "wrong-model": (vm, "spec.template.spec.domain.devices.interfaces[1]"),
        "mtu-mismatch": (vm, "spec.template.metadata.annotations['userspace/vhostuser']"),
    }


def test_an_instance_is_judged_as_its_vm() -> None:
    """A VirtualMachineInstance, which has the same fields at other places, is judged like its VM."""
    files = Files()
    files.nic["model"] = "e1000"
    instance = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {**files.vm["metadata"], **files.template["metadata"]},
        "spec": files.template["spec"],
    }
    [only] = found(files.kubevirt, files.network, instance)
    assert (only.name, only.path) == ("wrong-model", "spec.domain.devices.interfaces[1]")


def test_an_instance_type_leaves_vcpus_and_memory_open() -> None:
    """If an instance type sets the size of a VM, there is no finding about queues and huge pages."""
    files = Files()
    files.vm["spec"]["instancetype"] = {"name": "u1.large"}
    files.spec(mtu=9000, queues=8)
    files.domain.pop("cpu")
    files.domain.pop("memory")
    assert files.findings() == []


def test_vcpus_that_can_be_plugged_in_count() -> None:
    """A VM may have as many queues as it can have vCPUs: the guest uses them once the vCPUs are plugged in."""
    files = Files()
    files.domain["cpu"] = {"cores": 2, "sockets": 1, "maxSockets": 4}
    files.spec(mtu=9000, queues=8)
    assert files.findings() == []
    files.spec(mtu=9000, queues=9)
    assert [each.name for each in files.findings()] == ["queues-over-vcpus"]


def test_vcpus_by_request() -> None:
    """Without a topology the VM has as many vCPUs as its pod has CPUs."""
    files = Files()
    files.domain["cpu"] = {}
    files.domain["resources"] = {"requests": {"cpu": "3500m"}}
    files.spec(mtu=9000, queues=4)
    assert files.findings() == []


@pytest.mark.parametrize(
    ("page", "architecture"), [("2Mi", ""), ("1Gi", "amd64"), ("32Mi", "arm64"), ("512Mi", ""), ("1Mi", "s390x")]
)
def test_pages_that_some_node_has(page: str, architecture: str) -> None:
    """Each page size of Linux on the VM's architecture is accepted, and without an architecture each size of any."""
    files = Files()
    files.domain["memory"]["hugepages"] = {"pageSize": page}
    files.template["spec"].update({"architecture": architecture} if architecture else {})
    assert files.findings() == []


def test_two_bindings_where_kubevirt_tells_them_apart() -> None:
    """From 1.9 on, two bindings of one image may serve one VM. Before that, two VMs may have one each."""
    files = Files()
    CASES["two bindings of one image before 1.9"][2](files)
    assert [each.name for each in files.findings()] == ["other-binding"]
    for version in ("v1.9.0", "v1.10.3-12-gabc", "v2.0.0"):
        files.kubevirt["status"]["observedKubeVirtVersion"] = version
        assert files.findings() == []
    files.kubevirt["status"]["observedKubeVirtVersion"] = "v1.8.0"
    files.domain["devices"]["interfaces"][2]["binding"] = {"name": "vhostuser"}
    assert files.findings() == []


@pytest.mark.parametrize(("form", "cluster"), [((1, 9), "1.10"), ((1, 10), "1.9")])
def test_what_a_server_of_another_version_makes_of_our_plugin(form: Version, cluster: str) -> None:
    """Such a server drops the hook. The finding says what is left and what to apply, with the cluster's version known or not."""
    wanted = ManifestOptions(injected=True, kubevirt=form)
    objects = [each.object for make in (plugin_manifests, nad_manifests, vm_manifests) for each in make(wanted)]
    there = [stored(each, cluster) if each["kind"] == "Plugin" else each for each in objects]
    for status in ({}, {"observedKubeVirtVersion": f"v{cluster}.0"}):
        there[0]["status"] = status
        there[0]["spec"]["configuration"]["developerConfiguration"] = {"featureGates": ["Plugins"]}
        [only] = grave(found(*there))
        assert (only.name, only.severity, only.path) == ("plugin-pruned", "error", "spec")
        assert f"--kubevirt {cluster if status else 'VERSION'}" in only.remedy


@pytest.mark.parametrize("version", ["v1.10.0", "v1.11.3-12-gabc", None])
def test_the_newer_form_where_it_is_known(version: str | None) -> None:
    """Our manifests for 1.10 have no finding on 1.10 and newer, nor without a version."""
    wanted = ManifestOptions(injected=True, kubevirt=(1, 10))
    objects = [each.object for make in (plugin_manifests, nad_manifests, vm_manifests) for each in make(wanted)]
    if version:
        objects[0]["status"] = {"observedKubeVirtVersion": version}
        objects[0]["spec"]["configuration"]["developerConfiguration"] = {"featureGates": ["Plugins"]}
    assert found(*objects) == []


def test_plugins_of_others_without_a_hook_for_definitions() -> None:
    """A Plugin for other purposes may have only policies, node hooks or other hooks."""
    files = Files()
    files.others += [
        plugin("a") | {"spec": {"mutatingAdmissionPolicies": [{"name": "theirs"}]}},
        plugin("b") | {"spec": {"nodeHooks": [{"socket": "/s", "permittedHooks": ["PreVMStart"]}]}},
        launcher_plugin("PreBoot", "PreMigrationSource", name="c"),
    ]
    assert files.findings() == []


def test_a_claim_on_a_kubevirt_that_gives_it() -> None:
    """From 1.10 on a binding's sidecar gets the claim, so there is no finding."""
    files = Files()
    CASES["DRA on a KubeVirt that does not give the claim"][2](files)
    for version in ("v1.10.0", "v1.11.0"):
        files.kubevirt["status"]["observedKubeVirtVersion"] = version
        assert [each for each in files.findings() if each.name == "dra-not-mounted"] == []


def test_a_claim_with_which_a_vm_can_migrate() -> None:
    """A template whose parameters say that a VM uses it has no finding; what another class says is not known, nor judged."""
    good = [
        claim_template({"consumer": "kubevirt"}),
        claim_template({"Consumer": "kubevirt"}),
        claim_template({"consumer": "kubevirt"}, "r/fast", alternatives={"fast": CLASS, "theirs": "theirs.example"}),
        claim_template({"consumer": "kubevirt"}, alternatives={"fast": CLASS, "slow": CLASS}),
        claim_template(device_class="theirs.example"),
        {**claim_template(), "metadata": {"name": "t", "namespace": "elsewhere"}},
        {**claim_template(), "metadata": {"name": "another", "namespace": "nfv"}},
    ]
    for template in good:
        files = Files()
        CASES["DRA with a claim that the VM names"][2](files)
        files.template["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "t"}]
        files.others.append(template)
        assert files.findings() == []


def test_a_binding_that_is_not_registered_is_told_right() -> None:
    """The finding says that KubeVirt's admitter accepts such a VM, and that virt-controller fails to make its pod."""
    files = Files()
    for name in ("not registered", "nothing registered"):
        CASES[name][2](files)
        [only] = [each for each in files.findings() if each.name == "unknown-binding"]
        assert "KubeVirt takes the VM, and never makes its pod" in only.message


def test_a_gate_that_goes_with_plugins_alone() -> None:
    """A binding whose sidecar is injected works with gate and Plugin. A Plugin without the gate does no harm."""
    wanted = ManifestOptions(injected=True)
    objects = [each.object for make in (plugin_manifests, nad_manifests, vm_manifests) for each in make(wanted)]
    objects[0]["spec"]["configuration"]["developerConfiguration"] = {"featureGates": ["Plugins"]}
    assert found(*objects, plugin("theirs")) == []
    files = Files()
    files.others.append(plugin())
    assert files.findings() == []


def test_interfaces_that_are_up_or_down() -> None:
    """Other states of an interface than absent work with every binding. An interface of binding bridge may be absent."""
    files = Files()
    for state in ("up", "down"):
        files.nic["state"] = state
        assert files.findings() == []
    files.domain["devices"]["interfaces"].append({"name": "lan", "bridge": {}, "state": "absent"})
    files.template["spec"]["networks"].append({"name": "lan", "multus": {"networkName": "lan", "default": False}})
    assert files.findings() == []


def test_fields_without_a_known_spelling_are_left() -> None:
    """An unknown field does not count as misspelt, whatever its case is."""
    files = Files()
    files.nic["Colour"] = "red"
    files.nic["dhcpOptions"] = files.domain["memory"]["maxGuest"] = None
    files.nic.update({3: "x"})  # type: ignore[dict-item]
    assert files.findings() == []


def test_other_patches_are_no_gates() -> None:
    """Of HyperConverged's patches only those of feature gates count."""
    files = Files()
    patches = [{"op": "add", "path": "/spec/configuration/other", "value": "Plugins"}, 3]
    files.hco["metadata"]["annotations"] = {"kubevirt.kubevirt.io/jsonpatch": json.dumps(patches)}
    assert found(files.hco, files.network, files.vm) == []


def test_a_conflist_is_read() -> None:
    """The plugin is found among the plugins of a list."""
    files = Files()
    config = json.loads(files.network["spec"]["config"])
    files.network["spec"]["config"] = json.dumps({"cniVersion": "1.0.0", "name": "dpdk", "plugins": [{"type": "tuning"}, config]})
    assert files.findings() == []
    config["consumer"] = "pod"
    files.network["spec"]["config"] = json.dumps({"cniVersion": "1.0.0", "name": "dpdk", "plugins": [config]})
    assert [each.name for each in files.findings()] == ["consumer-missing"]


def test_networks_without_vms() -> None:
    """A network for pods causes a note at most. A network in server mode that no VM uses is no error."""
    files = Files()
    files.config(consumer=None, host={})
    assert [(each.name, each.severity) for each in found(files.network)] == [("consumer-missing", "note")]
    files.config(host={"vhost": {"mode": "client"}, "mac": "02:00:00:00:00:01"})
    assert [(each.name, each.severity) for each in found(files.network)] == [("consumer-missing", "note")]


def test_the_gravest_comes_first() -> None:
    """In each object errors stand before warnings, and these before notes."""
    files = Files()
    files.nic["model"] = "e1000"
    files.domain["memory"] = {"guest": "1Gi"}
    files.spec(mtu=1500)
    order = [SEVERITIES.index(each.severity) for each in files.findings()]
    assert order == sorted(order) == [0, 1, 2]


# -- all of them, and anything -----------------------------------------------------------------------------------------------

_REPORTED = re.compile(r"""["']([a-z]+(?:-[a-z]+)+|iommu|selinux|reconnect)["']""")


def test_no_name_is_dead_and_none_is_missing() -> None:
    """The code uses every name of the catalogue, and the cases above use no other."""
    rooms = (ROOT / "kubevirt", *(ROOT / "userspace_cni" / room for room in ("consumers/kubevirt", "cli/kubevirt", "diagnosis")))
    sources = [path for room in rooms for path in room.rglob("*.py")]
    used = {name for path in sources if path.name != "findings.py" for name in _REPORTED.findall(path.read_text())}
    assert set(TRAPS) - used == set()
    assert {name for name, _, _ in CASES.values()} <= set(TRAPS)
    assert list(TRAPS) == sorted(TRAPS)
    assert all(text and text == text.strip(".") for text in TRAPS.values())


def test_every_trap_is_in_the_documentation() -> None:
    """docs/kubevirt.md has the whole catalogue."""
    rows = [f"| `{name}` | {text} |" for name, text in TRAPS.items()]
    written = [line for line in (ROOT / "docs" / "kubevirt.md").read_text().splitlines() if line.startswith("| `")]
    assert [line for line in written if line.split("`")[1] in TRAPS] == rows


KEYS = [
    "kind", "metadata", "name", "namespace", "annotations", "labels", "spec", "template", "domain", "devices", "interfaces",
    "networks", "multus", "networkName", "binding", "memory", "hugepages", "pageSize", "cpu", "cores", "configuration",
    "network", "config", "vhostuser", "sidecarImage", "migration", "items", "containers", "volumes", "resources", "limits",
    "macAddress", "domainHooks", "launcherHooks", "permittedHooks", "sidecar",
    "socketPath", "resourceClaims", "networkBinding", "userspace/vhostuser", "image", "model",
]  # fmt: skip
TEXTS = [
    "",
    "dpdk",
    "vhostuser",
    "02:00:00:00:00:01",
    "1Gi",
    "a/b",
    '{"type": "userspace"}',
    '{"dpdk": {}}',
    "[]",
    "{",
    "\ud800",
    "1e400",
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS) | st.text(max_size=8) | st.dates()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | scalars, inner, max_size=5),
    max_leaves=30,
)
kinds = st.sampled_from(["VirtualMachine", "VirtualMachineInstance", "KubeVirt", "HyperConverged", "NetworkAttachmentDefinition",
                         "MigrationPolicy", "Plugin", "Pod", "List"])  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(anything | st.builds(lambda kind, rest: {"kind": kind, "spec": rest, "metadata": rest}, kinds, anything), max_size=3)
)
def test_anything_can_be_judged(contents: list[Any]) -> None:
    """Everything that a YAML file can hold gives findings or none. Each finding is complete."""
    for each in found(*contents):
        assert each.name in TRAPS
        assert each.remedy


@settings(max_examples=100)
@given(st.data())
def test_anything_in_the_place_of_something_can_be_judged(data: st.DataObject) -> None:
    """Any value may stand in place of another, at any depth of objects that are otherwise right."""
    files = Files()
    objects = {
        "kubevirt": files.kubevirt,
        "hco": files.hco,
        "network": files.network,
        "vm": files.vm,
        "pod": told_pod(),
        "plugin": plugin(),
    }
    node: Any = objects[data.draw(st.sampled_from(sorted(objects)))]
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(anything)
    for each in found(*objects.values()):
        assert each.name in TRAPS
