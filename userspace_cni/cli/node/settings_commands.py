"""`settings`: what is in force, where it was said, and what is wrong in a file.

No setting is a secret: keys and tokens are in files that settings name.
"""

from __future__ import annotations

import os

import click

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.misspelt import did_you_mean
from userspace_cni.base.setting_sources import find_faults, find_misspelt_variables, read_in_force
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, files
from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.name_completion import setting_names
from userspace_cni.cli.site import NodeCommand
from userspace_cni.cli.view import Cell

_HEADINGS = ("SETTING", "VALUE", "SOURCE")


@click.group("settings", cls=ProgramGroup)
def settings_command() -> None:
    """Show the settings in force and where they come from, and check a file before it is used."""


@settings_command.command(
    "show",
    cls=NodeCommand,
    short_help="Show each setting with its value and its source.",
    examples=(
        "userspace-cni settings show",
        "userspace-cni settings show --changed",
        "userspace-cni settings show state_dir log_level --json",
    ),
)
@click.argument("keys", nargs=-1, metavar="[KEY]...", shell_complete=setting_names)
@click.option("--changed", is_flag=True, help="Only those that a file or a variable says.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def show_command(ctx: click.Context, keys: tuple[str, ...], changed: bool, as_json: bool) -> None:
    """Show each setting, or those named, with its value and where it was said: a file with its line, a variable, or the default.

    They are the settings of this process, as the plugin as a process would read them here. A running agent has read its files at
    its start, with the variables of its own.

    Exit code: 0, 1 when a variable has no effect and is like one that has, 2 when a file or a value is wrong.
    """
    for key in keys:
        if key not in TABLE and key not in TABLES_OF_FILE:
            near = did_you_mean(key, [*TABLE, *TABLES_OF_FILE])
            raise InvalidConfig(f"there is no setting '{key}'", near or "userspace-cni settings show lists them")
    found = [
        each
        for each in read_in_force(os.environ)
        if (not keys or each.key in keys) and not (changed and each.source == "default")
    ]
    misspelt = find_misspelt_variables(os.environ)
    if as_json:
        problems = [{"variable": name, "details": question} for name, question in misspelt.items()]
        read = [path for path in files(os.environ) if os.path.exists(path)]  # noqa: PTH110 - as the settings spell it
        view.show_json({"files": read, "settings": [each.to_json() for each in found], "problems": problems})
    elif found:
        styles = {"default": "dim", "file": "", "environment": "bold"}
        view.show_table(_HEADINGS, [[each.key, each.shown_value, Cell(each.shown_source, styles[each.source])] for each in found])
    else:
        view.note("all settings have their defaults: no file and no variable says anything else")
    for name, question in misspelt.items():
        view.note(f"environment variable {name} has no effect; {question}")
    if misspelt:
        ctx.exit(FOUND)


@settings_command.command(
    "check",
    cls=NodeCommand,
    short_help="Report all that is wrong in a settings file.",
    examples=("userspace-cni settings check config.toml",),
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def check_command(ctx: click.Context, paths: tuple[str, ...], as_json: bool) -> None:
    """Report all that plugin and agent would refuse in settings files, not only the first of it. It needs no node.

    Whether directories are there, and what settings mean to each other, is not looked at.

    Exit code: 0 when nothing is wrong, 1 when something is, 2 for a file that is not there.
    """
    faults = [(path, line, error) for path in paths for line, error in find_faults(path)]
    if as_json:
        told = [{"file": path, "line": line, "error": each.message, "details": each.details} for path, line, each in faults]
        view.show_json({"checked": len(paths), "faults": told})
    for path, line, error in () if as_json else faults:
        text = str(error).removeprefix(f"settings file {path}").lstrip(":, ")
        view.say(Cell(f"{path}:{line}: " if line else f"{path}: ", "bold"), text)
    view.note(f"checked {view.format_count(len(paths), 'file')}: {view.format_count(len(faults), 'fault')}")
    if faults:
        ctx.exit(FOUND)
