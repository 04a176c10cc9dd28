"""Gathers what is known of attachments and their node, for `why`: each question once, those that may wait at the same time.

What cannot be asked is `Unasked` and hides nothing else. It changes nothing, and connects to no socket of an application.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli.agent_client import DeadAgent, NoAgent, SlowAgent
from userspace_cni.cli.node.installed import directories, plugins
from userspace_cni.cli.node.quarantined import quarantined
from userspace_cni.cli.node.socket_parties import UnixSockets, look
from userspace_cni.cli.node.switch_log import find_log, last_complaint
from userspace_cni.cli.node.why_network_facts import AgentPages, NetworkFacts, OvnFacts, read_pages
from userspace_cni.cli.node.why_traffic import WhyTraffic
from userspace_cni.cli.site import SWITCH_S, Site, attachment_limit, patient
from userspace_cni.diagnosis.attachment_findings import check_one
from userspace_cni.diagnosis.why.attachment_sight import (
    AbsentSight,
    AgentSight,
    AttachmentSight,
    Fact,
    RefusalSight,
    SocketSight,
    StoreSight,
    SwitchSight,
    Unasked,
    known,
)
from userspace_cni.linux.processes import find_daemon, is_stopped
from userspace_cni.node.pod_processes import PodProcesses, see_processes
from userspace_cni.node.seen_pod import SeenPod, is_named, list_sandboxes, see_pod
from userspace_cni.node.surroundings import unwritable

T = TypeVar("T")
Reading = tuple[str, str, str]
API_S = 3.0
"""Seconds for one question to the API server, on a node that is not busy."""
_DIRECTORIES = ("state_dir", "run_dir", "short_dir")
_THREADS = 8
_DEFINITIONS_MAX = 8
_FILES_MAX = 256
"""How many names of a pod's directory are looked at: a pod may make any number."""


@dataclass(frozen=True)
class NodeSight:
    """What is known of the node, whichever attachment is asked about. `away`: why the switch cannot be asked; `pages`: those of
    the agent, None for a node that is given."""

    agent: Fact[AgentSight]
    switch: Fact[SwitchSight]
    parties: UnixSockets
    traffic: WhyTraffic
    away: UserspaceError | None = None
    pages: AgentPages | None = None


