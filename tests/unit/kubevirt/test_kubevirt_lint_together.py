"""Objects that are judged together: how one changes what is found of another, and what only looks like a mistake."""

from __future__ import annotations

import copy
from typing import Any

from kubevirt.lint.linted_documents import ManifestDocument, judge
from tests.unit.kubevirt.lint_files import Files, found, grave, policy

MAC = "02:00:00:00:00:07"


def renamed(vm: dict[str, Any], name: str, **metadata: Any) -> dict[str, Any]:
    """A copy of the VM under another name."""
    other = copy.deepcopy(vm)
    other["metadata"].update(name=name, **metadata)
    return other


def test_a_list_of_objects_is_what_is_in_it() -> None:
    """The items of a JSON list, as `kubevirt manifests --json` prints one, are judged. Endless nesting is ignored."""
    files = Files()
    files.nic["model"] = "e1000"
    assert [each.name for each in grave(found([files.kubevirt, [files.network], files.vm]))] == ["wrong-model"]
    deep: Any = files.vm
    for _ in range(50):
        deep = [deep]
    assert found(deep) == []


def test_kinds_of_the_groups_that_are_of_no_concern() -> None:
    """Other kinds of KubeVirt and Multus, lists, and kinds of other groups do not count as misspelt."""
    kinds = [
        ("kubevirt.io/v1", "VirtualMachineInstanceMigration"),
        ("k8s.cni.cncf.io/v1beta1", "MultiNetworkPolicy"),
        ("kubevirt.io/v1", "VirtualMachineList"),
        ("vmoperator.example.com/v1", "VirtualMachine"),
        ("v1", "Service"),
        ("other.io/v1", "Plugin"),
    ]
    assert found(*({"apiVersion": version, "kind": kind} for version, kind in kinds)) == []


def test_a_misspelt_kind_is_reported_with_the_likely_one() -> None:
    """The remedy names the kind that is nearest, and the object counts as not looked at."""
    judged = judge([ManifestDocument("f", {"apiVersion": "kubevirt.io/v1", "kind": "virtualmachine"})])
    [only] = judged.findings
    assert (only.name, only.path, only.remedy) == ("unknown-kind", "kind", "write VirtualMachine, if that is meant")
    assert (judged.checked, len(judged.ignored)) == ({}, 1)


def test_one_vm_given_twice_is_in_no_conflict_with_itself() -> None:
    """The same object twice is one warning, with equal content or not; a VM and its instance are one machine."""
    files = Files()
    files.nic["macAddress"] = MAC
    assert [each.name for each in found(files.kubevirt, files.network, files.vm, copy.deepcopy(files.vm))] == ["given-twice"]
    changed = copy.deepcopy(files.vm)
    changed["spec"]["runStrategy"] = "Halted"
    [only] = found(files.kubevirt, files.network, files.vm, changed)
    assert only.name == "given-twice"
    assert "nfv/dpdk-vm" in only.message
    assert "another content" in only.message
    instance = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {**files.vm["metadata"], **files.template["metadata"]},
        "spec": files.template["spec"],
    }
    assert found(files.kubevirt, files.network, files.vm, instance) == []


def test_a_patch_and_its_object_are_no_two() -> None:
    """A registration to be merged into the KubeVirt object may stand beside that object as it is."""
    files = Files()
    patch = {"kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": files.kubevirt["spec"]}
    whole = {"kind": "KubeVirt", "metadata": {"name": "kubevirt", "uid": "1"}, "spec": {"configuration": {}}}
    assert found(patch, whole, files.network, files.vm) == []


def test_one_binding_registered_twice_is_in_no_conflict_with_itself() -> None:
    """Of two versions of the KubeVirt object, the binding's sidecar does not collide with itself."""
    files = Files()
    files.kubevirt.update(kind="KubeVirt", metadata={"name": "kubevirt"})
    files.binding["sidecarImage"] = "quay.io/x/network-vhostuser-binding:1"
    other = copy.deepcopy(files.kubevirt)
    other["spec"]["configuration"]["network"]["binding"]["vhostuser"]["computeResourceOverhead"] = {}
    assert [each.name for each in grave(found(files.kubevirt, other, files.network, files.vm))] == ["given-twice"]


def test_each_vm_has_the_network_of_its_own_file() -> None:
    """Of two definitions with one name, a VM is judged with the one beside it."""
    files, other = Files(), Files()
    for each, name in ((files, "a"), (other, "b")):
        each.spec(mtu=9000)
        each.vm["metadata"]["name"] = name
    other.config(host={"mtu": 1500})
    documents = [ManifestDocument("a.yaml", each) for each in (files.kubevirt, files.network, files.vm)]
    documents += [ManifestDocument("b.yaml", each) for each in (other.network, other.vm)]
    told = [(each.name, each.subject) for each in judge(documents).findings]
    assert told == [
        ("given-twice", "b.yaml: NetworkAttachmentDefinition nfv/dpdk"),
        ("mtu-mismatch", "b.yaml: VirtualMachine nfv/b"),
    ]


def test_a_copy_of_a_vm_in_another_file_is_judged_there() -> None:
    """The same VM in two files, as of two stages of a rollout, is judged with each file's network."""
    files, other = Files(), Files()
    files.spec(mtu=9000)
    other.config(host={"mtu": 1500})
    documents = [ManifestDocument("a.yaml", each) for each in (files.kubevirt, files.network, files.vm)]
    documents += [ManifestDocument("b.yaml", each) for each in (other.network, copy.deepcopy(files.vm))]
    told = {(each.name, each.subject.partition(":")[0]) for each in judge(documents).findings}
    assert told == {("given-twice", "b.yaml"), ("mtu-mismatch", "b.yaml")}


