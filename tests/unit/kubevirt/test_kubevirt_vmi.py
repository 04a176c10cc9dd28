"""VMIs as KubeVirt sends them are read, or refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt.sidecar_errors import BadInput
from kubevirt.vmi import NetworkClaim, VirtualMachine, VmInterface, VmNetwork, find_bound_interfaces, read_vmi
from tests.unit.kubevirt.domains import DATA

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FULL = json.loads((DATA / "vmi-binding-hugepages.json").read_text())
USED = (
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
    ("metadata", "annotations"),
    ("spec",),
    ("spec", "networks"),
    ("spec", "domain"),
    ("spec", "domain", "cpu"),
    ("spec", "domain", "cpu", "cores"),
    ("spec", "domain", "memory"),
    ("spec", "domain", "memory", "hugepages"),
    ("spec", "domain", "memory", "hugepages", "pageSize"),
    ("spec", "domain", "devices"),
    ("spec", "domain", "devices", "interfaces"),
    ("spec", "domain", "devices", "networkInterfaceMultiqueue"),
    ("spec", "domain", "devices", "useVirtioTransitional"),
)


VALUES = (3.5, "text", 7, True, [1], {"a": "b"})


def value_at(path: tuple[str, ...]) -> Any:
    node = FULL
    for name in path:
        node = node[name]
    return node


def vmi(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec}


def with_interface(**fields: Any) -> dict[str, Any]:
    return vmi(domain={"devices": {"interfaces": [{"name": "net1", **fields}]}})


def replaced(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The full VMI with another value at a path."""
    root: dict[str, Any] = json.loads(json.dumps(FULL))
    node = root
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return root


def test_every_field_of_kubevirts_own_sample_is_found() -> None:
    """KubeVirt's sample of its API has every field. Everything that is used is found in it under its name."""
    machine = read_vmi((DATA / "vmi-binding-hugepages.json").read_bytes())
    assert (machine.namespace, machine.name, machine.uid) == ("namespaceValue", "nameValue", "uidValue")
    assert machine.interfaces == (
        VmInterface(
            network="nameValue",
            binding="nameValue",
            mac="macAddressValue",
            model="modelValue",
            pci_address="pciAddressValue",
            acpi_index=-9,
            boot_order=18446744073709551607,
            state="stateValue",
        ),
    )
    assert machine.networks == {
        "nameValue": VmNetwork("nameValue", "networkNameValue", NetworkClaim("claimNameValue", "requestNameValue"), pod=True)
    }
    assert machine.annotations == {"annotationsKey": "annotationsValue"}
    assert machine.vcpus == 4294967291 * 4294967289 * 4294967289
    assert (machine.multiqueue, machine.transitional, machine.hugepages) == (True, True, "pageSizeValue")


@pytest.mark.parametrize(
    "nothing", [{}, {"domain": None, "networks": None}, {"domain": {"devices": {"interfaces": None}, "cpu": None}}]
)
def test_what_is_absent_or_null_is_not_there(nothing: dict[str, Any]) -> None:
    """A missing value and null mean the same."""
    assert read_vmi(vmi(**nothing)) == VirtualMachine("ns", "vm")


def test_nulls_in_an_interface_are_absent_fields() -> None:
    """Each field of an interface may be null."""
    fields = ("binding", "macAddress", "model", "pciAddress", "acpiIndex", "bootOrder", "state")
    assert read_vmi(with_interface(**dict.fromkeys(fields))).interfaces == (VmInterface("net1"),)


def test_text_bytes_and_objects_are_read_alike() -> None:
    """A VMI may be bytes, as for the sidecar, or an object, as for the lint."""
    decoded = with_interface(binding={"name": "vhostuser"}, macAddress="02:00:00:00:00:01")
    text = json.dumps(decoded)
    assert read_vmi(decoded) == read_vmi(text) == read_vmi(text.encode())


