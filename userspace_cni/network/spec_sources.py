"""The specs of this node from all sources, with their plans; and the specs to keep while a source cannot be read.

A source is complete when it was read to its end. The settings are read at the start, and again on SIGHUP; the specs of commands
are in a file of the run directory, which a boot empties.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import UNKNOWN, Key, Spec, key_of
from userspace_cni.attachment.steps import Step, UplinkInterface
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.provider_networks import PCI, VDEV, usual_bridge
from userspace_cni.base.settings import Settings, files, load
from userspace_cni.base.whereabouts import PREFIX
from userspace_cni.host.node_net import pci
from userspace_cni.network import gateway_specs, mirror_specs, provider_specs, runtime_network, shared_gateways
from userspace_cni.network.commanded import is_there, read_command_specs
from userspace_cni.network.spec_list import (
    COMMANDS,
    GATEWAY,
    PROVIDER_NETWORK,
    SETTINGS,
    SHARED_GATEWAY,
    TRANSLATION,
    Desired,
    SpecList,
    merge_sources,
)

if TYPE_CHECKING:
    from userspace_cni.base.gateways import Gateway
    from userspace_cni.node.local_node import LocalNode

GONE: Final = ("dead", "silent")
"""States of ovs-vswitchd, or of its bridges, in which a bridge carries nothing for the node."""
_ASKED: Final = "asked"
"""The state of bridges while it is too early for an answer."""


class SwitchAbsence:
    """For how long ovs-vswitchd, or its service, may have been gone, by looks at it; `look` needs no OVSDB. For one thread.

    It counts from the last look that has not found it gone: where a spec that waited for the switch lay between two looks, it has
    waited long enough.
    """

    def __init__(self, state: Callable[[], str]) -> None:
        self._ask = state
        self._since: float | None = None
        self._gone = False
        self.state = ""
        """What the last look has found."""

    def look(self) -> float:
        """Ask now; the seconds since it was last seen to live, 0 while it lives or cannot be known."""
        now, self.state = time.monotonic(), self._ask()
        if self.state == _ASKED and self._since is not None:
            return self.seconds
        self._gone = self.state in GONE
        if not self._gone or self._since is None:
            self._since = now
        return self.seconds

    def forget(self) -> float:
        """Nothing depends on it now: the next look begins anew. 0 seconds."""
        self._since, self._gone = None, False
        return 0.0

    @property
    def seconds(self) -> float:
        """As of the last look, counted on."""
        return time.monotonic() - self._since if self._gone and self._since is not None else 0.0


class SettingsSource:
    """What the settings spec. Safe to use from any thread."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._settings = settings
        self._files: frozenset[str] = frozenset()
        self._complete = False
        self._again = False
        self._read()

    @property
    def settings(self) -> Settings:
        """As they were read last."""
        return self._settings

    def read_again(self) -> None:
        """Have the tables of specs read again with the next `read_desired`. Other settings need a restart. Never waits."""
        self._again = True

    def says_of(self, key: str) -> bool:
        """Whether it is known what is wanted of this setting: a file was read to its end, or its variable is there, if empty."""
        return self._complete or PREFIX + key.upper() in self._environ

    def read_desired(self) -> Desired:
        """They are complete where a file was read: one that is absent was not read to its end. What cannot be read again stays
        as it was, also while a file that was read before is away."""
        if self._again:
            self._again = False
            self._read()
        said = self._settings
        return Desired(SETTINGS, self._complete, said.provider_networks, said.gateways, mirrors=said.mirrors)

    def _read(self) -> None:
        there = self._there()
        settings = None
        try:
            settings = load(self._environ)
        except UserspaceError as error:
            say("error", "the settings cannot be read again; what they asked for stays", error=error)
        if missing := (self._files | there) - self._there():  # looked at after the reading: that file may not be in it
            self._complete = False
            say("error", "a file of the settings is away; what they asked for stays until it is back", files=sorted(missing))
        elif settings:
            self._settings, self._files, self._complete = settings, there, bool(there)

    def _there(self) -> frozenset[str]:
        return frozenset(filter(os.path.isfile, files(self._environ)))


