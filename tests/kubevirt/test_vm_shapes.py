"""Whatever memory KubeVirt gives a VM and whatever other sidecars did to it, libvirt starts the definition of our sidecar."""

from __future__ import annotations

import pytest

from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.libvirt_domain import SHAPES, Memory, Vm
from tests.lab.guests.libvirt_vm import Launched
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.launcher import QEMU_ID

pytestmark = pytest.mark.timeout(600)  # the first one may have to make libvirt's tree and the guest

COMMENT = "<!-- smbios and slirp were here: 1 < 2 & 'so on' -->"
OTHER_NIC = """<interface type="user">
      <mac address="02:00:00:00:00:99"></mac><model type="virtio-non-transitional"></model><alias name="ua-default"></alias>
    </interface>"""
OTHER_END = """<qemu:commandline>
    <qemu:arg value="-fw_cfg"></qemu:arg><qemu:arg value="name=opt/org.example/hook,string=was-here"></qemu:arg>
  </qemu:commandline>
  <qemu:override>
    <qemu:device alias="ua-default"><qemu:frontend>
      <qemu:property name="host_mtu" type="unsigned" value="1400"></qemu:property>
    </qemu:frontend></qemu:device>
  </qemu:override>"""


@pytest.mark.parametrize("memory", SHAPES.values(), ids=SHAPES)
def test_libvirt_starts_a_vm_with_each_kind_of_memory(launched: Launched, memory: Memory) -> None:
    """The definition is valid, QEMU runs as KubeVirt's user on shared memory, and the CNI's port has the booted guest's rings."""
    vm = Vm(memory=memory, boot=command_line(Nic(launched.mac(), "10.9.0.2/24")))
    compute = launched.compute
    assert compute.validate(launched.define(vm)) == ""
    seen = launched.boot(vm)
    assert f"GUEST up mac={launched.mac()} name=eth0 address=10.9.0.2/24 mtu=1500 queues=1 carrier=1" in seen
    assert compute.qemu_ids(vm.domain) == (QEMU_ID, QEMU_ID)
    backends = [line for line in compute.qemu_log(vm.domain).splitlines() if '"qom-type":"memory-backend-' in line]
    assert backends
    assert all('"share":true' in backend for backend in backends)
    wait_until(launched.connected, what="the port to be connected")


def test_what_libvirt_made_of_it_is_not_changed_again(launched: Launched) -> None:
    """The sidecar gives back the running domain's own XML, with what libvirt dropped and added, byte by byte."""
    vm = Vm(memory=SHAPES["cells"])
    launched.define(vm)
    launched.compute.start(vm.domain, paused=True)
    live = launched.compute.dumpxml(vm.domain)
    assert launched.manager.on_define_domain(live, vm.vmi()) == live


def test_what_other_sidecars_did_stays_and_starts(launched: Launched) -> None:
    """Comments, another NIC, QEMU arguments and overrides by others stay word for word, and QEMU runs with all of them."""
    vm = Vm(before=COMMENT, devices=OTHER_NIC, after=OTHER_END)
    xml = launched.define(vm)
    assert all(text in xml for text in (COMMENT, OTHER_NIC, OTHER_END))
    launched.compute.start(vm.domain, paused=True)
    command = launched.compute.qemu_log(vm.domain)
    assert "opt/org.example/hook" in command
    assert '"host_mtu":1400' in command
    nics = [line for line in command.splitlines() if '"driver":"virtio-net-pci-non-transitional"' in line]
    assert [launched.mac() in nic for nic in nics].count(True) == 1
    assert len(nics) == 2
