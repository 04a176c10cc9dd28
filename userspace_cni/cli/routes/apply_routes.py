"""`routes apply`: checks a file of routes, and puts it where it takes effect: Route objects into the API, else the node's file.

A file with anything wrong is not applied at all: the caller of the command reads its output.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from userspace_cni.base.errors import Conflict, InvalidConfig, Unavailable, UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import DeadAgent, NoAgent, RoutesOff
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE, USAGE
from userspace_cni.cli.manifest_files import Unreadable, name_of, read_text
from userspace_cni.cli.name_completion import file_names
from userspace_cni.cli.routes import route_faults
from userspace_cni.cli.routes.asking import OFF
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.cli.view import Cell
from userspace_cni.routes.inspection import apply_object
from userspace_cni.routes.resource import RouteObject, without_services
from userspace_cni.routes.route_files import Faults, faults_in, has_objects, objects_in, parse, route_name, routes_in

_COLUMNS: Final = ("ROUTE", "STATE", "DETAILS")
_STYLES: Final = {"failed": "red", "refused": "red", "unchanged": "dim"}
_WOULD: Final = ("created", "changed", "written")
_OWNED: Final = "others, such as kubectl, own these fields (409): --force takes them over"
_MODE: Final = 0o644


@dataclass(frozen=True)
class _FileContent:
    """What a file has, none of it wrong. `objects`: one for each of `routes`; `are_objects`: they are Route objects there."""

    text: str
    objects: Sequence[Mapping[str, Any]]
    routes: Sequence[RouteObject]
    are_objects: bool


@dataclass
class _RouteOutcome:
    """What became of a Route: in a word, and what there is to say."""

    name: str
    state: str
    details: list[str]
    code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "details": self.details}


@click.command(
    "apply",
    cls=NodeCommand,
    examples=(
        "userspace-cni routes apply -f cr-config.yaml --dry-run",
        "userspace-cni routes apply -f routes.yaml",
    ),
)
@click.option(
    "-f",
    "--filename",
    required=True,
    metavar="FILE",
    shell_complete=file_names,
    help="Route objects or short entries, YAML or JSON; - for stdin.",
)
@click.option("--dry-run", is_flag=True, help="Apply nothing: only check it, and report what would be done.")
@click.option("--force", is_flag=True, help="Take over fields of these Route objects that others, such as kubectl, have set.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_context
def apply_command(ctx: click.Context, filename: str, dry_run: bool, force: bool, as_json: bool) -> None:
    """Check a file of routes, and apply it.

    Route objects go into the API, by server-side apply, where there are credentials of a cluster (setting kubeconfig, or the
    pod's). Entries of the short form, and Route objects without a cluster, become the node's file: that of the setting
    routes_file, which is replaced in one step; a running agent reads it at once.

    A file with any fault is not applied, and each fault is shown with its line. With --dry-run the API server is asked what it
    would do (dryRun=All), and nothing is stored.

    Exit code: 0 when all of it was applied, or would be with --dry-run; 1 when something is wrong or was refused; 2 for arguments
    that are wrong, or when the setting routes_file is needed and empty; 3 when the API server does not answer, or for a user who
    is not root and would write the node's file.
    """
    name, text = name_of(filename), _text(filename)
    try:
        data = parse(text, name)
        faults = faults_in(data, name)
    except InvalidConfig as error:
        raise CommandRefused(str(error), FOUND) from error
    if faults.count:
        _refuse(faults, name, text, dry_run=dry_run, as_json=as_json)
        ctx.exit(FOUND)
    site = open_site(ctx)
    content = _content(text, data, name)
    to_api = content.are_objects and site.drivers.installation.has_account
    path = "" if to_api else site.settings.routes_file
    if not to_api and not path:
        raise CommandRefused(_why_nowhere(are_objects=content.are_objects), USAGE)
    if to_api:
        done = _to_api(content, site, force=force, dry_run=dry_run)
    else:
        _require_readable(content, path)
        done = _to_file(content, path, site, dry_run=dry_run)
    target = "api" if to_api else path
    if as_json:
        view.show_json(_as_json(target, dry_run=dry_run, done=done))
    else:
        _show(done, target, dry_run=dry_run)
    ctx.exit(max((each.code for each in done), default=0))


def _content(text: str, data: Any, name: str) -> _FileContent:
    """What is in a file without faults. Raises Refused where the API and the agent could not take it."""
    try:
        return _FileContent(text, objects_in(data, name), routes_in(data, name), has_objects(data))
    except InvalidConfig as error:
        raise CommandRefused(str(error), FOUND) from error


def _text(filename: str) -> str:
    """What is in the file. Raises UsageError for one that cannot be opened, Refused for one without content."""
    name = name_of(filename)
    if Path(filename).is_dir():
        raise click.UsageError(f"{name} is a directory: name one file")
    try:
        text = read_text(filename)
    except Unreadable as error:
        raise CommandRefused(f"{name}: {error}; it must be YAML or JSON in UTF-8", FOUND) from error
    if all(not line.strip() or line.startswith(("#", "---")) for line in text.splitlines()):
        raise CommandRefused(f"{name}: there is nothing in it; a file without routes is []", FOUND)
    return text


def _refuse(faults: Faults, name: str, text: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        view.show_json({**_as_json("", dry_run=dry_run), **route_faults.describe(faults, text)})
        return
    route_faults.tell(faults, name, text)
    view.note(f"{view.format_count(faults.count, 'fault')} in {name}: nothing was applied")


def _as_json(target: str, *, dry_run: bool, done: Sequence[_RouteOutcome] = ()) -> dict[str, Any]:
    """As JSON values. `target`: "api", a path, or "" where the file was not applied anywhere."""
    routes = [each.to_json() for each in done]
    return {"target": target, "dry_run": dry_run, "routes": routes, "faults": [], "more_faults": 0}


def _why_nowhere(*, are_objects: bool) -> str:
    what = (
        "there are no credentials of a cluster (setting kubeconfig)" if are_objects else "entries of the short form are a node's"
    )
    return f"{what}, and the setting routes_file names no file for them: docs/routes.md"


def _require_readable(content: _FileContent, path: str) -> None:
    """Raise Refused where the agent would not read the text under the node's file's own name, as YAML in a `.json`."""
    try:
        objects_in(parse(content.text, path), path)
    except InvalidConfig as error:
        raise CommandRefused(str(error), FOUND) from error


# -- Route objects ---------------------------------------------------------------------------------------------------------------


def _to_api(content: _FileContent, site: Site, *, force: bool, dry_run: bool) -> list[_RouteOutcome]:
    """Apply each; one that is refused does not keep the others. A server that does not answer is not asked again."""
    done: list[_RouteOutcome] = []
    total = view.format_count(len(content.routes), "Route")
    with view.progress(f"applying {total}") as show:
        for thing, route in zip(content.objects, content.routes, strict=True):
            if done and done[-1].code == UNREACHABLE:
                done.append(
                    _RouteOutcome(route.name, "failed", ["not tried, because the API server did not answer"], UNREACHABLE)
                )
                continue
            show(f"applying {total}, {len(done)} done")
            try:
                state = apply_object(site.drivers.installation, thing, force=force, dry_run=dry_run)
                done.append(_RouteOutcome(route.name, state, list(route.remarks)))
            except Conflict:
                done.append(_RouteOutcome(route.name, "refused", [_OWNED], FOUND))
            except Unavailable as error:
                done.append(_RouteOutcome(route.name, "failed", [str(error)], UNREACHABLE))
            except UserspaceError as error:
                done.append(_RouteOutcome(route.name, "refused", [str(error)], FOUND))
    return done


# -- the node's file -------------------------------------------------------------------------------------------------------------


def _to_file(content: _FileContent, path: str, site: Site, *, dry_run: bool) -> list[_RouteOutcome]:
    """Make it the node's file, and have the agent read it."""
    real = Path(site.map_path(path))
    told: Sequence[Mapping[str, Any]] = ()
    state = "unchanged" if _is_same(real, content.text) else "written"
    if not dry_run:
        site.require_root(f"writing {path}")
        if state == "written":
            _write(real, content.text)
        told = _told(site, f"{path} is {state}; waiting for the agent to look at the pods")
    names = [each.name for each in content.routes] if content.are_objects else [route_name(path)]
    done = []
    for name, route in zip(names, content.routes, strict=True):
        found = next((each for each in told if each["name"] == name), None)
        details = [*route.remarks, *([] if site.drivers.installation.has_account else without_services(route).problems)]
        details += found["told"] if found else ()
        if found:
            details.append(f"applied in {found['pods']['applied']} of {view.format_count(found['pods']['matched'], 'pod')}")
        done.append(_RouteOutcome(name, state, details))
    return done


def _is_same(path: Path, text: str) -> bool:
    """Whether the file has this text; not where it cannot be read."""
    try:
        return path.is_file() and path.read_bytes() == text.encode()
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    """Replace the file in one step. Raises Refused."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with new.open("x", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()  # on a full disk the half of it takes the room of others
        raise CommandRefused(f"writing {path}: {error.strerror}; the former file is as it was", FOUND) from error


def _told(site: Site, meanwhile: str) -> Sequence[Mapping[str, Any]]:
    """Have the agent look: what it says of Routes; nothing, with a note, where it does not answer."""
    try:
        with view.progress(meanwhile):
            found = site.client.routes(look=True)
    except (NoAgent, DeadAgent):
        view.note("no agent runs here: the next one with routes = true makes them")
    except RoutesOff:
        view.note(OFF)
    except Unavailable as error:
        view.note(f"{error}; the agent reads the file by itself, too: see userspace-cni routes list")
    else:
        if problem := found["problems"].get("file"):
            raise CommandRefused(f"the agent cannot read it: {problem}", FOUND)
        return list(found["routes"])
    return ()


def _show(done: Sequence[_RouteOutcome], target: str, *, dry_run: bool) -> None:
    rows: list[list[Cell | str]] = []
    for each in done:
        state = f"would be {each.state}" if dry_run and each.state in _WOULD else each.state
        rows.append([each.name, Cell(state, _STYLES.get(each.state, "green")), "; ".join(each.details)])
    if rows:
        view.show_table(_COLUMNS, rows)
    if dry_run:
        view.note(f"a dry run for {'the API' if target == 'api' else target}: nothing was applied")
