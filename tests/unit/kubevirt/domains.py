"""Definitions and VMs for the tests of the mutator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kubevirt.domain import Policy, mutate
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import VirtualMachine, VmInterface

DATA = Path(__file__).parent / "data"
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
NETWORKS = ("net1", "net2")

PLAIN = """\
<domain type="kvm">
  <name>ns_vm</name>
  <memory unit="b">8388608</memory>
  <vcpu placement="static">4</vcpu>
  <devices>
    <emulator>/usr/bin/qemu</emulator>
    <controller type="usb" index="0" model="none"></controller>
  </devices>
</domain>
"""


def vm(*interfaces: VmInterface, **more: Any) -> VirtualMachine:
    """A VM, with one interface on `net1` unless told otherwise."""
    return VirtualMachine("ns", "vm", interfaces=interfaces or (VmInterface("net1", "vhostuser"),), **more)


def source(network: str = "net1", **more: Any) -> VmSocketSource:
    return replace(VmSocketSource(f"/var/run/kubevirt/vhostuser/{network}.sock", f"02:00:00:00:00:0{network[-1]}"), **more)


def sources(machine: VirtualMachine, **more: Any) -> dict[str, VmSocketSource]:
    return {each.network: source(each.network, **more) for each in machine.interfaces}


def mutated(
    domain: str,
    machine: VirtualMachine | None = None,
    found: Mapping[str, VmSocketSource] | None = None,
    policy: Policy | None = None,
) -> str:
    """The mutator's output, which a second run must not change."""
    machine = machine or vm()
    found = sources(machine) if found is None else found
    policy = policy or Policy()
    once = mutate(domain, machine, found, policy)
    assert mutate(once, machine, found, policy) == once
    return once


def interfaces(domain: str) -> list[ET.Element]:
    return ET.fromstring(domain).findall("./devices/interface")


def ours(domain: str, network: str = "net1") -> dict[str, dict[str, str]]:
    """The interface on the network: the attributes of each child."""
    (found,) = [each for each in interfaces(domain) if any(a.get("name") == f"ua-{network}" for a in each.findall("alias"))]
    assert found.get("type") == "vhostuser"
    return {child.tag: dict(child.attrib) for child in found}


def backing(domain: str) -> dict[str, dict[str, str]]:
    """memoryBacking: the attributes of each child."""
    (found,) = ET.fromstring(domain).findall("memoryBacking")
    return {child.tag: dict(child.attrib) for child in found}


def with_memory(inner: str) -> str:
    """PLAIN with this text behind its `<memory>`."""
    return PLAIN.replace("</memory>\n", f"</memory>\n  {inner}\n")


def with_device(inner: str) -> str:
    """PLAIN with one more device behind its controller."""
    return PLAIN.replace("</controller>\n", f"</controller>\n    {inner}\n")


def complete(name: str) -> str:
    """A file of `data`. A part of a definition gets what the mutator needs; the template gets an interface that is not ours."""
    text = (DATA / name).read_text()
    text = text.replace("{{ . }}", '<interface type="ethernet"><alias name="ua-default"/></interface>')
    return text if "<devices>" in text else text.replace("</domain>", "  <devices/>\n</domain>")
