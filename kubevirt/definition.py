"""Handles a call of the sidecar: reads what virt-launcher sends, makes the new definition, and logs the result.

All versions of the hook protocol use this handler. It may be called any number of times, at once and for the same VM, and on a
migration's target too, where KubeVirt drops the answer. It must not use gRPC, and never log the definition itself.
"""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kubevirt.domain import Policy, find_missing_networks, mutate
from kubevirt.json_input import MARKS_MAX
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.sidecar_log import say
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vmi import VirtualMachine, find_bound_interfaces, read_vmi
from userspace_cni.pod.strict_json import marks

DOMAIN_MAX: Final = 256 << 10
"""Bytes of a definition; KubeVirt's have some 10 to 100 KiB. More would not fit in the memory that the sidecar is given."""
VMI_MAX: Final = 384 << 10
"""Bytes of a VMI. They have some 10 to 100 KiB, 200 with 256 disks; the API server's store would take 1.5 MiB."""
VMI_MARKS_MAX: Final = MARKS_MAX
"""Braces, brackets and commas of a VMI. It has one in 15 bytes or more."""
WAIT_S: Final = 48.0
"""How long sources are waited for when the caller names no deadline; virt-launcher's is a minute."""
_SHARE: Final = 0.8
"""Of the time that the caller leaves us: the rest is for the work, on a fifth of a CPU."""


@dataclass(frozen=True)
class Call:
    """One call. `hook` is its name for the log, `seconds` the time that the caller leaves us (None: no limit).

    `ours`: the caller asks us only for VMs that use our binding, so that a VM without it is an error.
    """

    hook: str
    domain: bytes
    vmi: bytes
    seconds: float | None = None
    ours: bool = True


class DefinitionFailed(Exception):
    """A call that ended without a definition. Its text is for the caller: VM, networks, reason, remedy. `cause`: of what kind."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Definer:
    """Adds the interfaces bound by `binding` to definitions: one at a time, so that memory holds one decoded document.

    `others`: None where KubeVirt tells the name of our binding. Where it does not, another binding may be ours too: a missing
    interface of it is refused, unless `others`, the bindings of other sidecars, has that binding.
    """

    binding: str
    places: SidecarPlaces
    policy: Policy
    others: frozenset[str] | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def define(self, call: Call) -> bytes:
        """Return the definition with the VM's interfaces in it. Logs one line, besides those about the sources. Raises Failed."""
        began = time.monotonic()
        facts: dict[str, object] = {"hook": call.hook}
        try:
            domain = self._defined(call, facts)
        except KubevirtError as error:
            say("error", error.message, **facts, trap=error.name, remedy=error.remedy, ms=_since(began))
            raise DefinitionFailed(f"{_about(facts)}: {error}", error) from error
        except Exception as error:
            say("error", "a fault in the sidecar", **facts, ms=_since(began), traceback=traceback.format_exc())
            fault = f"{type(error).__name__}: {str(error)[:200]}"
            raise DefinitionFailed(f"{_about(facts)}: a fault in the sidecar, whose log has more: {fault}", error) from error
        say("info", "domain defined", **facts, ms=_since(began))
        return domain

    def _defined(self, call: Call, facts: dict[str, object]) -> bytes:
        with self._alone():
            machine = _machine(call.vmi)
        facts["vm"] = machine
        interfaces = find_bound_interfaces(machine, self.binding)
        facts["networks"] = ",".join(interface.network for interface in interfaces) or "none"
        self._expect(machine, call)
        before = _text(call.domain)
        self._leave_none_behind(machine, call, before)
        if not interfaces:
            return call.domain
        wait = WAIT_S if call.seconds is None else min(WAIT_S, call.seconds * _SHARE)
        found = resolve(machine, self.binding, self.places, wait, lambda line: say("info", line, vm=machine))
        facts["sources"] = ",".join(f"{network}:{source.origin}" for network, source in found.items())
        with self._alone():
            after = mutate(before, machine, found, self.policy)
        facts["changed"] = "no" if after == before else "yes"
        return after.encode()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A turn to decode something, and what is left of it given back."""
        with self._turn:
            try:
                yield
            finally:
                # a definition that was read is a cycle: left to itself it stays until much more has been allocated
                gc.collect()

    def _expect(self, machine: VirtualMachine, call: Call) -> None:
        """Raise Refused for a VM without our binding: KubeVirt starts us only for VMs that use it, so we have a wrong name."""
        if not call.ours or any(interface.binding == self.binding for interface in machine.interfaces):
            return
        others = sorted({interface.binding for interface in machine.interfaces if interface.binding})
        raise DefinitionRefused(
            "other-binding",
            f"no interface of the VM has the binding {self.binding!r}, whose sidecar this is, but: {', '.join(others) or 'none'}",
            "set USERSPACE_CNI_KUBEVIRT_BINDING in the sidecar's image to the name under which KubeVirt has it, "
            "or register it as 'vhostuser'",
        )

    def _leave_none_behind(self, machine: VirtualMachine, call: Call, before: str) -> None:
        """Raise Refused for an interface of another binding that is not in the definition, unless another sidecar adds it.

        Before 1.9 KubeVirt starts one image once for each binding, and no sidecar knows which one it is for. All of them would
        serve the same binding, and the VM would start without the other's interfaces. A sidecar cannot serve every binding: one
        may be another project's, whose sidecar would find its interface taken.
        """
        if not call.ours or self.others is None:
            return
        served = {"", self.binding, *self.others}
        foreign = {
            each.network: each.binding for each in machine.interfaces if each.binding not in served and each.state != "absent"
        }
        if not foreign:
            return
        with self._alone():
            network = next(iter(find_missing_networks(before, foreign)), "")
        if network:
            raise DefinitionRefused(
                "other-binding",
                f"interface {network!r} has the binding {foreign[network]!r} and is not in the definition; this sidecar serves "
                f"{self.binding!r}, and KubeVirt before 1.9 tells no sidecar for which binding it was started: the VM might "
                f"start without {network!r}",
                f"give all vhost-user interfaces of the VM the binding {self.binding!r}; or, where another sidecar adds "
                f"{network!r}, set USERSPACE_CNI_KUBEVIRT_OTHER_BINDINGS={foreign[network]} in an image made from this one",
            )


def _about(facts: dict[str, object]) -> str:
    networks = facts.get("networks")
    return f"VM {facts.get('vm', 'unknown')}" + (f", networks {networks}" if networks else "")


def _machine(vmi: bytes) -> VirtualMachine:
    if len(vmi) > VMI_MAX:
        raise BadInput(
            f"the VMI has {len(vmi)} bytes and {VMI_MAX} are read at most", "make its annotations and cloud-init data smaller"
        )
    found = marks(vmi.decode("latin-1"))
    if found > VMI_MARKS_MAX:
        raise BadInput(
            f"the VMI has {found} braces, brackets and commas and {VMI_MARKS_MAX} are read at most",
            "look at what fills it: `kubectl get vmi NAME -o json --show-managed-fields`",
        )
    return read_vmi(vmi)


def _text(domain: bytes) -> str:
    if len(domain) > DOMAIN_MAX:
        raise BadInput(
            f"the domain XML has {len(domain)} bytes and {DOMAIN_MAX} are read at most",
            "look at what other sidecars and plugins put into it",
        )
    try:
        return domain.decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"the domain XML is not UTF-8 (byte {error.start})", "look at what other sidecars and plugins put into it"
        ) from error


def _since(began: float) -> int:
    """Milliseconds."""
    return round((time.monotonic() - began) * 1000)