def test_messages_about_two_vms_name_the_namespace() -> None:
    """The messages distinguish two VMs of one name in two namespaces."""
    files = Files()
    files.nic["macAddress"] = MAC
    files.template["spec"]["networks"][1]["multus"]["networkName"] = "nfv/dpdk"
    other = renamed(files.vm, "dpdk-vm", namespace="lab")
    [conflict] = grave(found(files.kubevirt, files.network, files.vm, other))
    assert conflict.subject == "f.yaml: VirtualMachine lab/dpdk-vm"
    assert conflict.message.startswith("VM nfv/dpdk-vm has the MAC")


def test_the_worst_of_several_conflicts_is_reported() -> None:
    """A VM whose MAC is another's on a network apart and on its own has one finding, the error."""
    files, apart = Files(), Files()
    files.nic["macAddress"] = apart.nic["macAddress"] = MAC
    apart.network["metadata"]["name"] = apart.template["spec"]["networks"][1]["multus"]["networkName"] = "apart"
    apart.config(host={"bridge": {"bridgeName": "br9"}, "mtu": 9000})
    first, second = renamed(apart.vm, "first"), renamed(files.vm, "second")
    traps = found(files.kubevirt, files.network, apart.network, first, second, files.vm)
    told = [(each.severity, each.subject) for each in traps]
    assert told == [("note", "f.yaml: VirtualMachine nfv/second"), ("error", "f.yaml: VirtualMachine nfv/dpdk-vm")]


def severities(files: Files, *others: Any) -> list[str]:
    """The severities of post-copy, with these objects beside the files."""
    told = found(files.kubevirt, files.network, files.vm, *others)
    assert {each.name for each in told} <= {"post-copy"}
    return [each.severity for each in told]


def test_policies_are_for_the_vms_that_they_select() -> None:
    """A policy selects by labels of the instance and of its namespace. Labels that are not in the files may exist."""
    files = Files()
    files.template["metadata"]["labels"] = {"app": "router"}
    name = "kubernetes.io/metadata.name"
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "warning"),
        ({"virtualMachineInstanceSelector": {"app": "router"}}, "warning"),
        ({"virtualMachineInstanceSelector": {"app": "router", "tier": "x"}}, "note"),
        ({"virtualMachineInstanceSelector": {"vm.kubevirt.io/name": "x"}}, "warning"),
        ({"namespaceSelector": {"team": "x"}}, "warning"),
        ({"namespaceSelector": {name: "nfv"}}, "warning"),
        ({"namespaceSelector": {name: "other"}}, "note"),
        ({"namespaceSelector": {name: "nfv"}, "virtualMachineInstanceSelector": {"app": "db"}}, "note"),
    ]
    assert [severities(files, policy(True, **selectors)) for selectors, _ in cases] == [[severity] for _, severity in cases]
    unselective = policy(allow=True)
    del unselective["spec"]["selectors"]
    assert severities(files, unselective) == ["note"]


def test_a_policy_without_vms_may_be_for_any() -> None:
    """Where no VM with a vhost-user interface is given, a policy with selectors is a warning."""
    [only] = found(policy(True, virtualMachineInstanceSelector={"app": "db"}))
    assert (only.name, only.severity) == ("post-copy", "warning")


def test_a_policy_can_keep_vms_from_post_copy() -> None:
    """The remedy that the finding about post-copy names helps: with it only a note is left."""
    files = Files()
    files.template["metadata"]["labels"] = {"app": "router"}
    files.configuration["migrations"] = {"allowPostCopy": True}
    assert severities(files) == ["warning"]
    assert severities(files, policy(False, virtualMachineInstanceSelector={"app": "router"})) == ["note"]
    assert severities(files, policy(False, virtualMachineInstanceSelector={"app": "db"})) == ["warning"]
    assert severities(files, policy(None, virtualMachineInstanceSelector={"app": "router"})) == ["warning"]


def test_one_mistake_has_one_finding() -> None:
    """A binding by name alone, an MTU in quotes and pages of "2M" cause at most one finding each, about the mistake itself."""
    files = Files()
    files.nic["binding"] = "vhostuser"
    assert [each.name for each in files.findings()] == ["bad-input"]
    files = Files()
    files.spec(mtu=9000)
    files.config(host={"mtu": "9000"})
    assert files.findings() == []
    files = Files()
    files.domain["memory"]["hugepages"] = {"pageSize": "2M"}
    assert [each.remedy for each in files.findings()] == ["write pageSize 2Mi"]


def test_the_path_that_is_derived_may_be_written() -> None:
    """An annotation with the path that both sides derive is like none."""
    files = Files()
    files.spec(mtu=9000, path="/run/kubevirt/vhostuser/pod5010c6ff3d0.sock")
    assert files.findings() == []


def test_what_the_sidecar_refuses_is_found_part_by_part() -> None:
    """All parts of an interface that the sidecar would refuse one by one are reported at once."""
    files = Files()
    files.nic.update(pciAddress="0a:00.0", bootOrder=0, acpiIndex=-1, state="on")
    messages = [each.message for each in files.findings()]
    assert len(messages) == 4
    for word in ("pciAddress", "bootOrder", "acpiIndex", "state"):
        assert any(word in message for message in messages), word


def test_a_name_that_is_no_text() -> None:
    """Half of a surrogate pair, which JSON can have, is reported and crashes nothing."""
    files = Files()
    files.nic["name"] = files.template["spec"]["networks"][1]["name"] = "\ud800"
    files.template["metadata"].pop("annotations", None)
    assert "bad-input" in {each.name for each in files.findings()}
