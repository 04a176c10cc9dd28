"""`routes apply`: checks a file of routes, and puts it where it takes effect: Route objects into the API, else the node's file.

A file with anything wrong is not applied at all: who applies it looks at what is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.errors import Conflict, InvalidConfig, Unavailable, UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.client import DeadAgent, NoAgent, RoutesOff
from userspace_cni.cli.manifests import Unreadable, name_of, read_text
from userspace_cni.cli.routes.asking import OFF
from userspace_cni.cli.site import FOUND, UNREACHABLE, USAGE, NodeCommand, Refused, Site, open_site
from userspace_cni.cli.view import Cell, Column
from userspace_cni.routes.files import objects_in, parsed, route_name, routes_in
from userspace_cni.routes.inspection import apply_object
from userspace_cni.routes.resource import Route, without_services

_COLUMNS: Final = (Column("ROUTE"), Column("STATE"), Column("DETAILS"))
_STYLES: Final = {"wrong": "red", "failed": "red", "unchanged": "dim", "valid": "green"}
_MODE: Final = 0o644


@dataclass(frozen=True)
class _Content:
    """What a file has. `objects`: as they were read, one for each of `routes`; `are_objects`: they are Route objects there."""

    text: str
    objects: Sequence[Mapping[str, Any]]
    routes: Sequence[Route]
    are_objects: bool


@dataclass
class _Done:
    """What became of a Route: in a word, and what there is to say."""

    name: str
    state: str
    details: list[str]
    code: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"name": self.name, "state": self.state, "details": self.details}


@click.command("apply", cls=NodeCommand, short_help="Check a file of routes, and apply it.")
@click.option(
    "-f", "--filename", required=True, metavar="FILE", help="Route objects or short entries, YAML or JSON; - for stdin."
)
@click.option("--dry-run", is_flag=True, help="Only check it, and tell where it would go.")
@click.option("--force", is_flag=True, help="Take over what others, as kubectl, have said of these Route objects.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def apply_command(ctx: click.Context, filename: str, dry_run: bool, force: bool, as_json: bool) -> None:
    """Check a file of routes, and apply it.

    Route objects go into the API, by server-side apply, where there are credentials of a cluster (setting kubeconfig, or the
    pod's). Entries of the short form, and Route objects without a cluster, become the node's file: that of the setting
    routes_file, which is replaced in one step; a running agent reads it at once.

    A file with anything wrong is not applied. Exit code: 0 when all of it was applied, or is valid with --dry-run; 1 when
    something is wrong or was refused; 2 for arguments that are wrong, or when the setting routes_file is needed and empty; 3 when
    the API server does not answer, or for a user who is not root.
    """
    content = _read(filename)
    site = open_site(ctx)
    to_api = content.are_objects and site.drivers.has_account()
    path = "" if to_api else site.settings.routes_file
    if not to_api and not path:
        raise Refused(_why_nowhere(are_objects=content.are_objects), USAGE)
    done = _checked(content, to_api=to_api, has_api=site.drivers.has_account())
    if not to_api:
        _require_readable(content, path)
    if all(each.state == "valid" for each in done) and not dry_run:
        with view.progress(f"applying {view.counted(len(done), 'Route')}"):
            done = _to_api(content, site, force=force) if to_api else _to_file(content, path, site, done)
    if as_json:
        view.show_json({"target": "api" if to_api else path, "dry_run": dry_run, "routes": [each.to_json() for each in done]})
    else:
        _show(done, "the API" if to_api else path, dry_run=dry_run)
    ctx.exit(max((each.code for each in done), default=0))


def _read(filename: str) -> _Content:
    """The file. Raises UsageError for one that cannot be opened, Refused for one that is no file of routes."""
    name = name_of(filename)
    try:
        text = read_text(filename)
        if all(not line.strip() or line.startswith(("#", "---")) for line in text.splitlines()):
            raise Refused(f"{name}: there is nothing in it; a file without routes is []", FOUND)
        data = parsed(text, name)
        objects, routes = objects_in(data, name), routes_in(data, name)
    except Unreadable as error:
        raise Refused(f"{name}: {error}; {error.remedy}", FOUND) from error
    except InvalidConfig as error:
        raise Refused(str(error), FOUND) from error
    things = data if isinstance(data, list) else [data]
    return _Content(
        text, objects, routes, any(isinstance(each, dict) and {"kind", "apiVersion"} & each.keys() for each in things)
    )


def _why_nowhere(*, are_objects: bool) -> str:
    what = (
        "there are no credentials of a cluster (setting kubeconfig)" if are_objects else "entries of the short form are a node's"
    )
    return f"{what}, and the setting routes_file names no file for them: docs/routes.md"


def _checked(content: _Content, *, to_api: bool, has_api: bool) -> list[_Done]:
    """What is wrong of each Route, and what has no effect."""
    done = []
    for route in content.routes:
        remarks = list(route.remarks)
        if not to_api and not has_api:
            remarks += [each for each in without_services(route).problems if each not in route.problems]
        wrong = bool(route.problems)
        done.append(_Done(route.name or "?", "wrong" if wrong else "valid", [*route.problems, *remarks], FOUND if wrong else 0))
    return done


def _require_readable(content: _Content, path: str) -> None:
    """Raise Refused where the agent would not read the text under the node's file's own name, as YAML in a `.json`."""
    try:
        objects_in(parsed(content.text, path), path)
    except InvalidConfig as error:
        raise Refused(str(error), FOUND) from error


# -- Route objects ---------------------------------------------------------------------------------------------------------------


def _to_api(content: _Content, site: Site, *, force: bool) -> list[_Done]:
    """Apply each; one that is refused does not keep the others."""
    done = []
    for thing, route in zip(content.objects, content.routes, strict=True):
        try:
            done.append(_Done(route.name, apply_object(site.drivers, thing, force=force), list(route.remarks)))
        except Conflict as error:
            hint = "others, as kubectl, have said something else of it: --force takes that over"
            done.append(_Done(route.name, "failed", [f"{error.message}; {hint}"], FOUND))
        except Unavailable as error:
            done.append(_Done(route.name, "failed", [str(error)], UNREACHABLE))
        except UserspaceError as error:
            done.append(_Done(route.name, "failed", [str(error)], FOUND))
    return done


# -- the node's file -------------------------------------------------------------------------------------------------------------


def _to_file(content: _Content, path: str, site: Site, checked: Sequence[_Done]) -> list[_Done]:
    """Make it the node's file, and have the agent read it."""
    site.require_root(f"writing {path}")
    state = "written" if _write(Path(site.seen(path)), content.text) else "unchanged"
    told = _told(site)
    names = [each.name for each in checked] if content.are_objects else [route_name(path)]
    done = []
    for name, each in zip(names, checked, strict=True):
        found = next((route for route in told if route["name"] == name), None)
        details = [*each.details, *(found["told"] if found else ())]
        if found:
            details.append(f"{view.counted(found['pods']['matched'], 'pod')}, in {found['pods']['applied']} applied")
        done.append(_Done(name, state, details))
    return done


def _write(path: Path, text: str) -> bool:
    """Replace the file in one step; False where it is the same already. Raises Refused."""
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        with new.open("w", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise Refused(f"writing {path}: {error.strerror}", FOUND) from error
    return True


def _told(site: Site) -> Sequence[Mapping[str, Any]]:
    """Have the agent look: what it says of Routes; nothing, with a note, where it does not answer."""
    try:
        found = site.client.routes(look=True)
    except (NoAgent, DeadAgent):
        view.note("no agent runs here: the next one with routes = true makes them")
    except RoutesOff:
        view.note(OFF)
    except Unavailable as error:
        view.note(f"{error}; the agent reads the file by itself, too: see userspace-cni routes list")
    else:
        if problem := found["problems"].get("file"):
            raise Refused(f"the agent cannot read it: {problem}", FOUND)
        return list(found["routes"])
    return ()


def _show(done: Sequence[_Done], target: str, *, dry_run: bool) -> None:
    rows: list[list[Cell | str]] = [
        [each.name, Cell(each.state, _STYLES.get(each.state, "green")), "; ".join(each.details)] for each in done
    ]
    if rows:
        view.show_table(_COLUMNS, rows)
    if any(each.state == "wrong" for each in done):
        view.note("nothing was applied")
    elif dry_run:
        view.note(f"it would go to {target}; nothing was applied")
