"""The table of what `support` collects: what is in no line of it is never collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import click

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli.shown_build import describe_build
from userspace_cni.cli.site import Site
from userspace_cni.cli.support import node_files
from userspace_cni.cli.support.collecting import CommandItem, SupportItem
from userspace_cni.cli.support.redaction import Redactor
from userspace_cni.node import support_facts

_ASK_S: Final = 3.0
_PAGE_S: Final = 8.0
_LIBRARIES: Final = (
    "ovs",
    "ovsdbapp",
    "kubernetes",
    "pyroute2",
    "grpcio",
    "prometheus-client",
    "psutil",
    "click",
)
_PAGES: Final = (
    ("healthz", "/healthz"),
    ("readyz", "/readyz"),
    ("metrics", "/metrics"),
    ("attachments", "/api/v1/attachments"),
    ("network", "/api/v1/network"),
    ("routes", "/api/v1/routes"),
)
_COMMANDS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("settings", "the settings in force, with their sources", ("settings", "show", "--json")),
    ("status", "the state of agent, plugin, switch and directories", ("status", "--json")),
    ("list", "what is attached", ("list", "--json")),
    ("check", "what is not as ADD made it", ("check", "--json")),
    ("doctor", "what is wrong with this node", ("doctor", "--json")),
    ("map", "the node's network as it is drawn", ("map", "--json", "--seconds", "0")),
    ("gc", "what dead calls left", ("gc", "--dry-run", "--json")),
    ("network", "the node's own network", ("network", "--json")),
    ("routes", "routes in pods", ("routes", "list", "--json")),
    ("kubevirt-doctor", "virtual machines", ("kubevirt", "doctor", "--json")),
)
_OF_NAMES: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("show", "everything of each attachment", ("show", "--json")),
    ("why", "what is wrong with each attachment", ("why", "--json")),
)
STEPS_IN: Final = "commands/show.json"
_NAMES_MAX: Final = 200


def list_commands(root: click.Command, site: Site) -> list[CommandItem]:
    """Our own commands whose answers are collected, those of them that this release has."""
    found = [_command(*each) for each in _COMMANDS if _has(root, each[2])]
    names = _names(site)
    found += [_command(name, what, (*words, *names)) for name, what, words in _OF_NAMES if names and _has(root, words)]
    if _uses_ovn(site):
        found.append(_command("ovn-status", "OVN as this node sees it", ("ovn", "status", "--json")))
    return found


def list_items(site: Site, redactor: Redactor, log_bytes: int) -> Iterator[SupportItem]:
    """What this process reads itself. `log_bytes`: of each log at most."""
    settings, there = site.settings, site.map_path
    yield SupportItem("versions.json", "versions", _versions)
    yield SupportItem("machine.json", "kernel, memory, CPUs and huge pages", partial(node_files.read_machine, there))
    for directory, name in ((settings.state_dir, "records"), (settings.run_dir, "states")):
        yield SupportItem(f"node/{name}.jsonl", f"records in {directory}", partial(_store, there, directory, redactor))
    for name in ("spool", "quarantine"):
        directory = f"{settings.state_dir}/{name}"
        yield SupportItem(f"node/{name}.jsonl", f"what is in {directory}", partial(_entries, there, directory, redactor))
    places = (settings.short_dir, settings.default_shared_dir, settings.ovs_rundir)
    yield SupportItem("node/mounts.txt", "mounts of sockets and huge pages", partial(node_files.read_mounts, there, places))
    yield from _of_agent(site, log_bytes)
    yield from _of_switch(site, log_bytes)
    yield from _of_kernel(site)


def _of_agent(site: Site, log_bytes: int) -> Iterator[SupportItem]:
    client, there = site.client, site.map_path
    for name, target in _PAGES:
        path = f"agent/{name}.txt" if name == "metrics" else f"agent/{name}.json"
        yield SupportItem(path, f"the agent's page {target}", partial(client.page, target, _PAGE_S), "agent", _PAGE_S + 1)
    yield SupportItem("agent/process.json", "the agent's process", lambda: node_files.read_process(_agent(site), there))
    yield SupportItem(
        "agent/agent.log", "the agent's log", lambda: node_files.read_agent_log(client.process(), there, log_bytes), seconds=12.0
    )


def _of_switch(site: Site, log_bytes: int) -> Iterator[SupportItem]:
    settings, there, switch = site.settings, site.map_path, site.drivers.switch
    alive = partial(support_facts.watch_daemon, switch)
    yield SupportItem("switch/liveness.json", "whether ovs-vswitchd lives", alive, "ovs-vswitchd")
    for command in support_facts.DAEMON_COMMANDS:
        path = f"switch/{command.replace('/', '-')}.txt"
        ask = partial(_ask, site, command)
        yield SupportItem(path, f"ovs-appctl {command}", ask, "ovs-vswitchd", _ASK_S + 1)
    tables = partial(_tables, site)
    yield SupportItem("switch/tables.json", "tables of Open vSwitch", tables, "OVSDB", 10.0)

    def process() -> Any:
        return node_files.read_process(support_facts.known_daemon(switch), there)

    def logs() -> str:
        return node_files.read_switch_logs(support_facts.known_daemon(switch), settings.ovs_rundir, there, log_bytes)

    yield SupportItem("switch/process.json", "the process of ovs-vswitchd", process)
    yield SupportItem("switch/ovs.log", "the logs of Open vSwitch", logs)


def _of_kernel(site: Site) -> Iterator[SupportItem]:
    root = site.drivers.installation.root
    for netns in dict.fromkeys(("", site.settings.switch_netns)):
        name = "switch" if netns else "node"
        what = "where the switch opens its ports" if netns else "of the node"
        read = partial(support_facts.read_kernel, netns, root)
        yield SupportItem(f"kernel/{name}.json", f"links, addresses, routes and rules {what}", read)
        tables = partial(_nft, netns, site)
        yield SupportItem(f"kernel/{name}-nft.txt", f"our tables of nftables {what}", tables, seconds=_ASK_S + 2)


def _command(name: str, what: str, arguments: tuple[str, ...]) -> CommandItem:
    return CommandItem(f"commands/{name}.json", f"{what}: userspace-cni {arguments[0]}", arguments)


def _has(root: click.Command, words: tuple[str, ...]) -> bool:
    """Whether the first word is a command; of a group, the second one is looked for by the group itself."""
    return isinstance(root, click.Group) and words[0] in root.commands


def _names(site: Site) -> list[str]:
    from userspace_cni.attachment.listing import name_of

    try:
        return sorted({name_of(record) for record in site.records()})[:_NAMES_MAX]
    except UserspaceError:
        return []


def _uses_ovn(site: Site) -> bool:
    try:
        logical = any(record.port and record.port.logical for record in site.node.store.journal.records())
    except UserspaceError:
        logical = False
    return logical or bool(site.settings.ovn_nb or site.settings.ovn_sb)


def _versions() -> dict[str, Any]:
    return {"userspace-cni": describe_build(), "system": os.uname().machine, **{name: _version(name) for name in _LIBRARIES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _store(there: Any, directory: str, redactor: Redactor) -> str:
    return node_files.list_store(there(directory), redactor)


def _entries(there: Any, directory: str, redactor: Redactor) -> str:
    return node_files.list_entries(there(directory), redactor)


def _agent(site: Site) -> int:
    pid = site.client.process()
    if not pid:
        raise ValueError("no process holds the agent's socket")
    return pid


def _ask(site: Site, command: str) -> str:
    return support_facts.ask_daemon(site.drivers.switch, command, Deadline.after(_ASK_S))


def _tables(site: Site) -> dict[str, Any]:
    return support_facts.read_tables(site.drivers.switch, Deadline.after(2 * _ASK_S))


def _nft(netns: str, site: Site) -> str:
    return support_facts.read_nft(netns, site.drivers.installation.root, Deadline.after(_ASK_S))
