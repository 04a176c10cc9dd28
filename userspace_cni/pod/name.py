"""Frees the socket name at which the application binds, also after a crash.

An application that was killed leaves its socket, and DPDK's bind(2) then fails with "Address already in use". So the dead socket
is removed right before the application starts. Must never remove a socket that a process has, also one that is bound and does not
listen yet, nor anything that is no socket; and never connect to one as a vhost-user peer does: that could take the place of the
real peer. The kernel refuses a connect of another socket type without asking the listener.
"""
# Descriptors and single names rather than paths: what was judged is what is removed.

from __future__ import annotations

import errno
import os
import socket
import stat

REMOVED = "removed the socket of an application that was killed"
_UNTIL = "until it is gone, the application cannot bind there"
_LATER = "the node's agent removes it within seconds: start the application again then"


def free_name(path: str) -> str:
    """Remove the socket at `path` if no process has it.

    Returns REMOVED, or what may keep the application from binding and what to do about it; "" when nothing does. Never fails.
    """
    directory, name = os.path.split(path)
    try:
        dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _free(dirfd, name)
        finally:
            os.close(dirfd)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return f"whether the name is free cannot be told: {getattr(error, 'strerror', '') or error}"


def _free(dirfd: int, name: str) -> str:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISSOCK(facts.st_mode):
            return f"what is there is not a socket, and is left alone: {_UNTIL}"
        refusal = _refusal(fd)
        if refusal in (errno.EACCES, errno.EPERM):
            return f"{_whose(facts)}, who may not look whether a process has it. If its application was killed, {_remedy(facts)}"
        if refusal != errno.ECONNREFUSED or not os.path.samestat(facts, os.stat(name, dir_fd=dirfd, follow_symlinks=False)):
            return ""
        return _removed(dirfd, name, facts)
    finally:
        os.close(fd)


def _removed(dirfd: int, name: str, facts: os.stat_result) -> str:
    """Remove the dead socket, or say why that cannot be and what to do."""
    try:
        os.unlink(name, dir_fd=dirfd)
    except FileNotFoundError:
        return ""
    except OSError as error:
        what = f"the socket of an application that was killed cannot be removed: {error.strerror}"
        if error.errno == errno.EROFS:
            return f"{what}. The volume is mounted read-only here: mount it without readOnly; {_LATER}"
        directory = os.fstat(dirfd)
        where = f"its directory is user {directory.st_uid}'s, mode {stat.S_IMODE(directory.st_mode):o}"
        return f"{what}. {_whose(facts)}; {where}; {_remedy(facts)}"
    return REMOVED


def _refusal(fd: int) -> int | None:
    """The error of a connect of another type to the socket: ECONNREFUSED when no process has it, in any network namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        try:
            other.connect(f"/proc/self/fd/{fd}")
        except OSError as error:
            return error.errno
    return None


def _whose(facts: os.stat_result) -> str:
    return f"It is a socket of user {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}, and this is user {os.geteuid()}"


def _remedy(facts: os.stat_result) -> str:
    return f"{_LATER}; or run this as user {facts.st_uid}"
