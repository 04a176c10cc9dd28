"""`--version`: which build of the program this is. Only here, and in `support`, a clone's git is asked."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import click

from userspace_cni.pod.program_build import UNKNOWN, ProgramBuild, ask_git, describe_interpreter, recorded_build


def find_build() -> tuple[ProgramBuild, str]:
    """The build, and why its commit is not known, or ""."""
    build = recorded_build()
    if build.commit:
        return build, ""
    try:
        commit, committed = ask_git()
    except LookupError as error:
        return build, str(error)
    return replace(build, commit=commit, committed=committed), ""


def describe_build() -> dict[str, str]:
    """The build and what runs it, as JSON has them; what is not known is "". `reason`: why the commit is not known, or ""."""
    build, reason = find_build()
    return {**asdict(build), **describe_interpreter(), "reason": reason}


def show_build(*, as_json: bool) -> None:
    """Print the build."""
    told = describe_build()
    if as_json:
        click.echo(json.dumps(told))
        return
    click.echo(f"userspace-cni {told['version'] or UNKNOWN}")
    commit = told["commit"] or f"{UNKNOWN}: {told['reason']}"
    rows = {"commit": commit, "committed": told["committed"] or UNKNOWN, "Python": told["python"]}
    for name, value in {**rows, "architecture": told["architecture"]}.items():
        click.echo(f"{name + ':':<14}{value}")
