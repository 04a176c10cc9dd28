"""Options of commands that write rows: how it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def ways(command: F) -> F:
    """Add them to the command."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="As a JSON object."),
        click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing."),
        click.option("--adopt", is_flag=True, help="Rows of these names that are not ours become ours."),
    ):
        command = option(command)
    return command
