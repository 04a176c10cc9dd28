"""Frees the socket name at which the application binds, also after a crash.

An application that was killed leaves its socket, and DPDK's bind(2) then fails with "Address already in use". So the dead socket
is removed right before the application starts. Must never remove a socket that a process has, and never connect to one as a
vhost-user peer does: that could take the place of the real peer. The kernel refuses a connect of another socket type without
asking the listener.
"""
# Descriptors and single names rather than paths: what was judged is what is removed.

from __future__ import annotations

import os
import socket
import stat


def free_name(path: str) -> bool:
    """Remove the socket at `path` if no process has it; whether it was removed. Raises OSError."""
    directory, name = os.path.split(path)
    try:
        dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _free(dirfd, name)
        finally:
            os.close(dirfd)
    except FileNotFoundError:
        return False


def _free(dirfd: int, name: str) -> bool:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    try:
        if not _is_dead(fd) or not os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=dirfd, follow_symlinks=False)):
            return False
        os.unlink(name, dir_fd=dirfd)
    finally:
        os.close(fd)
    return True


def _is_dead(fd: int) -> bool:
    """Whether it is a socket that no process has, in any network namespace; False when that cannot be known."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        try:
            other.connect(f"/proc/self/fd/{fd}")
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False
