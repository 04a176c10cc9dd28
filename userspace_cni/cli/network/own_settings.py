"""Tables that commands write into the node's own settings file: what they ask for is there after a boot, too.

The file is replaced in one step. A table is refused where it would take the place of others that are in force.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import TABLES_OF_FILE, files
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.network.spec_list import SETTINGS

_CALLED: Final[Mapping[str, tuple[str, str]]] = {
    "provider_network": ("name", "provider networks"),
    "gateway": ("port", "gateways"),
    "mirror": ("name", "mirrors"),
}
"""Of each table of specs, what its specs are called by, and what they are."""


def append_table(site: Site, key: str, table: str) -> Callable[[], object]:
    """Add the table `key`, whose text is `table`, to the node's own settings file; returns what takes it back.

    Raises CommandRefused and UserspaceError.
    """
    path = own_file(site)
    former = read(path)
    return write_changed(site, key, former, f"{former.rstrip()}\n\n{table}" if former.strip() else table)


def replace_block(site: Site, key: str, by: str, table: str) -> bool:
    """Have the file's part that is written `by` a command be the table `key` with this text; whether it was another.

    It begins and ends with comments, so that the command finds it. Raises CommandRefused and UserspaceError.
    """
    former = read(own_file(site))
    first, last = f"# written by {by}: begin\n", f"# written by {by}: end\n"
    head, found, rest = former.partition(first)
    _, ended, tail = rest.partition(last)
    if found and not ended:  # what follows may be an administrator's
        lacking = f"{own_file(site)} has the line '{first.strip()}' and none '{last.strip()}'"
        raise CommandRefused(f"{lacking}: write that below the table of this command", FOUND)
    head = head if found or not head.strip() else f"{head.rstrip()}\n\n"
    text = f"{head}{first}{table}{last}{tail}"
    if text == former:
        return False
    write_changed(site, key, former, text)
    return True


def own_file(site: Site) -> Path:
    """The node's own settings file, which may be absent."""
    return Path(files(site.environ)[-1])


def read(path: Path) -> str:
    """Its text; "" of none. Raises CommandRefused."""
    try:
        return path.read_text() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise CommandRefused(f"reading {path}: {error}", FOUND) from error


def write_changed(site: Site, key: str, former: str, text: str) -> Callable[[], object]:
    """Write the settings file with another table `key`; returns what takes that back. Raises CommandRefused, UserspaceError."""
    path, (name, what) = own_file(site), _CALLED[key]
    known = _names(text, path)
    if not any(Path(each).exists() for each in files(site.environ)):
        records = site.node.store.journal.node_records()
        kept = [each.ifname for each in records if each.network == SETTINGS and each.ifname not in known]
        if kept:
            raise CommandRefused(
                f"the node has {view.join(sorted(kept))} of settings that are away, and {path}, made anew without them, would "
                "undo them: put the settings back first",
                FOUND,
            )
    in_force: Iterable[Any] = getattr(site.settings, TABLES_OF_FILE[key][0])
    if {getattr(each, name) for each in in_force} - known - _names(former, path):
        raise CommandRefused(
            f"the {what} of this node are in {view.join(files(site.environ)[:-1])}, and one in {path} takes the place of all "
            "of them: add it there, or write all of them here",
            FOUND,
        )
    write(path, text)
    view.note(f"written to {path}")
    return lambda: write(path, former)


def write(path: Path, text: str) -> None:
    """Replace the file in one step. It stays when it is empty: for the agent a file that went says nothing.

    Raises CommandRefused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        if path.exists():
            new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    except OSError as error:
        raise CommandRefused(f"writing {path}: {error.strerror}", FOUND) from error


def _names(text: str, path: Path) -> set[str]:
    """What the specs of the file with this text are called. Raises InvalidConfig."""
    try:
        raw = tomllib.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"settings file {path} is not TOML", str(error)) from error
    return {
        getattr(each, name)
        for key, (name, _) in _CALLED.items()
        for each in TABLES_OF_FILE[key][1](raw.get(key, []), f"settings file {path}")  # type: ignore[attr-defined]
    }
