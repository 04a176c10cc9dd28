"""What a shell completes beside commands and options: names of attachments, pods, bridges, networks, NICs and settings.

A user who presses a key waits for it. So it reads records, settings and directories, and asks neither switch nor agent, which may
hang; what cannot be read gives no names, and no message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.cli.site import Site

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_NICS: Final = Path("/sys/class/net")
_SOCKET_OF_BRIDGE: Final = ".mgmt"
"""ovs-vswitchd makes BRIDGE.mgmt for each bridge, for OpenFlow, and removes it with the bridge."""


def _complete(read: Callable[[Site], Iterable[str]]) -> Completion:
    """What completes with the names that `read` finds on this node."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = ctx.params.get(parameter.name or "")
        taken = given if isinstance(given, tuple) else ()
        return [CompletionItem(name) for name in _read(read) if name.startswith(incomplete) and name not in taken]

    return complete


def _read(read: Callable[[Site], Iterable[str]]) -> list[str]:
    """The names in order, each once; none where anything fails: the shell has the user's line, and no place for a message."""
    with suppress(Exception):
        from userspace_cni.base.host_paths import see_host_at
        from userspace_cni.base.log import bind
        from userspace_cni.base.settings import load
        from userspace_cni.cli.site import Site

        site = Site(load(os.environ))
        see_host_at(site.settings.host_root)
        with bind("error"):
            return sorted(set(read(site)))
    return []


def _pods(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        if record.pod_name:
            yield "/".join(filter(None, (record.pod_namespace, record.pod_name)))


def _vms(site: Site) -> Iterator[str]:
    for record in site.records():
        if record.port_ref and (name := record.port_ref.marks.get("vm-name")):
            yield "/".join(filter(None, (record.pod_namespace, name)))


def _attachments(site: Site) -> Iterator[str]:
    from userspace_cni.attachment.listing import name_of

    return map(name_of, site.records())


def _bridges(site: Site) -> Iterator[str]:
    for path in Path(site.map_path(site.settings.ovs_rundir)).iterdir():
        if path.suffix == _SOCKET_OF_BRIDGE:
            yield path.stem


attachment_names: Final = _complete(_attachments)
pod_names: Final = _complete(lambda site: _pods(site.records()))
vm_names: Final = _complete(_vms)
bridge_names: Final = _complete(_bridges)
network_names: Final = _complete(lambda site: (record.network for record in site.records()))
uplink_names: Final = _complete(lambda site: (each.name for each in site.settings.provider_networks))
nic_names: Final = _complete(lambda _: (path.name for path in _NICS.iterdir()))


def setting_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The keys of settings, each with what it is: also while a settings file is wrong."""
    from userspace_cni.base.settings import TABLE, TABLES_OF_FILE

    found = [CompletionItem(key, help=setting.help) for key, (_, setting) in TABLE.items() if key.startswith(incomplete)]
    return found + [CompletionItem(key) for key in TABLES_OF_FILE if key.startswith(incomplete)]


def file_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own completion of files."""
    return [CompletionItem(incomplete, type="file")]


def directory_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]