class SpecSources:
    """The sources of this node. `others`: those beside settings and commands, less important ones later.

    `node_addresses` are those by which the cluster knows the node, None while they are not known yet. `serving`: whether calls of
    runtimes are taken.
    """

    def __init__(
        self,
        node: LocalNode,
        environ: Mapping[str, str] = os.environ,
        others: Sequence[Callable[[], Desired]] = (),
        node_addresses: Callable[[], Collection[str] | None] = tuple,
        serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self._node = node
        self._serving = serving
        self.settings = SettingsSource(node.installation.settings, environ)
        self._others = others
        self._absence = SwitchAbsence(node.switch.vswitchd)
        self._unserved = SwitchAbsence(self._service)
        self._site = provider_specs.ProviderSite(
            node, lambda: self._absence.seconds, node_addresses, lambda: self._unserved.seconds
        )
        self._patience: dict[str, tuple[float, Record | None]] = {}
        self._bridges: frozenset[str] = frozenset()
        self._given_back: frozenset[Key] = frozenset()
        self._drivers: Mapping[str, str] = {}
        self._kept = provider_specs.keep(self._site)
        self.gateways: Sequence[Gateway] = ()
        """The gateways that are desired and go together, as of the last reading."""

    def specs(self) -> tuple[Sequence[Spec], frozenset[str]]:
        """All specs, in the order in which they are met, and the sources that are complete. Raises RecordRefused."""
        desired = self._desired()
        records = self._node.store.journal.node_records()
        found = merge_sources(desired, holders(records))
        moving = {each.name: each.give_back_after_s for _, each in found.provider_networks if each.move_addresses != "no"}
        of_networks = {key_of(record)[1]: record for record in records if key_of(record)[0] == PROVIDER_NETWORK}
        moved = (name for name, record in of_networks.items() if record.moves)
        after_s = {**dict.fromkeys(moved, provider_specs.GIVE_BACK_S), **moving}
        self._patience = {name: (each, of_networks.get(name)) for name, each in after_s.items()}
        self._bridges = frozenset(port.bridge for _, record in self._patience.values() if record for port in record.uplinks)
        self._node.switch.provider_bridges.desired = frozenset(_bridges(desired))
        # before the plans look: what changes after that wants another round
        self._drivers = self._drivers_of(device for _, each in found.provider_networks for device in each.pci_devices)
        complete = frozenset(each.source for each in desired if each.complete)
        if all(each.complete or self._is_unused(each) for each in desired):
            complete |= {UNKNOWN}
        self.gateways = tuple(gateway for _, gateway in found.gateways)
        of_runtimes, installed = runtime_network.specs(self.settings.settings, self._node, self._serving)
        of_mirrors = mirror_specs.specs(found.mirrors, self._node)
        specs = (*self._refused(found), *self._of_networks(found), *self._of_gateways(found, complete, records), *of_mirrors)
        shared = tuple(shared_gateways.specs(self._node.installation.settings, self._node))
        said = frozenset({SHARED_GATEWAY}) if self.settings.says_of("ovn_gateway_bridge") else frozenset[str]()
        return (*specs, *of_runtimes, *shared), complete | installed | said

    def is_due(self) -> bool | None:
        """Whether the switch has carried nothing for so long, or carries again, that addresses are to move, or a PCI device has
        another driver than before or none. To be asked once a second: a driver that waits for DPDK to let go tells of it in no
        other way. None while nothing that is desired depends on it.
        """
        if not self._patience and not self._drivers and not self._given_back:
            self._absence.forget()
            self._unserved.forget()
            return None
        now = self.find_networks_to_release(), self._drivers_of(self._drivers)
        changed = now != (self._given_back, self._drivers)
        self._given_back, self._drivers = now
        return changed

    def _drivers_of(self, devices: Iterable[str]) -> Mapping[str, str]:
        return pci.drivers_of(devices, self._node.installation.root)

    def find_networks_to_release(self) -> frozenset[Key]:
        """The provider networks of which no address may be on a bridge now, for the switch has carried nothing for so long.

        By a look at ovs-vswitchd, and at what it does for its bridges.
        """
        if not self._patience:
            self._absence.forget()
            self._unserved.forget()
        else:
            self._absence.look()
            self._unserved.look()
        after_s = self._patience.items()
        return frozenset((PROVIDER_NETWORK, name) for name, (s, record) in after_s if self._site.cut_off_s(record) >= s)

    def _service(self) -> str:
        """Whether ovs-vswitchd, as last looked at, serves the bridges to which addresses move."""
        return self._node.switch.service(self._bridges) if self._absence.state == "alive" else self._absence.state

    def plan_as_recorded(self, record: Record | None) -> tuple[Step, ...]:
        """The plan of what a source has asked for that is not known now: as recorded, but no address stays on a dead bridge.

        Of what a command asked for, nothing outlives a boot.
        """
        if record and record.network == COMMANDS and record.boot_id != self._node.store.boot_id():
            return ()
        return self._kept(record)

    def _desired(self) -> list[Desired]:
        return [self.settings.read_desired(), read_command_specs(self._run_dir), *(read() for read in self._others)]

    @property
    def _run_dir(self) -> str:
        return self._node.installation.root.path(self._node.installation.settings.run_dir)

    def _is_unused(self, source: Desired) -> bool:
        """Whether no command has asked for anything in this boot, as far as file and records tell."""
        if source.source != COMMANDS or is_there(self._run_dir):
            return False
        return not any(record.network == COMMANDS for record in self._node.store.journal.node_records())

    def _of_networks(self, found: SpecList) -> Iterable[Spec]:
        for source, network in found.provider_networks:
            plan = provider_specs.plan(network, self._site)
            yield Spec(PROVIDER_NETWORK, network.name, source, network.said_by, plan, content=network)

    def _of_gateways(self, found: SpecList, complete: frozenset[str], records: Iterable[Record]) -> Iterable[Spec]:
        contents = {gateway.port: gateway for _, gateway in found.gateways}
        refused = {refusal.source for (kind, _), refusal in found.refused.items() if kind == GATEWAY}
        specs = gateway_specs.specs(found.gateways, complete - refused, self._node)  # what is refused stays, and is translated
        for spec in specs:
            yield replace(spec, said_by=spec.said_by or "the gateways", content=contents.get(spec.name))
        if any(spec.kind == TRANSLATION for spec in specs):
            return
        left = next((record for record in records if key_of(record) == (TRANSLATION, gateway_specs.ALL)), None)
        if left or (UNKNOWN in complete and self._has_unrecorded_table()):
            source = left.network if left else SETTINGS
            yield Spec(TRANSLATION, gateway_specs.ALL, source, "the gateways", lambda _: ())

    def _has_unrecorded_table(self) -> bool:
        """Whether there is a table of address translation, which has lost its record: no gateway needs it."""
        try:
            return self._node.switch.has_translation()
        except UserspaceError as error:
            say("debug", "whether a table of address translation is left is looked for later", error=error)
            return False

    def _refused(self, found: SpecList) -> Iterable[Spec]:
        """Refused specs keep what they have: their plan refuses, too."""
        for (kind, name), refusal in found.refused.items():
            plan = provider_specs.refuse(refusal.why, self._site)
            yield Spec(kind, name, refusal.source, refusal.source, plan, content=refusal)


def _bridges(desired: Iterable[Desired]) -> Iterable[str]:
    """The bridges of all provider networks that are desired, also of those that are refused."""
    for each in desired:
        yield from (network.bridge for network in each.provider_networks)
        yield from (usual_bridge(name) for kind, name in each.refused if kind == PROVIDER_NETWORK)


def holders(records: Iterable[Record]) -> Mapping[str, str]:
    """Which provider network has which interface now, by ProviderNetwork.claims."""
    found: dict[str, str] = {}
    for record in records:
        kind, name = key_of(record)
        if kind == PROVIDER_NETWORK:
            each_of = (each for step in record.uplinks for each in step.interfaces)
            found |= dict.fromkeys((claim for each in each_of for claim in _claims(each)), name)
    return found


def _claims(interface: UplinkInterface) -> tuple[str, ...]:
    device = interface.devargs.partition(",")[0]
    return (f"{PCI}{device}", f"{VDEV}{device}") if device else (interface.name,)
