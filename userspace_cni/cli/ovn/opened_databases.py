"""OVN's databases for a command, and how its changes are shown."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.deadline import Deadline
from userspace_cni.cli import view
from userspace_cni.cli.site import Site, open_site, patient
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.former_settings import FORMER_FILE

DATABASE_S: Final = 10.0
"""Seconds for one transaction or look, on a node that is not busy. A cluster of databases elects a leader meanwhile."""
_SIGNS: Final = {"insert": "+", "update": "~", "delete": "-"}


def open_databases(ctx: click.Context) -> tuple[Site, OvnDatabases]:
    """The node, and its way to OVN's databases. They are closed when the command ends."""
    site = open_site(ctx)
    site.require_root("asking OVN's databases and the switch")
    databases = OvnDatabases(site.settings, site.drivers.switch.ports.client, give_time(), site.map_path)
    ctx.call_on_close(databases.close)
    former = Path(site.map_path(FORMER_FILE))
    with suppress(FileNotFoundError):
        databases.read_former(former.read_text(errors="replace"))
    return site, databases


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
