"""What devices of claims are called in containers: directories, variables, and what a VM's MAC follows from."""

from __future__ import annotations

from dataclasses import replace

from userspace_cni.attachment.claim_plan import ClaimRequest
from userspace_cni.attachment.facts import Pod
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.consumers.kubevirt.kubevirt_consumer import KubevirtConsumer

OF_VM = ClaimRequest("default", "vm1-dpdk-x1", "u1", "dpdk", "port", (0, 1), of_vm=True)


def mac(request: ClaimRequest, number: int = 0, pod: str = "virt-launcher-vm1-aaaaa", namespace: str = "default") -> str:
    """The MAC of a VM's device for which none is asked."""
    environment = Environment("ADD", "_u1", "", f"net{number}", {}, (), netns_override=False, variables={})
    text = b'{"cniVersion": "1.0.0", "name": "claim", "type": "userspace"}'
    consumer = KubevirtConsumer(request.name_in_pod(number))
    return consumer.derive_mac(Request(environment, read_network(text, "ADD"), text), Pod(namespace, pod))


def test_what_both_pods_of_a_vm_have() -> None:
    """Another claim of the same template, whose devices may have other numbers and be of another alternative, has the same names
    and MACs."""
    other = replace(OF_VM, claim="vm1-dpdk-x2", uid="u2", name="port/small", numbers=(3, 5))
    for here, there in zip(OF_VM.numbers, other.numbers, strict=True):
        assert OF_VM.mapped_directory(here) == other.mapped_directory(there)
        assert mac(OF_VM, here) == mac(other, there, "virt-launcher-vm1-bbbbb")
    assert OF_VM.variable == other.variable == "USERSPACE_CNI_DIRS_DPDK_PORT"


def test_what_keeps_interfaces_apart() -> None:
    """Devices, requests and claims of one VM have MACs and directories of their own, also a claim that the pod names itself by
    the same name; other VMs, and those of other namespaces, have other MACs."""
    others = [replace(OF_VM, pod_claim="more"), replace(OF_VM, name="other"), replace(OF_VM, claim="dpdk", pod_claim="")]
    requests = [(each, number) for each in (OF_VM, *others) for number in each.numbers]
    assert len({each.mapped_directory(number) for each, number in requests}) == len(requests)
    macs = {mac(each, number) for each, number in requests}
    assert len(macs | {mac(OF_VM, pod="virt-launcher-vm2-aaaaa"), mac(OF_VM, namespace="tenant")}) == len(requests) + 2


def test_the_path_of_a_vms_socket() -> None:
    """It never changes: a VM that migrates takes it to nodes of other versions."""
    assert OF_VM.mapped_directory(0) == "/var/lib/cni/usrspcni/vm-949fa64459a22d26"
    assert mac(OF_VM) == "76:fd:be:f0:49:0d"
    assert replace(OF_VM, of_vm=False).mapped_directory(1) == "/var/lib/cni/usrspcni/u1-1"