class WhyFacts:
    """Looks at the node of `site` and at the attachments `records`, all of them at the same time."""

    def __init__(self, site: Site, records: Sequence[Record]) -> None:
        self._site = site
        self._records = records
        self._boot_id = site.node.store.boot_id()
        self._spooled = tuple(
            (each.environ.get("CNI_CONTAINERID", ""), each.environ.get("CNI_IFNAME", ""))
            for each in site.node.store.spool.entries(keep=True)
        )
        self._unwritable = {
            (name, path): problem
            for name in _DIRECTORIES
            if (problem := unwritable(site.map_path(path := str(getattr(site.settings, name)))))
        }

    def gather(self) -> list[AttachmentSight]:
        """What is known of each attachment."""
        with ThreadPoolExecutor(_THREADS) as threads:
            pods = {key: threads.submit(_asked, self._pod, *key) for key in dict.fromkeys(map(_pod_of, self._records)) if key[1]}
            agent = threads.submit(_asked, self.look_at_agent)
            parties = threads.submit(self._parties)
            pages = threads.submit(read_pages, self._site) if self._site.given is None else None
            switch, away = self.look_at_switch()
            traffic = WhyTraffic(self._site, self._records, switch)
            node = NodeSight(agent.result(), switch, parties.result(), traffic, away, pages.result() if pages else None)
            looked = [threads.submit(self._look, each, node, pods.get(_pod_of(each))) for each in self._records]
            return [each.result() for each in looked]

    def look_at_agent(self) -> AgentSight:
        """Ask the agent; whether it answers is the answer."""
        site = self._site
        where = directories((), site.environ.get("CNI_PATH", ""))
        plugin = next((each.path for each in plugins(site, where) if each.meant), "")
        socket = site.settings.agent_socket
        try:
            problems = tuple(site.client.about()["problems"])
        except NoAgent:
            return AgentSight(socket, "absent", plugin)
        except DeadAgent:
            return AgentSight(socket, "dead", plugin)
        except SlowAgent as error:
            stopped = error.pid if is_stopped(error.pid) else 0
            return AgentSight(socket, "slow", plugin, (str(error),), stopped)
        return AgentSight(socket, "troubled" if problems else "ready", plugin, problems, pid=site.client.process())

    def look_at_switch(self) -> tuple[SwitchSight, UserspaceError | None]:
        """Ask OVSDB and ovs-vswitchd; and why OVSDB does not answer."""
        site, ports = self._site, self._site.node.switch.ports
        away = site.switch_problem()
        liveness = ports.watch_liveness()
        stopped = bool(liveness.pid) and is_stopped(liveness.pid or 0, site.map_path("/proc"))
        if liveness.state == "silent" and not stopped:
            liveness = site.liveness()
        unserving = ""
        if away is None:
            try:
                ports.require_serving("", patient(SWITCH_S))
            except UserspaceError as error:
                unserving = str(error)
        proc = site.map_path("/proc")
        server = find_daemon(site.map_path(site.settings.ovs_rundir), "ovsdb-server", proc) if away else 0
        sight = SwitchSight(
            liveness.state,
            liveness.reason,
            liveness.pid,
            stopped,
            find_log(site, liveness.pid),
            str(away or ""),
            server,
            bool(server) and is_stopped(server, proc),
        )
        if away is not None:
            return sight, away
        try:
            listed = {port.name: port for port in ports.list_ports()}
            bridges = dict(ports.list_bridges())
        except UserspaceError as error:
            return sight, error
        return replace(sight, unserving=unserving, ports=listed, bridges=bridges), None

    def look_at_store(self, *mentioned: str) -> StoreSight:
        """The store; `mentioned`: what a file that was put aside has to mention."""
        files = quarantined(Path(self._site.node.store.journal.directory), mentioned)
        return StoreSight(self._unwritable, self._spooled, tuple(each["file"] for each in files))

    def gather_absence(self, asked: str, near: Sequence[str]) -> AbsentSight:
        """What is known of a pod of which there is no attachment."""
        readings = _readings(asked)
        pods = frozenset(pod for _, pod, _ in readings)
        with ThreadPoolExecutor(_THREADS) as threads:
            agent = threads.submit(_asked, self.look_at_agent)
            refusals = threads.submit(_asked, self._refusals, readings)
            sandboxes = threads.submit(_asked, self._sandboxes, pods)
            seen = threads.submit(_asked, self._first_pod, readings)
            switch, _ = self.look_at_switch()
        here = self._site.drivers.installation if self._site.given is None else None
        pod = known(seen.result())
        return AbsentSight(
            asked,
            tuple(near),
            here.name if here else "",
            has_account=here is not None and here.has_account,
            refusals=refusals.result(),
            pod=seen.result(),
            sandboxes=sandboxes.result(),
            missing=_asked(self._missing, pod) if pod and pod.networks else None,
            agent=agent.result(),
            store=self.look_at_store(*pods),
            switch=switch,
        )

    def _refusals(self, readings: Sequence[Reading]) -> tuple[RefusalSight, ...]:
        found = []
        try:
            refused = self._site.client.refusals()
        except (NoAgent, DeadAgent, SlowAgent):
            return ()  # told as the agent's own fault
        for each in refused:
            if any(_is_meant(each, reading) for reading in readings):
                ago_s = max(0.0, time.time() - float(each.get("at", 0)))
                code, count = int(each.get("code", 0)), int(each.get("count", 1))
                ifname, message, details = (str(each.get(key, "")) for key in ("ifname", "msg", "details"))
                found.append(RefusalSight(ifname, code, message, details, ago_s, count))
        return tuple(found)

    def _missing(self, pod: SeenPod) -> tuple[str, ...]:
        """The network definitions for which the pod asks and that the API does not have."""
        from userspace_cni.node.seen_definition import find_undefined
        from userspace_cni.ovn.pod_interfaces import name_definitions

        named = sorted(name_definitions(pod.networks, pod.namespace))
        return find_undefined(named[:_DEFINITIONS_MAX], self._site.drivers.installation)

    def _sandboxes(self, names: Iterable[str]) -> tuple[str, ...]:
        if self._site.given is not None:
            return ()
        root = self._site.drivers.installation.root
        return tuple(each for name in names for each in list_sandboxes(self._site.settings.cni_cache_dir, root, name))

    def _first_pod(self, readings: Sequence[Reading]) -> SeenPod | None:
        """The pod that the API has under one of the readings of a name."""
        found = (
            self._pod(namespace or "default", pod) for namespace, pod, _ in readings if is_named(namespace or "default", pod)
        )
        return next(filter(None, found), None)

    def _look(self, record: Record, node: NodeSight, pod: Future[Fact[SeenPod]] | None) -> AttachmentSight:
        outcome = check_one(record, self._site.node, attachment_limit, node.away)
        away = str(node.away or "")
        unchecked = {each["step"]: each["error"] for each in outcome.unchecked if each["error"] != away}
        seen, switch = pod.result() if pod else None, known(node.switch)
        port = switch.ports.get(record.port_ref.name) if switch and record.port_ref else None
        sight = AttachmentSight(
            record,
            self._boot_id,
            outcome.drifts,
            unchecked,
            last_complaint(self._site.map_path(switch.log), port.name, port.error) if switch and port and port.error else "",
            agent=node.agent,
            store=self.look_at_store(record.container_id),
            switch=node.switch,
            socket=_asked(self._socket, record, node.parties),
            processes=_asked(self._processes, record),
            pod=seen,
            traffic=node.traffic.of(record) if _is_fit(record, switch) else None,
        )
        return sight if node.pages is None else _with_network(sight, NetworkFacts(self._site, node.pages), OvnFacts(self._site))

    def _pod(self, namespace: str, name: str) -> SeenPod | None:
        """The pod by the API; None without an account, and for a pod that is not there."""
        if self._site.given is not None or not self._site.drivers.installation.has_account:
            return None
        return see_pod(self._site.drivers.installation.clients.of(""), namespace, name, patient(API_S))

    def _parties(self) -> UnixSockets:
        namespaces = [self._site.map_path(each.netns) for each in self._records if each.netns and each.socket]
        return look(Path(self._site.map_path("/proc")), namespaces) if namespaces else UnixSockets()

    def _processes(self, record: Record) -> PodProcesses | None:
        if not record.netns_inode or self._site.given is not None:
            return None
        return see_processes(record.netns_inode, record.directory, attachment_limit(), self._site.drivers.installation.root)

    def _socket(self, record: Record, parties: UnixSockets) -> SocketSight | None:
        """What is at the name of its socket; the file is looked at, and no link is followed below the directory."""
        socket = record.socket
        if socket is None:
            return None
        directory = Path(self._site.map_path(socket.directory))
        made = Path(self._site.map_path(socket.switch_path)) if socket.switch_path else None
        in_switch = _kind_of(_facts_of(made)) if made else ""
        facts = _facts_of(directory / socket.name)
        kind = _kind_of(facts)
        party = parties.at(directory / socket.name, facts) if facts and kind == "socket" else ""
        return SocketSight(kind, party, () if party or kind == "other" else self._others(directory, parties), in_switch)

    def _others(self, directory: Path, parties: UnixSockets) -> tuple[str, ...]:
        """Names at which processes listen in the directory, and which are of no attachment."""
        ours = {each.socket.name for each in self._site.node.store.journal.records() if each.socket}
        found = []
        try:
            with os.scandir(directory) as entries:
                for entry, _ in zip(entries, range(_FILES_MAX), strict=False):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(facts.st_mode) and entry.name not in ours:
                        found += [entry.name] if parties.at(directory / entry.name, facts) in ("listening", "connected") else []
        except OSError:
            return ()
        return tuple(sorted(found))


