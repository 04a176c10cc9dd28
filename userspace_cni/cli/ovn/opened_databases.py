"""OVN's databases for a command, and how its changes are shown."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.site import CommandRefused, Site, open_site, patient
from userspace_cni.ovn.chassis_ids import Address
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.former_settings import FORMER_FILE, read_places
from userspace_cni.ovn.switch_account import SwitchAccount

DATABASE_S: Final = 10.0
"""Seconds for one transaction or look, on a node that is not busy. A cluster of databases elects a leader meanwhile."""
_SIGNS: Final = {"insert": "+", "update": "~", "delete": "-"}


def open_databases(ctx: click.Context) -> tuple[Site, OvnDatabases]:
    """The node, and its way to OVN's databases. They are closed when the command ends."""
    site = open_site(ctx)
    site.require_root("asking OVN's databases and the switch")
    databases = OvnDatabases(site.settings, site.drivers.switch.ports.client, give_time(), site.map_path)
    ctx.call_on_close(databases.close)
    if former := read_host_file(site, FORMER_FILE):
        databases.read_former(former)
    return site, databases


def switch_account(site: Site, databases: OvnDatabases) -> SwitchAccount:
    """The account of the API server that the switch may name. Raises CommandRefused, InvalidConfig."""
    places = read_places(read_host_file(site, FORMER_FILE))
    return SwitchAccount(lambda: databases.read_ids(give_time()), lambda: read_host_file(site, places.authority))


def read_host_file(site: Site, path: str) -> str:
    """The text of a file of the host; "" where there is none. Raises CommandRefused."""
    try:
        return Path(site.map_path(path)).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CommandRefused(f"reading {path}: {error.strerror}", FOUND) from error


def read_addresses(site: Site) -> frozenset[Address] | None:
    """The node's addresses; None where they cannot be read, with a note."""
    from userspace_cni.node.node_addresses import read_node_addresses

    here = site.drivers.installation
    try:
        return read_node_addresses(here.settings.switch_netns, here.root)
    except UserspaceError as error:
        view.note(f"this node's addresses are not known: {error}")
        return None


def give_time() -> Deadline:
    return patient(DATABASE_S)


def describe_changes(changes: Changes) -> list[dict[str, Any]]:
    """The changes as JSON has them."""
    return [
        {
            "change": each.kind,
            "table": each.key.table,
            "name": each.key.name,
            "columns": _plain(each.columns),
            "former": _plain(each.former),
        }
        for each in changes.rows
    ]


def show_changes(changes: Changes, ids: Mapping[str, str], *, dry_run: bool) -> None:
    """A line for each row and each key that was written, or would be."""
    for each in changes.rows:
        columns = " ".join(f"{name}={_text(value)}" for name, value in _plain(each.columns).items() if name != "name")
        view.say(f"{_SIGNS[each.kind]} {each.key.table} {each.key.name} {columns}".rstrip())
    for key, value in ids.items():
        view.say(f"~ Open_vSwitch . external_ids:{key}={value}")
    if not changes.rows and not ids:
        view.note("nothing is to be changed" if dry_run else "nothing was to be changed")
    elif dry_run:
        view.note("a dry run: nothing was written")


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _without_ids(value) for name, value in columns.items()}


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else value


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={each}" for key, each in sorted(value.items())) + "}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