@pytest.mark.parametrize(
    ("cpu", "vcpus"),
    [({"cores": 2}, 2), ({"sockets": 2, "cores": 3, "threads": 2}, 12), ({"sockets": 0, "cores": 2}, 2), ({"model": "x"}, None)],
)
def test_vcpus_are_counted_as_kubevirt_does(cpu: dict[str, Any], vcpus: int | None) -> None:
    """A missing factor or 0 counts as one. Without any factor the number is unknown."""
    assert read_vmi(vmi(domain={"cpu": cpu})).vcpus == vcpus


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path in USED for value in VALUES if type(value) is not type(value_at(path))]
)
def test_a_value_of_another_type_is_named_by_its_path(path: tuple[str, ...], value: Any) -> None:
    """A value of another type is refused with its path."""
    with pytest.raises(BadInput) as refused:
        read_vmi(replaced(path, value))
    assert refused.value.message.startswith(f"{'.'.join(path)} of the VMI")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"binding": "vhostuser"}, "interfaces[0].binding"),
        ({"binding": {"name": 1}}, "interfaces[0].binding.name"),
        ({"acpiIndex": True}, "interfaces[0].acpiIndex"),
        ({"bootOrder": "1"}, "interfaces[0].bootOrder"),
        ({"bootOrder": 1.0}, "interfaces[0].bootOrder"),
        ({"macAddress": "02:00\n"}, "interfaces[0].macAddress"),
        ({"model": "\ud800"}, "interfaces[0].model"),
        ({"name": ""}, "interfaces[0].name"),
        ({"name": None}, "interfaces[0].name"),
    ],
)
def test_a_field_of_an_interface_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    """The message has the index of the interface and the field."""
    with pytest.raises(BadInput) as refused:
        read_vmi(with_interface(**fields))
    assert path in refused.value.message


def test_two_interfaces_of_one_name_are_refused() -> None:
    """A name stands for one interface and one network, so two interfaces of one name are refused."""
    twice = [{"name": "net1"}, {"name": "net1"}]
    with pytest.raises(BadInput, match=r"interfaces\[1\]"):
        read_vmi(vmi(domain={"devices": {"interfaces": twice}}))
    with pytest.raises(BadInput, match=r"networks\[1\]"):
        read_vmi(vmi(networks=twice))


@pytest.mark.parametrize("name", ["name", "namespace"])
def test_a_vm_without_a_name_is_refused(name: str) -> None:
    """Sockets and MACs are derived from name and namespace: without them they would silently be wrong."""
    with pytest.raises(BadInput, match=f"metadata.{name}"):
        read_vmi({"metadata": {"name": "vm", "namespace": "ns", name: ""}, "spec": {}})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff{}",
        '{"metadata": {}}'.encode("utf-16"),
        b"[" * 100_000,
        b"{}" + b"\0",
        b"1" * 5000,
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    """Anything but one JSON object in UTF-8 is bad input, and raises nothing else."""
    with pytest.raises(BadInput):
        read_vmi(raw)


def test_a_message_never_repeats_a_vm() -> None:
    """Cloud-init data has passwords: an error about a VM quotes nothing of it."""
    with pytest.raises(BadInput) as refused:
        read_vmi('{"spec": "secret' + "x" * 1000)
    assert "secret" not in str(refused.value)


@given(st.sampled_from(USED), JSON)
def test_any_value_anywhere_is_read_or_refused(path: tuple[str, ...], value: Any) -> None:
    """Any value in any place that is read gives a VM, or bad input."""
    with suppress(BadInput):
        assert isinstance(read_vmi(replaced(path, value)), VirtualMachine)


def test_bound_interfaces_are_those_of_the_binding_that_are_there() -> None:
    """Interfaces of other bindings, and absent ones, are left out."""
    machine = VirtualMachine(
        "ns",
        "vm",
        interfaces=(
            VmInterface("pod", ""),
            VmInterface("b", "vhostuser", state="up"),
            VmInterface("a", "vhostuser"),
            VmInterface("gone", "vhostuser", state="absent"),
            VmInterface("other", "passt"),
        ),
    )
    assert [each.network for each in find_bound_interfaces(machine, "vhostuser")] == ["b", "a"]
    assert find_bound_interfaces(machine, "none") == ()


@pytest.mark.parametrize("default", [True, False])
def test_a_network_of_multus_in_the_pods_place_is_the_pods(default: bool) -> None:
    """The pod's interface for it is eth0, as for the pod's own network."""
    machine = read_vmi(vmi(networks=[{"name": "a", "multus": {"networkName": "b", "default": default}}]))
    assert machine.networks["a"] == VmNetwork("a", "b", pod=default)