def _with_network(sight: AttachmentSight, facts: NetworkFacts, ovn: OvnFacts) -> AttachmentSight:
    """The sight with what the kernel, the node's own network, Route objects, the API and OVN have of the attachment."""
    record, switch = sight.record, known(sight.switch)
    away = switch is None or bool(switch.away)
    try:
        return replace(
            sight,
            link=_asked(facts.see_link, record),
            specs=_asked(facts.see_specs, record),
            routes=_asked(facts.see_routes, record),
            annotations=_asked(facts.see_annotations, record, sight.pod),
            definition=_asked(facts.see_definition, record, sight.pod),
            chassis=None if away else _asked(ovn.see_chassis, record),
            logical=None if away else _asked(ovn.see_row, record),
            binding=None if away else _asked(ovn.see_binding, record),
        )
    finally:
        ovn.close()


def _readings(name: str) -> list[Reading]:
    """What a name may mean: namespace, pod and interface, each "" where it is not given."""
    parts = name.split("/")
    if len(parts) == 3:
        return [(parts[0], parts[1], parts[2])]
    if len(parts) == 2:
        return [(parts[0], parts[1], ""), ("", parts[0], parts[1])]
    return [("", parts[0], "")]


def _is_meant(refused: Mapping[str, Any], reading: Reading) -> bool:
    namespace, pod, ifname = reading
    is_pod = refused.get("pod") == pod or (not refused.get("pod") and pod and str(refused.get("container", "")).startswith(pod))
    return bool(is_pod) and namespace in ("", refused.get("namespace")) and ifname in ("", refused.get("ifname"))


def _asked(ask: Callable[..., Fact[T]], *arguments: object) -> Fact[T]:
    try:
        return ask(*arguments)
    except UserspaceError as error:
        return Unasked(str(error))
    except OSError as error:
        return Unasked(error.strerror or str(error))


def _is_fit(record: Record, switch: SwitchSight | None) -> bool:
    """Whether the bridge of its port is one that can have the port: of another nothing more is asked."""
    step = record.port
    return step is None or switch is None or switch.bridges.get(step.bridge) == step.datapath


def _facts_of(path: Path) -> os.stat_result | None:
    """Of the file itself, which may be a link; None where nothing is."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _kind_of(facts: os.stat_result | None) -> Literal["socket", "other", ""]:
    return "" if facts is None else "socket" if stat.S_ISSOCK(facts.st_mode) else "other"


def _pod_of(record: Record) -> tuple[str, str]:
    return record.pod_namespace, record.pod_name
