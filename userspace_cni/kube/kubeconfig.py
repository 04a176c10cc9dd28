"""Reads a kubeconfig as root: where it may lie, which users may have written it, and what may be done for it.

A network's configuration names a file, and a user of a namespace writes that configuration. So such a kubeconfig, and every file
that it names, must lie below directories of the administrator; a file that a container can write is never taken (a pod's root is
root, and the kubelet keeps its /etc/hosts for it on the node); and no program is run for it unless a setting allows that. A
kubeconfig that a setting names is the administrator's own: only owner and mode are checked.

A path is resolved once, to a text without links. That text is then walked without following links, one descriptor after the
other. Each is checked, and the last one is read, so that no file can be exchanged between check and use. The library that makes
credentials gets the files' content and opens none of them. What a file holds must never be part of a message.

A file that is missing or no kubeconfig stays so until it is written: that is no "try again later", but a fault of the
configuration that names it. In the first minutes after a boot it is "try again later": its writer (Multus' pod, a node's set-up)
may start after the first pod that needs it.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH116, PTH118, PTH120

from __future__ import annotations

import base64
import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.beneath import reopen
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig, Unavailable, UserspaceError
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.linux import paths

Signature = tuple[int, ...]
"""Facts of a file that change when it is written or exchanged: device, inode, size, time."""

CONTAINERS: Final = (
    *("/run/containerd", "/var/lib/containerd", "/run/docker", "/var/lib/docker", "/run/crio", "/var/lib/crio"),
    *("/run/containers", "/var/lib/containers", "/run/podman", "/run/libpod", "/run/runc", "/run/netns", "/proc"),
    *("/run/k3s", "/var/lib/rancher/k3s/agent/containerd", "/var/lib/rancher/k3s/storage"),
    *("/var/lib/rancher/rke2/agent/containerd", "/var/snap/microk8s/common/run", "/var/snap/microk8s/common/var/lib/containerd"),
    *("/var/lib/k0s/containerd", "/run/k0s", "/opt/local-path-provisioner"),
)
"""Where container runtimes keep containers' file systems, volumes and processes. A pod's root writes there as root, so that owner
and mode prove nothing; credentials are never taken from there, whatever a setting says."""

_LIMIT: Final = 1 << 20
BOOTING_S: Final = 300.0
"""For so long after a boot a kubeconfig may be missing or incomplete."""
_LASTING: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
)
"""Errors of opening a file that stay until an administrator changes something."""
_FILES: Final = {
    "tokenFile": "token",
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
}
"""Keys of user and cluster that name a file, and the keys that hold its content. Given both, the content is used."""

_PROGRAMS: Final = ("exec", "auth-provider")
"""Keys of a user for which the library runs a program, or asks a server of its own."""
_KEYS: Final = frozenset(
    {
        *_FILES.values(),
        *("username", "password"),
        *("server", "insecure-skip-tls-verify", "tls-server-name", "proxy-url"),
    }
)
"""The other keys that are taken of a network's kubeconfig."""


@dataclass(frozen=True)
class KubeconfigBounds:
    """Where a kubeconfig that a network names may lie: below one of `directories`, never below one of `never`.

    `programs`: whether programs may be run for it (setting `kubeconfig_exec`).
    """

    directories: tuple[str, ...]
    never: tuple[str, ...] = CONTAINERS
    programs: bool = False

    @classmethod
    def of(cls, settings: Settings) -> KubeconfigBounds:
        """The bounds by the settings. Directories that pods write on this node are always in `never`."""
        pods = (settings.kubelet_dir, settings.short_dir, settings.default_shared_dir)
        return cls(settings.kubeconfig_dirs, (*pods, *CONTAINERS), settings.kubeconfig_exec)

    def require(self, real: str, what: str, root: HostRoot) -> None:
        """Raise InvalidConfig unless a file at `real`, a path without links, may be read."""
        for directory in self.never:
            if _is_below(real, directory, root):
                raise InvalidConfig(
                    f"{what}: it lies at {real}, below {directory}, where containers write",
                    "setting kubeconfig_dirs does not help there: it must be a file of the node",
                )
        if not any(_is_below(real, directory, root) for directory in self.directories):
            raise InvalidConfig(
                f"{what}: it lies at {real}, which is not below {' or '.join(self.directories) or 'any directory'}",
                "setting kubeconfig_dirs: root reads what a network names from there only",
            )


@dataclass(frozen=True)
class LoadedKubeconfig:
    """Cluster and user of one context of a kubeconfig, with the content of every file that they name.

    `directory`: where programs that it names are run, as this process sees it. `files`: of the files that were read.
    """

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    directory: str
    files: Mapping[str, Signature]

    @property
    def config(self) -> dict[str, Any]:
        named = {"clusters": [{"name": "it", "cluster": self.cluster}], "users": [{"name": "it", "user": self.user}]}
        contexts = [{"name": "it", "context": {"cluster": "it", "user": "it"}}]
        return {**named, "contexts": contexts, "current-context": "it"}


