"""The provider networks that commands have asked for: a file of the run directory, which a boot empties.

It has the form of the settings file. It is replaced in one step, so that no reader sees a part of it, and under a lock, so that
two commands at once do not lose one. Without the file nothing is known: a run directory that was emptied takes no uplink away,
and the file that the next command makes says until the node boots that it is not all.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from userspace_cni.base.errors import StepFailed, Undecodable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.provider_networks import read_provider_networks
from userspace_cni.network.spec_list import COMMANDS, Desired
from userspace_cni.node.belongings import COMMANDED

NAME, _LOCK, _NEW = COMMANDED
_TABLE: Final = "provider_network"
_HEADING: Final = f"[[{_TABLE}]]\n"
_INCOMPLETE: Final = "complete = false\n"
SAID_BY: Final = "nic-to-bridge"
"""Who says what stands there."""
_UNKNOWN: Final = Desired(COMMANDS, complete=False)


def read_command_specs(run_dir: str) -> Desired:
    """What commands spec; a file that cannot be read is no complete list."""
    try:
        return _read(Path(run_dir) / NAME)
    except UserspaceError as error:
        say("warning", "what commands have asked for cannot be read", error=error)
        return _UNKNOWN


def is_there(run_dir: str) -> bool:
    """Whether there is such a file."""
    return os.path.lexists(Path(run_dir) / NAME)


def add(run_dir: str, name: str, table: str, *, others: bool = False) -> str:
    """Add the network of that name, whose table in TOML is `table`, in the place of a former one; returns that one's, or "".

    `others`: the node has what commands asked for in this boot. A new file is no complete list then. Raises UserspaceError.
    """
    with _changing(run_dir, _INCOMPLETE if others else "") as tables:
        former = tables.get(name, "")
        tables[name] = table
    return former


def remove(run_dir: str, name: str) -> bool:
    """Remove the network of that name; whether it was there. It makes no file, and needs no directory. Raises UserspaceError."""
    if not (Path(run_dir) / NAME).exists():
        return False
    with _changing(run_dir) as tables:
        return tables.pop(name, None) is not None


def _read(path: Path) -> Desired:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return _UNKNOWN
    except (OSError, ValueError) as error:
        raise Undecodable(f"reading {path}: {error}", "remove it to forget what commands have asked for") from error
    try:
        raw = tomllib.loads(text)
    except ValueError as error:
        raise Undecodable(f"{path} is not TOML: {error}", "remove it to forget what commands have asked for") from error
    networks = tuple(replace(each, said_by=SAID_BY) for each in read_provider_networks(raw.get(_TABLE, []), str(path)))
    return Desired(COMMANDS, raw.get("complete", True) is True, networks)


@contextmanager
def _changing(run_dir: str, head: str = "") -> Iterator[dict[str, str]]:
    """The text of each table by its network's name, to be changed. `head`: what a new file begins with."""
    path = Path(run_dir) / NAME
    try:
        with _locked(run_dir):
            networks = _read(path).provider_networks
            there = path.exists()
            head, *blocks = (path.read_text() if there else head).split(_HEADING)
            tables = {each.name: f"{_HEADING}{block}" for each, block in zip(networks, blocks, strict=True)}
            yield tables
            if there or tables:
                new = path.with_name(_NEW)
                new.write_text(head + "".join(tables.values()))
                new.replace(path)
    except OSError as error:
        raise StepFailed(f"writing {path}: {error.strerror}", "see the setting run_dir") from error


@contextmanager
def _locked(run_dir: str) -> Iterator[None]:
    fd = os.open(f"{run_dir}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            os.close(fd)
