"""`schema`: the forms of networks and settings as JSON Schema, for editors and for checks of manifests. It needs no node."""

from __future__ import annotations

import click

from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramGroup


@click.group("schema", cls=ProgramGroup)
def schema_command() -> None:
    """Print what can be written in a network, or in the settings, as JSON Schema (draft 2020-12)."""


@schema_command.command("network", examples=("userspace-cni schema network > network.schema.json",))
def network_command() -> None:
    """Print the JSON Schema of a network's configuration, as in spec.config of a NetworkAttachmentDefinition.

    It describes the values of each key. `lint` checks combinations of keys, and finds misspelt ones.
    """
    from userspace_cni.cni.network_schema import network_schema
    from userspace_cni.consumers import CONSUMERS

    view.show_json(network_schema(CONSUMERS))


@schema_command.command("settings", examples=("userspace-cni schema settings > settings.schema.json",))
def settings_command() -> None:
    """Print the JSON Schema of a settings file, which is TOML: editors that know TOML accept it.

    It describes the values of each key. Plugin and agent check how the administrator's tables fit together.
    """
    from userspace_cni.base.settings_schema import settings_schema

    view.show_json(settings_schema())
