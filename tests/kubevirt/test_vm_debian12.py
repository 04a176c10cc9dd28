"""Debian 12's libvirt 9 and QEMU 7.2: the same definition starts; and their behaviour with memory that the switch cannot see.

Without KVM this QEMU crashes when vhost-user takes an interrupt vector; so the test removes the vectors, as a sidecar could.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.guest_peer import ADDRESS, peer_at
from tests.lab.guests.libvirt_domain import SHAPES, Vm, unshared
from tests.lab.guests.libvirt_vm import PING_SECONDS, Launched, node_for_vms
from tests.lab.switch.switch import Switch, wait_until

pytestmark = pytest.mark.timeout(600)  # the first one may have to make the guest

NO_VECTORS = """<qemu:override>
    <qemu:device alias="ua-blue"><qemu:frontend>
      <qemu:property name="vectors" type="unsigned" value="0"></qemu:property>
    </qemu:frontend></qemu:device>
  </qemu:override>"""
LOST = 5


@pytest.fixture(scope="module")
def pod(switch: Switch) -> Iterator[Launched]:
    """A launcher pod with this machine's own libvirt and QEMU, and a peer to ping on its network."""
    with (
        node_for_vms(switch) as node,
        Launched(node, Path("/")) as pod,
        TemporaryDirectory(prefix="uc-") as directory,
        peer_at(switch, "br-test", Path(directory)),
    ):
        yield pod


def pinging(launched: Launched, shape: str) -> Vm:
    boot = command_line(Nic(launched.mac(), "10.9.0.2/24"), ping=(ADDRESS,))
    return Vm(memory=SHAPES[shape], boot=boot, after=NO_VECTORS)


def test_libvirt_9_runs_what_the_sidecar_made(launched: Launched) -> None:
    """The definition is valid for libvirt 9 too, starts, and the guest has its network."""
    vm = pinging(launched, "plain")
    assert launched.compute.validate(launched.define(vm)) == ""
    launched.boot(vm)
    launched.pings(vm)


def test_libvirt_9_starts_a_vm_with_private_memory_which_has_no_network(launched: Launched) -> None:
    """With private hugepages libvirt 9 reports nothing, guest and switch have their link up, and no packet passes.

    For anonymous memory QEMU itself complains in its log; memfd it shares, unless it is told not to.
    """
    vm = pinging(launched, "hugepages-without-memfd")
    launched.compute.define(unshared(launched.manager.on_define_domain(vm.xml(), vm.vmi())))
    assert '"share":true' not in launched.boot(vm)
    wait_until(lambda: launched.console(vm).count(" lost ") >= LOST, PING_SECONDS, "lost pings")
    assert " ok " not in launched.console(vm)
    assert launched.connected()
