"""Domains and VMs as KubeVirt hands them to its sidecars, small enough to boot here: one guest of the lab, without KVM.

The XML has the elements and the order of KubeVirt's converter (virtwrap/converter); what needs a disk image, KVM or a tap is left
out, as are the empty <bios>, <baseBoard> and <chassis> that libvirt's schema does not allow; the serial line is a file. What a
binding sidecar has to add is never in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.lab.guests import guest
from tests.lab.guests.libvirt_compute import INITRAMFS, KERNEL, console

BINDING = "vhostuser"
UID = "f4686d2c-6e8d-4335-b8fd-81bee22f4814"

_BYTES = guest.MEMORY_MIB << 20


@dataclass(frozen=True)
class Memory:
    """How KubeVirt renders a VM's memory. `hugepages`: what the VMI asks for; `vcpus`: as many as the cells have."""

    backing: str = ""
    cells: str = ""
    tune: str = ""
    hugepages: str = ""
    vcpus: int = 1


def _cell(number: int, cpus: str, size: int) -> str:
    return f'<cell id="{number}" cpus="{cpus}" memory="{size}" unit="b"></cell>'


SHAPES = {
    "hugepages": Memory(
        '<hugepages></hugepages><source type="memfd"></source>', _cell(0, "0", _BYTES), hugepages="2Mi"
    ),  # with memfd, and one cell that stands for the whole machine
    "hugepages-without-memfd": Memory("<hugepages></hugepages>", _cell(0, "0", _BYTES), hugepages="2Mi"),
    "hugepages-of-nodes": Memory(
        '<hugepages><page size="2097152" unit="b" nodeset="0"></page></hugepages><allocation mode="immediate"></allocation>',
        _cell(0, "0", _BYTES),
        '<numatune><memory mode="strict" nodeset="0"></memory>'
        '<memnode cellid="0" mode="strict" nodeset="0"></memnode></numatune>',
        hugepages="2Mi",
    ),
    "cells": Memory("", _cell(0, "0", _BYTES // 2) + _cell(1, "1", _BYTES // 2), vcpus=2),
    "memfd": Memory('<source type="memfd"></source>'),
    "plain": Memory(),
}
"""What virt-launcher makes of: hugepages; hugepages with annotation kubevirt.io/memfd "false"; guest NUMA passthrough; ..."""


@dataclass(frozen=True)
class Vm:
    """A VM in namespace `default` with secondary networks of our binding. `boot`: the kernel's command line.

    `devices`, `before`, `after`: XML that another sidecar has put into `devices`, before and after everything else.
    """

    name: str = "vm"
    networks: tuple[str, ...] = ("blue",)
    memory: Memory = SHAPES["plain"]
    boot: str = ""
    devices: str = ""
    before: str = ""
    after: str = ""
    interface: tuple[tuple[str, Any], ...] = ()
    """More fields of the first interface in the VMI."""
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def domain(self) -> str:
        return f"default_{self.name}"

    def vmi(self) -> dict[str, Any]:
        interfaces: list[dict[str, Any]] = [{"name": name, "binding": {"name": BINDING}} for name in self.networks]
        interfaces[0] |= dict(self.interface)
        memory = {"hugepages": {"pageSize": self.memory.hugepages}} if self.memory.hugepages else {}
        return {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"namespace": "default", "name": self.name, "uid": UID, "annotations": dict(self.annotations)},
            "spec": {
                "domain": {
                    "cpu": {"cores": 1, "sockets": self.memory.vcpus, "threads": 1},
                    "devices": {"interfaces": interfaces},
                    "memory": {"guest": f"{guest.MEMORY_MIB}Mi", **memory},
                },
                "networks": [{"name": name, "multus": {"networkName": name}} for name in self.networks],
            },
        }

    def xml(self) -> str:
        backing = f"<memoryBacking>{self.memory.backing}</memoryBacking>" if self.memory.backing else ""
        cells = f"<numa>{self.memory.cells}</numa>" if self.memory.cells else ""
        places = {"kernel": KERNEL, "initramfs": INITRAMFS, "console": console(self.domain)}
        return _DOMAIN.format(vm=self, backing=backing, cells=cells, uid=UID, bytes=_BYTES, **places)


def unshared(xml: str) -> str:
    """The definition without the access mode that makes its memory shared."""
    private, found = re.subn(r"<access mode=[\"']shared[\"']\s*/>", "", xml)
    assert found == 1, xml
    return private


_DOMAIN = """\
<domain type="qemu" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  {vm.before}
  <name>{vm.domain}</name>
  <memory unit="b">{bytes}</memory>
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
    <smbios mode="sysinfo"></smbios>
    <kernel>{kernel}</kernel>
    <initrd>{initramfs}</initrd>
    <cmdline>{vm.boot}</cmdline>
  </os>
  <sysinfo type="smbios">
    <system>
      <entry name="uuid">{uid}</entry>
      <entry name="manufacturer">KubeVirt</entry>
    </system>
  </sysinfo>
  <devices>
    <channel type="unix">
      <target name="org.qemu.guest_agent.0" type="virtio"></target>
    </channel>
    <controller type="usb" index="0" model="none"></controller>
    <controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
    <video>
      <model type="vga" heads="1" vram="16384"></model>
    </video>
    <memballoon model="virtio-non-transitional" freePageReporting="on">
      <stats period="10"></stats>
    </memballoon>
    <serial type="file">
      <source path="{console}"></source>
      <target port="0"></target>
    </serial>
    <rng model="virtio-non-transitional">
      <backend model="random">/dev/urandom</backend>
    </rng>
    {vm.devices}
  </devices>
  <clock offset="utc" adjustment="reset">
    <timer name="rtc" tickpolicy="catchup" present="yes" track="guest"></timer>
    <timer name="pit" tickpolicy="discard"></timer>
    <timer name="hpet" tickpolicy="delay" present="no"></timer>
  </clock>
  <metadata>
    <kubevirt xmlns="http://kubevirt.io">
      <uid>{uid}</uid>
      <graceperiod>
        <deletionGracePeriodSeconds>5</deletionGracePeriodSeconds>
      </graceperiod>
    </kubevirt>
  </metadata>
  <features>
    <acpi></acpi>
    <apic></apic>
    <vmport state="off"></vmport>
  </features>
  <cpu mode="maximum">
    <topology sockets="{vm.memory.vcpus}" cores="1" threads="1"></topology>
    {cells}
  </cpu>
  <vcpu placement="static">{vm.memory.vcpus}</vcpu>
  <iothreads>1</iothreads>
  {backing}
  {vm.memory.tune}
  {vm.after}
</domain>
"""
