"""The files that a runtime executes as this plugin: what they are, and which agent they call.

Only the installed file shows whether calls need the agent: without this, a node whose agent is down would look good. Nothing is
executed; a file that cannot be read is mentioned, and nothing is concluded from it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import click

from userspace_cni import shim
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cli.node.install import NAME, NAMES, is_plugin
from userspace_cni.cli.site import Site

USUAL: Final = (
    *("/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni", "/usr/local/libexec/cni", "/usr/local/lib/cni"),
    *("/var/lib/rancher/k3s/data/cni", "/var/snap/microk8s/current/opt/cni/bin"),
)
"""Where known runtimes look for plugins by default."""
_LARGEST: Final = 8 << 20
"""Bytes that are read at most; the binary has some ten thousand."""


class DirectoryName(click.Path):
    """An option that names a directory: never "", which would mean the directory that the command runs in."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it names no directory", param, ctx)
        return super().convert(value, param, ctx)


@dataclass(frozen=True)
class Plugin:
    """A file that a runtime executes as this plugin, by its path on the host.

    `kind`: `binary`, which hands each call to an agent; `in-process`, which needs none; `other`, which is not ours. `socket` and
    `state_dir` are the settings in a binary, "" when they cannot be read; `problem`: why they cannot, or how they differ from the
    settings in force; `meant`: whether a binary calls the agent of the settings in force. `build`: the summary of the build that
    a binary is of, "" where it does not say it.
    """

    path: str
    kind: Literal["binary", "in-process", "other"]
    socket: str = ""
    state_dir: str = ""
    meant: bool = False
    problem: str = ""
    build: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def directories(given: Iterable[str], cni_path: str) -> tuple[str, ...]:
    """The directories to look in: those given, else those of CNI_PATH, else the usual ones."""
    return tuple(given) or tuple(path for path in cni_path.split(":") if path.startswith("/")) or USUAL


def plugins(site: Site, where: Iterable[str]) -> list[Plugin]:
    """The plugins in these directories of the host; a directory that has two names counts once."""
    found: dict[tuple[int, int], Plugin] = {}
    for path in (f"{directory.rstrip('/')}/{name}" for directory in where for name in NAMES):
        try:
            seen = Path(site.map_path(path))
            facts = seen.stat()
            if (facts.st_dev, facts.st_ino) not in found:
                plugin = _plugin(path, _content(seen, facts), site)
                if plugin.kind == "other" and not path.endswith(f"/{NAME}"):
                    continue  # ovs-cni has files of these names
                if plugin.kind == "binary" and not plugin.problem and not facts.st_mode & 0o111:
                    mode = f"mode {stat.S_IMODE(facts.st_mode):04o}"
                    plugin = replace(plugin, meant=False, problem=f"and cannot be executed ({mode}): chmod 755 {path}")
                found[facts.st_dev, facts.st_ino] = plugin
        except FileNotFoundError:
            continue
        except (OSError, UserspaceError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            found[0, len(found)] = Plugin(path, "other", problem=f"it cannot be looked at: {reason}")
    return list(found.values())


def _content(path: Path, facts: os.stat_result) -> bytes:
    """The file's bytes; b"" when it is no regular file, or too large to be ours."""
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
        return b""
    with path.open("rb") as file:
        return file.read(_LARGEST)


def _plugin(path: str, content: bytes, site: Site) -> Plugin:
    again = f"run `userspace-cni install --bin-dir {path.rpartition('/')[0]}` again"
    try:
        carried = shim.read_settings(content)
    except ValueError as error:
        return Plugin(path, "binary", problem=f"{error}: which agent it calls cannot be read; {again}")
    if carried is None:
        return Plugin(path, "in-process" if is_plugin(content) else "other")
    socket, state_dir, settings = carried.agent_socket, carried.state_dir, site.settings
    meant = _same(site, socket, settings.agent_socket) and _same(site, state_dir, settings.state_dir)
    differs = (
        f"with records in {state_dir}, and the settings in force say {settings.agent_socket} and {settings.state_dir}; "
        f"if these are right, {again}, else use the settings that it was installed with"
    )
    return Plugin(path, "binary", socket, state_dir, meant, "" if meant else differs, shim.read_build(content))


def _same(site: Site, one: str, other: str) -> bool:
    """Whether two paths of the host are the same, with links followed as the agent follows those of a call."""
    return one == other or site.resolve(one) == site.resolve(other)
