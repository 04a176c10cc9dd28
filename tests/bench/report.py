"""The command line of every benchmark, and its output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def machine() -> str:
    return f"{os.cpu_count()} cores, Linux {os.uname().release}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows --json; `description` is the module's docstring, shown as it is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


def tell(report: Mapping[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> int:
    """The report on stdout, by `show` or as JSON; the exit code."""
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(dict(report))
    return 0


def show_parts(title: str, report: Mapping[str, Any]) -> None:
    """A report of parts as a table: a row for each value of a part, and for each other value."""
    table = Table("", "", title=title)
    for name, value in report.items():
        for part, number in value.items() if isinstance(value, dict) else [("", value)]:
            table.add_row(f"{name} {part}".strip(), str(number))
    Console(width=160).print(table)