class Kubeconfig:
    """The kubeconfig at `path`, as the host calls it. `bounds`: None for one that the administrator named."""

    def __init__(self, path: str, root: HostRoot = HERE, bounds: KubeconfigBounds | None = None) -> None:
        self.path = path
        self._root = root
        self._bounds = bounds

    def __str__(self) -> str:
        return f"kubeconfig {self.path}"

    def unusable(self, message: str) -> UserspaceError:
        """The error for a file that is not there or is no kubeconfig; `message` says which and why.

        InvalidConfig, or Unavailable within `BOOTING_S` of a boot.
        """
        who = "the key kubeconfig of the network" if self._bounds else "the setting kubeconfig (USERSPACE_CNI_KUBECONFIG)"
        booted = time.clock_gettime(time.CLOCK_BOOTTIME)
        if booted < BOOTING_S:
            return Unavailable(message, f"{who} names it; the node was booted {booted:.0f} s ago, and it may be written yet")
        return InvalidConfig(message, f"{who} names it: write that file, or correct the name; kubectl --kubeconfig tries it")

    def signature(self, path: str = "") -> Signature:
        """The present signature of the kubeconfig, or of a file that it names."""
        with suppress(OSError, DirectoryRefused):
            return _signature(os.stat(self._root.path(path or self.path)))
        return (-1,)

    def load(self) -> LoadedKubeconfig:
        """Read its current context.

        Raises InvalidConfig for what may not be used, `unusable` for a missing file, Unavailable for what cannot be read now, and
        the parser's errors for a text that is no kubeconfig.
        """
        import yaml

        files: dict[str, Signature] = {}
        text, real = self._read(self.path, files)
        directory = os.path.dirname(real)
        config = yaml.safe_load(text.decode("utf-8", "replace"))
        context = _named(config, "context", config["current-context"])
        cluster = self._held(_named(config, "cluster", context["cluster"]), directory, files)
        user = self._held(_named(config, "user", context.get("user"), needed=False), directory, files)
        return LoadedKubeconfig(cluster, user, self._root.path(directory), files)

    def _held(self, section: Mapping[str, Any], directory: str, files: dict[str, Signature]) -> dict[str, Any]:
        """A user or cluster with the content of files in place of their names. Raises InvalidConfig for a forbidden program."""
        held = dict(section)
        for key, data in _FILES.items():
            name = held.pop(key, None)
            if name and data not in held:
                content, _ = self._read(os.path.normpath(os.path.join(directory, name)), files)
                held[data] = content.decode("utf-8", "replace") if data == "token" else base64.b64encode(content).decode()
        if self._bounds is None:
            return held
        program = next((key for key in _PROGRAMS if key in held), "")
        if program and not self._bounds.programs:
            raise InvalidConfig(
                f"{self}: its user has {program!r}, for which a program may be run as root",
                "setting kubeconfig_exec: none is run for a kubeconfig that a network names unless it is true",
            )
        return {key: value for key, value in held.items() if key in _KEYS or key in _PROGRAMS}

    def _read(self, path: str, files: dict[str, Signature]) -> tuple[bytes, str]:
        """Read the kubeconfig or a file that it names: content and resolved path. Adds its signature to `files`."""
        what = str(self) if path == self.path else f"{self}: file {path}"
        if not path.startswith("/"):
            raise InvalidConfig(f"{what}: not an absolute path")
        real = self._root.resolve(path)
        if self._bounds:
            self._bounds.require(real, what, self._root)
        try:
            with _opened(real, what, self._root) as fd:
                files[path] = _signature(os.fstat(fd))
                return os.read(fd, _LIMIT), real
        except OSError as error:
            if error.errno in _LASTING:
                raise self.unusable(f"{what}: {error.strerror}") from None
            raise Unavailable(f"{what}: {error.strerror}", "try again later") from None


@contextmanager
def _opened(real: str, what: str, root: HostRoot) -> Iterator[int]:
    """Open the regular file at `real` for reading. Raises InvalidConfig where users other than root and ours could write it."""
    names = real.strip("/").split("/")
    seen = os.open(root.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_trusted(seen, "/", what)
        for depth, name in enumerate(names, 1):
            kind = os.O_DIRECTORY if depth < len(names) else os.O_NOFOLLOW
            below = paths.openat2(seen, name, os.O_PATH | kind)
            os.close(seen)
            seen = below
            _require_trusted(seen, "/" + "/".join(names[:depth]), what)
        fd = reopen(seen)
    finally:
        os.close(seen)
    if fd is None:
        raise InvalidConfig(f"{what}: not a regular file")
    try:
        yield fd
    finally:
        os.close(fd)


def _require_trusted(fd: int, part: str, what: str) -> None:
    """Raise InvalidConfig for a file or directory that users other than root and ours could write."""
    facts = os.fstat(fd)
    mode = facts.st_mode
    if facts.st_uid not in (0, os.geteuid()):
        raise InvalidConfig(f"{what}: {part} belongs to user {facts.st_uid}", "root uses what it names: chown root")
    if "/kubernetes.io~" in part:
        raise InvalidConfig(f"{what}: lies in a pod's volume", "it must be a file of the node")
    if mode & (stat.S_IWOTH | stat.S_IWGRP) and not (mode & stat.S_ISVTX and stat.S_ISDIR(mode)):
        raise InvalidConfig(f"{what}: {part} can be written by others than its owner", "chmod go-w")


def _named(config: Mapping[str, Any], kind: str, name: object, *, needed: bool = True) -> dict[str, Any]:
    """The entry of that name in the list of contexts, clusters or users. Raises ValueError unless there is exactly one."""
    found = [item[kind] for item in config.get(f"{kind}s") or () if item["name"] == name]
    if len(found) > 1 or (needed and not found):
        raise ValueError(f"{len(found)} entries of one name")
    return dict(found[0] or {}) if found else {}


def _is_below(real: str, directory: str, root: HostRoot) -> bool:
    return any(real.startswith(f"{name.rstrip('/')}/") for name in {directory, root.resolve(directory)})


def _signature(facts: os.stat_result) -> Signature:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
