"""Tables that commands write into the node's own settings file: what they ask for is there after a boot, too.

The file is replaced in one step. A table is refused where it would take the place of others that are in force.
"""

from __future__ import annotations

import fcntl
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import TABLES_OF_FILE, files
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.site import CommandRefused, Site, patient
from userspace_cni.network.spec_list import SETTINGS

LOCK_S: Final = 60.0
"""Seconds for which another command may hold the file, on a node that is not busy: it writes OVN's databases meanwhile."""
_PAUSE_S: Final = 0.05
_CALLED: Final[Mapping[str, tuple[str, str]]] = {
    "provider_network": ("name", "provider networks"),
    "gateway": ("port", "gateways"),
    "mirror": ("name", "mirrors"),
}
"""Of each table of specs, what its specs are called by, and what they are."""


@dataclass(frozen=True)
class FileChange:
    """Another text of the node's own settings file at `path`, judged and not yet written. `former`: the text that it replaces."""

    path: Path
    former: str
    text: str

    def write(self) -> bool:
        """Write it; whether it is another text. Raises CommandRefused."""
        if self.text == self.former:
            return False
        write(self.path, self.text)
        view.note(f"written to {self.path}")
        return True

    def prove(self) -> None:
        """Replace the file by itself, if it is to be written later: a mount, a flag or a right may forbid that, and what is
        written before it would be there without it. Raises CommandRefused."""
        if self.text == self.former:
            return
        if self.path.exists():
            write(self.path, self.former)
        else:
            _write_beside(self.path, "").unlink()


class FileLock:
    """Keeps other commands from the node's own settings file meanwhile: each replaces what it has read.

    The lock is that of the directory, which goes with the process, and leaves nothing. Where it cannot be taken, the block goes
    on, and may write nothing: `require` says so. Entering it raises CommandRefused where another command holds the file too long.
    """

    def __init__(self, site: Site) -> None:
        self._directory = own_file(site).parent
        self._why = ""

    def __enter__(self) -> Self:
        self._fd = -1
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _lock(self._fd, self._directory)
        except OSError as error:
            self._why = f"locking {self._directory}, where the settings are: {error.strerror}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def require(self) -> None:
        """Raise CommandRefused if the file is not held."""
        if self._why:
            raise CommandRefused(self._why, FOUND)


@contextmanager
def hold_file(site: Site) -> Iterator[None]:
    """Have the lock, for a command that writes in any case. Raises CommandRefused."""
    with FileLock(site) as lock:
        lock.require()
        yield


def append_table(site: Site, key: str, table: str) -> Callable[[], object]:
    """Add the table `key`, whose text is `table`, to the node's own settings file; returns what takes it back.

    Raises CommandRefused and UserspaceError.
    """
    path = own_file(site)
    with hold_file(site):
        former = read(path)
        end = _end_of_line(former)
        table = table.replace("\n", end)
        change = judge(site, key, FileChange(path, former, f"{former.rstrip()}{2 * end}{table}" if former.strip() else table))
        change.write()

    def take_back() -> None:
        with hold_file(site):
            found = read(path)  # another command may have written beside it
            write(path, former if found == change.text else found.replace(table, "", 1))

    return take_back


def plan_block(site: Site, key: str, by: str, table: str) -> FileChange:
    """The file with its part that is written `by` a command as the table `key` with this text, "" for no such part.

    It begins and ends with comments, so that the command finds it. Raises CommandRefused and UserspaceError.
    """
    path = own_file(site)
    former = read(path)
    end = _end_of_line(former)
    table = table.replace("\n", end)
    first, last = f"# written by {by}: begin{end}", f"# written by {by}: end{end}"
    head, found, rest = former.partition(first)
    _, ended, tail = rest.partition(last)
    if found and not ended:  # what follows may be an administrator's
        lacking = f"{path} has the line '{first.strip()}' and none '{last.strip()}'"
        raise CommandRefused(f"{lacking}: write that below the table of this command", FOUND)
    if not table:
        return judge(site, key, FileChange(path, former, f"{head}{tail}"))
    head = head if found or not head.strip() else f"{head.rstrip()}{2 * end}"
    return judge(site, key, FileChange(path, former, f"{head}{first}{table}{last}{tail}"))


def own_file(site: Site) -> Path:
    """The node's own settings file, which may be absent; where it is a link, the file at its end. Raises CommandRefused."""
    path = Path(files(site.environ)[-1])
    if not path.is_symlink() and not path.exists():
        return path
    if not path.is_file():
        raise CommandRefused(f"{path} is no file, and no link to one: the settings cannot be written there", FOUND)
    return path.resolve()


def read(path: Path) -> str:
    """Its text, with the ends of its lines as they are; "" of none. Raises CommandRefused."""
    try:
        return path.read_bytes().decode() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise CommandRefused(f"reading {path}: {error}", FOUND) from error


def judge(site: Site, key: str, change: FileChange) -> FileChange:
    """The change, if the file may have it: another table `key`. Raises CommandRefused, UserspaceError."""
    path, (name, what) = change.path, _CALLED[key]
    if change.text == change.former:
        return change
    known = _names(change.text, path)
    if not any(Path(each).exists() for each in files(site.environ)):
        records = site.node.store.journal.node_records()
        kept = [each.ifname for each in records if each.network == SETTINGS and each.ifname not in known]
        if kept:
            raise CommandRefused(
                f"the node has {view.join(sorted(kept))} of settings that are away, and {path}, recreated without them, would "
                "undo them: put the settings back first",
                FOUND,
            )
    in_force: Iterable[Any] = getattr(site.settings, TABLES_OF_FILE[key][0])
    if {getattr(each, name) for each in in_force} - known - _names(change.former, path):
        raise CommandRefused(
            f"the {what} of this node are in {view.join(files(site.environ)[:-1])}, and one in {path} takes the place of all "
            "of them: add it there, or write all of them here",
            FOUND,
        )
    nearest = next(each for each in path.parents if each.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CommandRefused(f"writing {path}: {nearest} cannot be written: look at its mount and its rights", FOUND)
    return change


def write(path: Path, text: str) -> None:
    """Replace the file in one step. It stays when it is empty: for the agent a file that went says nothing.

    Raises CommandRefused.
    """
    new = _write_beside(path, text)
    try:
        if path.exists():
            new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    except OSError as error:
        new.unlink()
        raise CommandRefused(
            f"replacing {path}: {error.strerror}: is it a mount of its own, or immutable (lsattr)?", FOUND
        ) from error


def _write_beside(path: Path, text: str) -> Path:
    """A file of this text that can take the other's place. Raises CommandRefused."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(text.encode())
    except OSError as error:
        raise CommandRefused(f"writing {new}: {error.strerror}", FOUND) from error
    return new


def _end_of_line(text: str) -> str:
    """How lines of the file end."""
    return "\r\n" if "\r\n" in text else "\n"


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


def _lock(fd: int, directory: Path) -> None:
    """Take the directory's lock. Raises CommandRefused when another process has it for too long."""
    deadline, told = patient(LOCK_S), False
    while deadline.remaining():
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told:
            view.note(f"another command writes the settings in {directory}: waiting for its end")
            told = True
        time.sleep(_PAUSE_S)
    raise CommandRefused(
        f"another command has held the settings in {directory} for {LOCK_S:g} s: ps has it, with userspace-cni in its line", FOUND
    )
