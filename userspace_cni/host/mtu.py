"""The MTU that the node says for networks that say none: a setting, or a file that another program keeps.

openshift-sdn writes such a file (`{"mtu": 1450, "routableMTU": 1400}`) once it knows the cluster's network. While it is absent
the MTU is not known yet, and nothing may be guessed: two ends that differ lose frames without a word.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.errors import PASSING, InvalidConfig, Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import MTU_MAX, MTU_MIN, Settings

USUAL: Final = 1500
_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class NodeMtu:
    """In bytes. `routable`: what routes are to have, None for what links have; by it an MTU is lowered under running pods."""

    link: int = USUAL
    routable: int | None = None


def node_mtu(settings: Settings, root: HostRoot = HERE) -> NodeMtu:
    """What holds for a network that says no MTU: the setting `mtu`, else the file `mtu_file`, else 1500.

    Raises Unavailable while the file is not there or cannot be read now, InvalidConfig for a file that is none of the
    administrator's, or says nothing that can be meant.
    """
    if settings.mtu or not settings.mtu_file:
        return NodeMtu(settings.mtu or USUAL)
    what = f"setting mtu_file, {settings.mtu_file}"
    said = _read(settings.mtu_file, what, root)
    for key, value in said.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not MTU_MIN <= value <= MTU_MAX):
            raise InvalidConfig(f"{what}: '{key}' is {value!r}", f"it must be from {MTU_MIN} to {MTU_MAX}")
    link, routable = said["mtu"], said["routableMTU"]
    if link is None:
        raise InvalidConfig(f"{what}: it has no 'mtu'", 'it must be as {"mtu": 1450, "routableMTU": 1400}')
    return NodeMtu(link, None if routable is None else min(link, routable))


def _read(path: str, what: str, root: HostRoot) -> dict[str, Any]:
    """The values of the file."""
    try:
        fd = os.open(root.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unavailable(
            f"{what}: the node's MTU is not yet available", "who writes this file? else give the setting mtu"
        ) from None
    except OSError as error:
        wrong = Unavailable if error.errno in PASSING else InvalidConfig
        raise wrong(f"{what}: {error.strerror}", "it must be a regular file") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidConfig(f"{what}: not a regular file", "it must be one")
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InvalidConfig(
                f"{what}: it belongs to user {facts.st_uid}, with mode {stat.S_IMODE(facts.st_mode):o}",
                "it must be root's, writable by root alone",
            )
        text = os.read(fd, _BYTES_MAX + 1)
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror}", "try again later") from None
    finally:
        os.close(fd)
    try:
        if len(text) > _BYTES_MAX:
            raise ValueError(f"more than {_BYTES_MAX} bytes")
        held = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{what}: {error}", 'it must be as {"mtu": 1450, "routableMTU": 1400}') from None
    if not isinstance(held, dict):
        raise InvalidConfig(f"{what}: no JSON object", 'it must be as {"mtu": 1450, "routableMTU": 1400}')
    return {key: held.get(key) for key in ("mtu", "routableMTU")}
