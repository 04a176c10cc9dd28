"""Sets owner, group, mode and SELinux label of directories and sockets, on descriptors and never on a path.

A socket can only be opened with O_PATH, on which fchmod(2) and fsetxattr(2) fail with EBADF. /proc/self/fd/N leads to exactly the
object that was opened, for every type of object, so only that is used here.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH101, PTH123

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import Directory, PlacedSocket
from userspace_cni.base.beneath import refusal
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot

_SELINUX = "security.selinux"
_RANGE = re.compile(r"c([0-9]{1,4})(?:\.c([0-9]{1,4}))?")
"""One category, or a range of them. Policies have 1024."""
_ID_MAX = 2**32 - 2
"""The largest id; one more is (uid_t)-1, which chown(2) takes as "leave it"."""


@dataclass(frozen=True)
class Ownership:
    """The wanted owner, group, mode and label of an object; None and "" leave them as they are."""

    uid: int | None
    gid: int | None
    mode: int | None
    label: str

    @classmethod
    def of(cls, step: Directory | PlacedSocket, root: HostRoot = HERE) -> Ownership:
        """The step's ownership, with names resolved on this node. Raises DirectoryRefused for an unknown name."""
        return cls(user_id(step.user, root), group_id(step.group, root), step.mode, step.selinux_label)


def user_id(user: str, root: HostRoot = HERE) -> int | None:
    """The uid of a name or decimal number; None for ""."""
    if not user:
        return None
    number = _decimal(user)
    if number is not None:
        return number
    found = None
    if root.elsewhere:
        found = _listed(user, "/etc/passwd", root)
    else:
        import pwd

        with suppress(KeyError):
            found = pwd.getpwnam(user).pw_uid
    if found is None:
        raise DirectoryRefused(f"user {user!r}: unknown on this node", "vhost.user takes a name or a number")
    return found


def group_id(group: str, root: HostRoot = HERE) -> int | None:
    """The gid of a name or decimal number; None for ""."""
    if not group:
        return None
    number = _decimal(group)
    if number is not None:
        return number
    found = None
    if root.elsewhere:
        found = _listed(group, "/etc/group", root)
    else:
        import grp

        with suppress(KeyError):
            found = grp.getgrnam(group).gr_gid
    if found is None:
        raise DirectoryRefused(f"group {group!r}: unknown on this node", "vhost.group takes a name or a number")
    return found


def set_ownership(fd: int, wanted: Ownership, what: str) -> None:
    """Set `wanted` on the object that `fd` was opened on. Only what differs is written."""
    link = f"/proc/self/fd/{fd}"
    try:
        now = os.stat(fd)
        if wanted.uid not in {None, now.st_uid} or wanted.gid not in {None, now.st_gid}:
            os.chown(link, -1 if wanted.uid is None else wanted.uid, -1 if wanted.gid is None else wanted.gid)
        if wanted.mode not in {None, stat.S_IMODE(now.st_mode)}:
            os.chmod(link, wanted.mode or 0)
    except OSError as error:
        raise refusal(f"{what}: setting owner and mode", error) from error
    if wanted.label and not _is_same(_label(fd), wanted.label):
        try:
            os.setxattr(link, _SELINUX, wanted.label.encode() + b"\0")
        except OSError as error:
            raise refusal(f"{what}: setting SELinux label {wanted.label!r}", error) from error


def ownership_drift(fd: int, wanted: Ownership, what: str) -> list[Drift]:
    now = os.stat(fd)
    facts: list[tuple[str, Value | None, Value]] = [
        ("uid", wanted.uid, now.st_uid),
        ("gid", wanted.gid, now.st_gid),
        ("mode", None if wanted.mode is None else f"{wanted.mode:04o}", f"{stat.S_IMODE(now.st_mode):04o}"),
        ("SELinux label", wanted.label or None, _label_as(wanted.label, fd) or Absent("none")),
    ]
    return [Drift(what, name, expected, found) for name, expected, found in facts if expected is not None and expected != found]


def _listed(name: str, path: str, root: HostRoot) -> int | None:
    """The id of `name` in the host's passwd(5) or group(5), the third field of both; other sources of names are not used."""
    try:
        with open(root.path(path), encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(":")
                if fields[0] == name and len(fields) > 2:  # name, password, id
                    return _decimal(fields[2])
    except OSError as error:
        raise refusal(f"name {name!r}: reading the host's {path}", error) from error
    return None


def _label(fd: int) -> str | None:
    try:
        return os.getxattr(f"/proc/self/fd/{fd}", _SELINUX).rstrip(b"\0").decode(errors="replace")
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return None
        raise


def _label_as(wanted: str, fd: int) -> str | None:
    """The object's label; as it is wanted where it is that in other words, None where none is wanted."""
    found = _label(fd) if wanted else None
    return wanted if _is_same(found, wanted) else found


def _is_same(found: str | None, wanted: str) -> bool:
    """Whether both mean the same: the kernel writes categories in their order, three in a row as c0.c2, and a range of one level
    as that level.
    """
    return found == wanted or (found is not None and _meaning(found) == _meaning(wanted))


def _meaning(label: str) -> object:
    """The label with its levels, each as its sensitivity and ranges of categories; the text where it cannot be read so."""
    user, _, rest = label.partition(":")
    role, _, rest = rest.partition(":")
    kind, _, levels = rest.partition(":")
    low, _, high = levels.partition("-")
    try:
        return user, role, kind, _level(low), _level(high or low)
    except ValueError:
        return label


def _level(text: str) -> tuple[str, list[tuple[int, int]]]:
    sensitivity, _, categories = text.partition(":")
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(map(_range, filter(None, categories.split(",")))):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
        else:
            ranges.append((first, last))
    return sensitivity, ranges


def _range(text: str) -> tuple[int, int]:
    """The first and the last category of c3.c7, or of c3. Raises ValueError."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1]), int(found[2] or found[1])


def _decimal(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    if number > _ID_MAX:
        raise DirectoryRefused(f"id {text}: too large for a user or group", "vhost.user, vhost.group")
    return number
