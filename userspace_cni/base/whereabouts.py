"""Where the agent of a call is: the few settings that say it, read without `settings`, the table of all.

The plugin as a process reads these before anything else is imported. Importing a TOML parser takes as long as starting the
interpreter, so it is imported only where the settings file may hold one of these keys. A wrong value is no error here: `settings`
reports it when this process serves the call itself. This module must import nothing slow.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

CLUSTER_FILE: Final = "/etc/userspace-cni-cluster/config.toml"
"""What holds for all nodes of a cluster: deploy/cluster mounts its ConfigMap there."""
CONFIG_FILE: Final = "/etc/userspace-cni/config.toml"
"""What the node's administrator says, over CLUSTER_FILE key by key."""
FILE_MAX: Final = 1 << 20
"""Bytes of the settings file."""
PREFIX: Final = "USERSPACE_CNI_"
STATE_DIR: Final = "/var/lib/cni/userspace"
RUN_DIR: Final = "/run/userspace-cni"
BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_DEFAULTS: Final[Mapping[str, object]] = {"state_dir": STATE_DIR, "run_dir": RUN_DIR, "socket": "", "hand_over": True}


class Whereabouts:
    """The agent that a call is for: its socket, and the directories that it must share. Paths as in `settings`."""

    __slots__ = ("run_dir", "socket", "state_dir")

    def __init__(self, socket: str, state_dir: str, run_dir: str) -> None:
        self.socket = socket
        self.state_dir = state_dir
        self.run_dir = run_dir


def whereabouts(environ: Mapping[str, str]) -> Whereabouts | None:
    """The agent by this environment and its settings file; None where they say `hand_over = false` or hold a wrong value."""
    named = environ.get(f"{PREFIX}CONFIG", "")
    values = dict(_DEFAULTS)
    for path in (named,) if named else (CLUSTER_FILE, CONFIG_FILE):
        found = _from_file(path, required=bool(named))
        if found is None:
            return None
        values |= found
    if not _are_good(values):
        return None
    for key in _DEFAULTS:
        text = environ.get(PREFIX + key.upper(), "")
        if text:
            values[key] = BOOLEANS.get(text.lower()) if key == "hand_over" else text
    if not values["hand_over"] or not _are_good(values):
        return None
    run_dir = normalize_path(str(values["run_dir"]))
    return Whereabouts(agent_socket(str(values["socket"]), run_dir), normalize_path(str(values["state_dir"])), run_dir)


def likely_socket(environ: Mapping[str, str]) -> str:
    """Where an agent's socket is most likely, also by settings that are wrong: for commands that only ask."""
    found = whereabouts(environ)
    if found:
        return found.socket
    return agent_socket(environ.get(f"{PREFIX}SOCKET", ""), environ.get(f"{PREFIX}RUN_DIR", "") or RUN_DIR)


def _are_good(values: Mapping[str, object]) -> bool:
    return (
        is_directory(values["state_dir"])
        and is_directory(values["run_dir"])
        and is_path(values["socket"], empty=True)
        and isinstance(values["hand_over"], bool)
    )


def agent_socket(socket: str, run_dir: str) -> str:
    return socket or f"{run_dir}/agent.sock"


def is_path(value: object, *, empty: bool) -> bool:
    """Whether it is an absolute path without "..", or "" where `empty` allows it."""
    if not isinstance(value, str):
        return False
    return (empty and not value) or (value.startswith("/") and "\0" not in value and ".." not in value.split("/"))


def is_directory(value: object) -> bool:
    """Whether it is the path of a directory other than the root."""
    return isinstance(value, str) and is_path(value, empty=False) and value.strip("/.") != ""


def normalize_path(path: str) -> str:
    """A directory's path in its one spelling, for comparing. It has one slash in front: normpath would keep two."""
    return os.path.normpath(f"/{path.lstrip('/')}")


def _from_file(path: str, *, required: bool) -> dict[str, object] | None:
    """The settings file's values of these keys; None for a file that cannot be used."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- pathlib costs 3 ms
            content = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        return None if required else {}
    except OSError:
        return None
    if len(content) > FILE_MAX:
        return None
    spelt = b"\n".join(line for line in content.splitlines() if not line.lstrip().startswith(b"#"))
    if b"\\" not in spelt and not any(key.encode() in spelt for key in _DEFAULTS):
        return {}  # a file without a backslash spells keys literally: none of them is in it, beside what comments say
    import tomllib

    try:
        raw = tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return None
    return {key: raw[key] for key in _DEFAULTS if key in raw}
