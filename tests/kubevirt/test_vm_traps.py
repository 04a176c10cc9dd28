"""VMs that would not work: the sidecar refuses them by name before there is a VM; and what libvirt and QEMU would do instead."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.guests.hooks import HookError
from tests.lab.guests.libvirt_compute import VirshFailed
from tests.lab.guests.libvirt_domain import SHAPES, Memory, Vm, unshared
from tests.lab.guests.libvirt_vm import Launched
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.pod.launcher import MOUNT

pytestmark = pytest.mark.timeout(600)  # the first one may have to make libvirt's tree and the guest


def asking(**specs: object) -> tuple[tuple[str, str], ...]:
    """The VM's annotation with specs for its network."""
    return (("userspace/vhostuser", json.dumps({"blue": specs})),)


PRIVATE_CELL = Memory("", '<cell id="0" cpus="0" memory="134217728" unit="b" memAccess="private"></cell>')
TRAPS = {
    "private-memory": Vm(memory=PRIVATE_CELL),
    "wrong-model": Vm(interface=(("model", "e1000"),)),
    "path-too-long": Vm(annotations=asking(path=f"{MOUNT}/{'long' * 22}/s")),
    "path-not-allowed": Vm(annotations=asking(path="/etc/s")),
    "mtu-mismatch": Vm(annotations=asking(mtu=9000)),
    "queues-over-vcpus": Vm(annotations=asking(queues=2)),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_sidecar_refuses_by_name(launched: Launched, trap: str) -> None:
    """The callback ends with a status that names the trap, the VM and the network or the device; nothing is defined."""
    with pytest.raises(HookError, match=rf"FAILED_PRECONDITION: VM default/vm.*\({trap}\); ") as refused:
        launched.define(TRAPS[trap])
    assert "blue" in refused.value.details
    assert launched.compute.virsh("list", "--all", "--name").split() == []


@pytest.mark.parametrize("memory", SHAPES.values(), ids=SHAPES)
def test_libvirt_11_defines_no_vm_whose_memory_is_not_said_to_be_shared(launched: Launched, memory: Memory) -> None:
    """Where `<access>` is removed again, libvirt 11.2 and later refuse the definition, whatever the memory is."""
    vm = Vm(memory=memory)
    private = unshared(launched.manager.on_define_domain(vm.xml(), vm.vmi()))
    with pytest.raises(VirshFailed, match="'interface' requires shared memory"):
        launched.compute.define(private)


def test_a_vm_without_a_switch_waits_for_it(launched: Launched, switch: Switch) -> None:
    """A VM that starts while no switch connects to its socket hangs in "starting up", and starts when OVS is there again."""
    vm = Vm()
    launched.define(vm)
    switch.kill_vswitchd()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(launched.compute.start, vm.domain, paused=True)
        try:
            wait_until(lambda: "QEMU waiting for connection on" in launched.compute.qemu_log(vm.domain), what="QEMU to say so")
            assert launched.compute.virsh("domstate", "--reason", vm.domain).strip() == "paused (starting up)"
            assert not starting.done()
        finally:
            switch.restart_vswitchd()
        starting.result()
    assert launched.compute.state(vm.domain) == "paused"


def test_a_vm_that_waits_for_a_switch_can_be_ended(launched: Launched, switch: Switch) -> None:
    """Such a VM can be powered off, and its start then fails with QEMU's words, which name the socket."""
    vm = Vm()
    launched.define(vm)
    switch.kill_vswitchd()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(launched.compute.start, vm.domain)
        try:
            wait_until(lambda: "QEMU waiting for connection on" in launched.compute.qemu_log(vm.domain), what="QEMU to say so")
            launched.compute.destroy(vm.domain)
            with pytest.raises(VirshFailed, match=f"QEMU waiting for connection on: disconnected:unix:{MOUNT}/vhostuser/pod"):
                starting.result()
        finally:
            switch.restart_vswitchd()
