"""The host's root directory as this process sees it: "/" on the host itself, for example "/host" for an agent in a container.

Settings, records, steps, CNI variables and OVSDB hold the host's paths, so that an agent in a container, a plugin on the host and
the switch mean the same file by the same name. A path is translated where a system call is made, and nowhere else: a path that
begins with the container's prefix must never be recorded or given to OVS.

Only trusted paths may be translated (settings, CNI_NETNS, CNI_PATH, paths from an administrator or the runtime): a pod could
exchange a link between the translation and the use. Paths below a directory that a pod can write are opened by `beneath`.
"""
# Paths of another root: pathlib and os.path would resolve them in ours.
# ruff: noqa: PTH112, PTH115

from __future__ import annotations

import os
from typing import Final

from userspace_cni.base.errors import DirectoryRefused

_LINKS_MAX = 40
"""How many links the kernel follows in one path (path_resolution(7))."""


class HostRoot:
    """The directory `root`, below which this process sees the host's files at their own paths."""

    def __init__(self, root: str = "/") -> None:
        self._prefix = root.rstrip("/")

    def __repr__(self) -> str:
        return f"HostRoot({self.directory!r})"

    @property
    def directory(self) -> str:
        return self._prefix or "/"

    @property
    def elsewhere(self) -> bool:
        """Whether it is another directory than this process's own root."""
        return bool(self._prefix)

    def path(self, path: str) -> str:
        """Translate the host's `path` (absolute) to the path by which this process reaches it; on the host, `path` itself.

        Links are followed as the host would follow them: /var/run -> /run stays below the root. Components that do not exist are
        kept, so that they can be made. Raises DirectoryRefused for links that lead in a circle.
        """
        return (self._prefix + self.resolve(path)).rstrip("/") if self._prefix else path

    def resolve(self, path: str) -> str:
        """The host's `path` (absolute) with every link in it followed. Raises DirectoryRefused as `path` does."""
        if not self._prefix:
            try:
                return os.path.realpath(path)
            except OSError as error:
                raise DirectoryRefused(f"path {path}: a link in it went while it was followed", str(error.strerror)) from error
            except ValueError:  # a NUL: no file has such a name
                return path
        left = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                del done[-1:]
            elif name not in ("", "."):
                target = self._link([*done, name])
                if target is None:
                    done.append(name)
                    continue
                links += 1
                if links > _LINKS_MAX:
                    raise DirectoryRefused(f"path {path}: its links lead in a circle", f"seen below {self.directory}")
                if target.startswith("/"):
                    done.clear()
                left += target.split("/")[::-1]
        return "/" + "/".join(done)

    def is_directory(self, path: str) -> bool:
        """Whether the host has a directory at `path` (absolute), links followed. Raises DirectoryRefused as `path` does."""
        return os.path.isdir(self.path(path))  # pathlib fails for a name that is too long

    def exists(self, path: str) -> bool:
        """Whether the host has something at `path` (absolute), links followed. Raises DirectoryRefused as `path` does."""
        return os.path.exists(self.path(path))  # noqa: PTH110

    def _link(self, components: list[str]) -> str | None:
        """The target of the link; None when there is no link. Not of links in proc(5): the kernel follows them."""
        if components[0] == "proc" and len(components) > 1:
            return None
        try:
            return os.readlink(f"{self._prefix}/{'/'.join(components)}")
        except (OSError, ValueError):
            return None


HERE: Final = HostRoot("/")
"""The root of a process on the host itself: every path is its own translation."""
