"""The node's own attachments as an agent keeps them, without its process: a `LocalNode`, and specs that are reconciled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.lab.node.forked import died
from tests.lab.node.inside import TrippedDrivers
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import UNKNOWN, Spec, Specs, SpecStatus
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.provider_networks import ProviderNetwork, require_possible
from userspace_cni.base.settings import Settings
from userspace_cni.network.provider_specs import ProviderSite, keep, plan, refuse
from userspace_cni.network.spec_list import PROVIDER_NETWORK
from userspace_cni.node.local_node import LocalNode

SOURCE = "settings"


class KeptNode:
    """A node on the switch, with its own state directory below `directory`.

    `gone_s`: how long ovs-vswitchd counts as gone; `unserved_s`: how long its bridges count as without service.
    """

    def __init__(self, switch: Switch, directory: Path, node: LocalNode) -> None:
        self.switch = switch
        self.directory = directory
        self.node = node
        self.gone_s = self.unserved_s = 0.0
        self.addresses: tuple[str, ...] = ()
        self.site = ProviderSite(node, lambda: self.gone_s, lambda: self.addresses, lambda: self.unserved_s)
        self._specs = Specs(node, keep(self.site))

    def reconcile(self, *networks: ProviderNetwork, complete: bool = True) -> Sequence[SpecStatus]:
        """Reconcile these specs at once; what became of each."""
        specs = [self.spec(each) for each in networks]
        return self._specs.reconcile(specs, {SOURCE, UNKNOWN} if complete else set(), now=True)

    def spec(self, network: ProviderNetwork) -> Spec:
        return Spec(PROVIDER_NETWORK, network.name, SOURCE, network.said_by, plan(require_possible(network), self.site), network)

    def refuse(self, network: ProviderNetwork, why: str) -> Sequence[SpecStatus]:
        """Reconcile a spec for the network that is refused before any look at the node; its status."""
        spec = Spec(PROVIDER_NETWORK, network.name, SOURCE, network.said_by, refuse(why, self.site), why)
        return self._specs.reconcile([spec], {SOURCE}, now=True)

    def met(self, *networks: ProviderNetwork) -> None:
        """Reconcile these specs, which have to become ready."""
        assert [each.problem for each in self.reconcile(*networks)] == [""] * len(networks)

    def problem(self, network: ProviderNetwork) -> str:
        """Why the spec is not ready."""
        [status] = self.reconcile(network)
        assert status.problem, "it can be met"
        return status.problem

    def records(self) -> list[Record]:
        return self.node.store.journal.node_records()

    def drifts(self) -> list[str]:
        steps = [step for record in self.records() for step in record.steps]
        found = [self.node.driver(step).check(step, Deadline.after(60)) for step in steps]
        return [f"{drift.subject} {drift.field}".strip() for drifts in found for drift in drifts]

    def killed(self, points: int, *networks: ProviderNetwork) -> str:
        """Reconcile these specs in a process that dies after so many points; the name of the last, "" if it survived."""
        passed = self.directory / "passed"
        passed.write_text("")
        killed = died(_die_after, self.node.installation.settings, networks, points, passed, self.gone_s)
        return passed.read_text().splitlines()[-1] if killed else ""


def _die_after(settings: Settings, networks: tuple[ProviderNetwork, ...], points: int, passed: Path, gone_s: float) -> None:
    """Reconcile the specs, and die at the point of that number, counted from 1."""
    names: list[str] = []

    def pass_by(name: str) -> None:
        names.append(name)
        if len(names) == points:
            passed.write_text("\n".join(names))
            os.kill(os.getpid(), signal.SIGKILL)

    with closing(TrippedDrivers(settings, {}, pass_by, resident=True)) as node:
        site = ProviderSite(node, lambda: gone_s)
        specs = [Spec(PROVIDER_NETWORK, each.name, SOURCE, "", plan(each, site), each) for each in networks]
        statuses = Specs(node).reconcile(specs, {SOURCE, UNKNOWN})
        assert not any(each.problem for each in statuses if each.desired), statuses


@contextmanager
def kept(switch: Switch, directory: Path, **settings: Any) -> Iterator[KeptNode]:
    """A node with the settings; its specs are undone at the end."""
    made = Settings(
        ovsdb=switch.ovsdb,
        ovs_rundir=switch.rundir,
        switch_netns=switch.netns,
        state_dir=str(directory / "state"),
        run_dir=str(directory / "run"),
        **settings,
    )
    with closing(LocalNode(made, {}, resident=True)) as node:
        found = KeptNode(switch, directory, node)
        try:
            yield found
        finally:
            wait_until(lambda: not found.reconcile() and not found.records(), what="its specs are undone", pause=0.5)
