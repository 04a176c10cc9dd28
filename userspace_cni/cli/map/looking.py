"""What `map` asks of the node: records, switch, agent and OVN. What does not answer is told as such; nothing waits long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.dead_sockets import dead_sockets
from userspace_cni.attachment.listing import NOT_SERVING, describe_all
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.polling import shares_by_port
from userspace_cni.base.switch_bridges import FrameCounts, SwitchBridge
from userspace_cni.cli.agent_client import NoAgent
from userspace_cni.cli.site import SWITCH_S, CommandRefused, Site, patient
from userspace_cni.diagnosis.node_map import MapFacts, MapHead, NodeMap, find_rates, make_map
from userspace_cni.ovn.logical_networks import LogicalNetworks
from userspace_cni.pod.program_build import recorded_build

if TYPE_CHECKING:
    import click

    from userspace_cni.ovn.northbound import NorthboundSession

_OVN_S: Final = 5.0
"""Seconds for OVN's northbound database, on a node that is not busy."""


class MapLook:
    """One look at the node. `seconds`: between the two looks at the counters, 0 for none."""

    def __init__(self, ctx: click.Context, site: Site, seconds: float) -> None:
        self._ctx = ctx
        self._site = site
        self._seconds = seconds
        self._unasked: list[str] = []

    def look(self) -> NodeMap:
        """The picture's facts. Raises only what records say that cannot be read, and for a user who may not."""
        site, taken = self._site, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        records = site.records()
        problem = site.switch_problem()
        bridges = self._bridges(problem)
        liveness = site.liveness()
        before = self._counts(liveness.state) if self._seconds and bridges else {}
        begun = time.monotonic()
        agent, faults = self._agent()
        logical = self._logical(bridges or ())
        if before:
            time.sleep(max(0.0, begun + self._seconds - time.monotonic()))
            bridges = self._bridges(None)
        after = self._counts(liveness.state) if before else {}
        ports = None if bridges is None else site.switch_ports()
        attached = describe_all(
            records,
            ports,
            boot_id=site.node.store.boot_id(),
            vswitchd=liveness.state,
            dead=dead_sockets(records, site.node.driver),
        )
        facts = MapFacts(
            attached,
            bridges,
            liveness.state,
            site.node.store.journal.node_records(),
            find_rates(before, after),
            logical,
            self._polled(liveness.state) if bridges else {},
        )
        head = MapHead(
            site.drivers.installation.name,
            taken,
            recorded_build().version,
            _switch_words(liveness.state, liveness.reason),
            agent,
            self._seconds if after else 0,
        )
        if liveness.state in NOT_SERVING:
            self._unasked.append(f"the states of links are not known: ovs-vswitchd is {liveness.state}: {liveness.reason}")
        return make_map(head, facts, faults, self._unasked)

    def _bridges(self, problem: UserspaceError | None) -> Sequence[SwitchBridge] | None:
        try:
            if problem is None:
                return self._site.drivers.switch.list_bridges()
        except UserspaceError as error:
            problem = error
        self._unasked.append(f"the switch cannot be asked, and what is shown is from the records: {problem}")
        return None

    def _counts(self, state: str) -> Mapping[str, FrameCounts]:
        if state in NOT_SERVING:
            return {}
        try:
            return self._site.drivers.switch.count_frames()
        except UserspaceError as error:
            self._unasked.append(f"rates are not known: {error}")
            return {}

    def _polled(self, state: str) -> Mapping[str, Mapping[int, int | None]]:
        """The cores that poll each port; nothing where the switch does not say."""
        if state != "alive":
            return {}
        try:
            reading = self._site.drivers.switch.ports.read_polling_threads(patient(SWITCH_S))
        except UserspaceError as error:
            self._unasked.append(f"polling threads are not known: {error}")
            return {}
        return shares_by_port(reading.threads)

    def _agent(self) -> tuple[str, list[Finding]]:
        """The agent in words, and what it says that the node itself lacks."""
        client = self._site.client
        try:
            about, specs = client.about(), client.network()["specs"]
        except NoAgent:
            return "no agent runs", []
        except Unavailable as error:
            self._unasked.append(f"the agent cannot be asked: {error}")
            return "", []
        return f"agent {about['version']}", [_fault(each) for each in specs if not each["ready"]]

    def _logical(self, bridges: Sequence[SwitchBridge]) -> LogicalNetworks:
        """The logical networks of the node's ports; nothing is asked where there is no logical port."""
        ports = frozenset(port.logical for bridge in bridges for port in bridge.ports if port.logical)
        if not ports:
            return LogicalNetworks()
        from userspace_cni.cli.ovn.opened_databases import open_databases
        from userspace_cni.ovn.logical_reads import look_at_networks

        def look(session: NorthboundSession) -> LogicalNetworks:
            return look_at_networks(session, ports)

        try:
            _, databases = open_databases(self._ctx)
            what, deadline = "looking at logical networks", patient(_OVN_S)
            return databases.northbound.read(look, frozenset(), what, deadline, enough=lambda _: False)
        except (UserspaceError, CommandRefused) as error:
            self._unasked.append(f"OVN's northbound database cannot be asked, and logical switches are not known: {error}")
            return LogicalNetworks()


def _fault(spec: Mapping[str, Any]) -> Finding:
    return Finding("spec-not-met", "error", f"{spec['kind']} {spec['name']}", spec["problem"] or "the node does not have it")


def _switch_words(state: str, reason: str) -> str:
    if state == "alive":
        return f"Open vSwitch {reason.rpartition(' ')[2]}"
    return f"ovs-vswitchd is {state}" if state in NOT_SERVING else ""
