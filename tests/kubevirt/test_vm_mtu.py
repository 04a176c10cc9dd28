"""How a guest learns its MTU, as far as libvirt 11.3 lets it: each policy of the sidecar at a port of 9000 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.hooks import HookError
from tests.lab.guests.libvirt_compute import VirshFailed
from tests.lab.guests.libvirt_domain import Vm
from tests.lab.guests.libvirt_vm import Launched, node_for_vms
from tests.lab.switch.switch import Switch

pytestmark = pytest.mark.timeout(600)  # the first one may have to make libvirt's tree and the guest

MTU, LIBVIRT = "USERSPACE_CNI_KUBEVIRT_MTU", "USERSPACE_CNI_KUBEVIRT_LIBVIRT"


@pytest.fixture(scope="module")
def pod(switch: Switch, tree: Path) -> Iterator[Launched]:
    """A launcher pod at a port of 9000 bytes."""
    with node_for_vms(switch) as node, Launched(node, tree, mtu=9000) as pod:
        yield pod


def test_policy_override_tells_the_guest(launched: Launched) -> None:
    """With `override` the guest's interface has the port's MTU, and no other source sets it in the guest."""
    vm = Vm(boot=command_line(Nic(launched.mac(), "10.9.0.2/24")))
    with launched.hooks(**{MTU: "override"}) as manager:
        launched.define(vm, manager)
    assert " mtu=9000 " in launched.boot(vm)


def test_policy_element_does_not_start(launched: Launched) -> None:
    """With `element` libvirt 11.3 takes the definition and then fails to start it, because there is no host interface."""
    vm = Vm()
    with launched.hooks(**{MTU: "element"}) as manager:
        launched.define(vm, manager)
    with pytest.raises(VirshFailed, match=r"Cannot set interface MTU on '.*': No such device"):
        launched.compute.start(vm.domain, paused=True)


def test_policy_element_is_refused_for_a_libvirt_that_is_known_to_fail(launched: Launched) -> None:
    """When the sidecar knows libvirt's version, it refuses by name before there is a VM."""
    with launched.hooks(**{MTU: "element", LIBVIRT: "11.3.0"}) as manager, pytest.raises(HookError, match=r"\(mtu-element\); "):
        launched.define(Vm(), manager)


@pytest.mark.parametrize("told", [{}, {LIBVIRT: "11.3.0"}], ids=["unknown libvirt", "libvirt 11.3"])
def test_policy_auto_leaves_the_mtu_out(launched: Launched, told: dict[str, str]) -> None:
    """With `auto` a VM on a libvirt that may not accept an MTU starts without one."""
    vm = Vm()
    with launched.hooks(**{MTU: "auto", **told}) as manager:
        xml = launched.define(vm, manager)
    assert "mtu" not in xml
    launched.compute.start(vm.domain, paused=True)
