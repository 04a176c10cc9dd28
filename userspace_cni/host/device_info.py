"""The device-info file (k8snetworkplumbingwg device-info-spec 1.1.0): where the runtime asked for it, and only there.

The runtime names the path and removes the file after DEL; a device plugin may have put one there before ADD, in which case it
says which socket was allocated and its other facts must outlive our update. The directory belongs to the node, not to a pod.
"""

from __future__ import annotations

import json
import os
from typing import Any

from userspace_cni.deadline import Deadline
from userspace_cni.errors import DirectoryRefused, Drift
from userspace_cni.host.beneath import kind, look, make_trusted, plain, refusal, translated
from userspace_cni.host.files import read_file, remove_file, replace_file
from userspace_cni.host.root import HERE, HostRoot
from userspace_cni.plan import Allocation
from userspace_cni.steps import DeviceInfo

_MODE = 0o444
"""As the specification's own library writes it, which refuses to overwrite: nobody else changes it after us."""

_DIRECTORY_MODE = 0o755
_SIZE_MAX = 1 << 20
_VHOST_USER = "vhost-user"


def read_allocation(path: str, root: HostRoot = HERE) -> Allocation | None:
    """The vhost-user allocation in the file at `path`; None when there is no file, or one of another type.

    Raises DirectoryRefused for a file that says vhost-user and can not be understood, or is no JSON object at all.
    """
    raw = _read(path, root)
    if raw is None or raw.get("type") != _VHOST_USER:
        return None
    facts = raw.get(_VHOST_USER)
    if not isinstance(facts, dict):
        raise DirectoryRefused(f"device-info {path}: no object {_VHOST_USER!r} in it", "the device plugin that wrote it")
    mode, socket = facts.get("mode"), facts.get("path")
    if mode not in ("client", "server"):  # of any JSON type
        raise DirectoryRefused(f"device-info {path}: vhost-user.mode is {mode!r}, not client or server", "the device plugin")
    if not isinstance(socket, str) or not socket.startswith("/"):
        raise DirectoryRefused(f"device-info {path}: vhost-user.path is {socket!r}, not an absolute path", "the device plugin")
    return Allocation(mode, socket, raw)


class DeviceInfoDriver:
    """Device-info files."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: DeviceInfo, deadline: Deadline) -> None:
        """Write the file; what a device plugin had in it beside our facts is kept."""
        what = _what(step)
        deadline.require(what)
        content = step.content
        if step.existed:
            content = json.dumps(_merged(_read(step.path, self._root) or {}, json.loads(step.content)))
        parent, name = _split(step.path)
        with translated(what):
            seen = self._root.path(parent)
            make_trusted(seen, _DIRECTORY_MODE)
            dirfd = os.open(seen, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                replace_file(dirfd, name, content, _MODE)
            finally:
                os.close(dirfd)

    def undo(self, step: DeviceInfo, deadline: Deadline) -> None:
        """Remove the file when it is ours; the runtime may have been first."""
        what = _what(step)
        deadline.require(what)
        if step.existed:
            return
        parent, name = _split(step.path)
        with translated(what):
            try:
                dirfd = os.open(self._root.path(parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return
            try:
                remove_file(dirfd, name)
            finally:
                os.close(dirfd)

    def check(self, step: DeviceInfo, deadline: Deadline) -> list[Drift]:
        """A missing file, or one whose facts about the socket are not those of ADD."""
        what = _what(step)
        deadline.require(what)
        try:
            found = _read(step.path, self._root)
        except DirectoryRefused as error:
            return [Drift(f"{what}: expected the content that ADD wrote, found that {error.message}")]
        if found is None:
            return [Drift(f"{what}: expected a file, found none")]
        expected = json.loads(step.content)
        merged = _merged(found, expected)  # what is there beside our facts is somebody else's
        return [
            Drift(f"{what}: {key}: expected {expected.get(key)!r}, found {found.get(key)!r}")
            for key in ("type", _VHOST_USER)
            if found.get(key) != merged.get(key)
        ]

    def present(self, step: DeviceInfo) -> bool:
        """Whether a file is there."""
        parent, name = _split(step.path)
        return os.path.lexists(f"{self._root.path(parent)}/{name}")


def _read(path: str, root: HostRoot) -> dict[str, Any] | None:
    parent, name = _split(path)
    try:
        dirfd = os.open(root.path(parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal(f"device-info {path}", error) from error
    try:
        with translated(f"device-info {path}"):
            data = read_file(dirfd, name, _SIZE_MAX + 1)
            facts = look(dirfd, name)
    finally:
        os.close(dirfd)
    if data is None:
        if facts is not None:
            raise DirectoryRefused(f"device-info {path}: it is {kind(facts.st_mode)}", "runtimeConfig.CNIDeviceInfoFile")
        return None
    try:
        decoded = json.loads(data[:_SIZE_MAX]) if len(data) <= _SIZE_MAX else None
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise DirectoryRefused(f"device-info {path}: it is not a JSON object of at most 1 MiB", "the device plugin that wrote it")
    return decoded


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` with those keys of `old` that it lacks, one level deep as well (`vhost-user`)."""
    merged = {**old, **new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
    return merged


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    if not path.startswith("/"):
        raise DirectoryRefused(f"device-info {path}: not an absolute path", "runtimeConfig.CNIDeviceInfoFile")
    return parent or "/", plain(name)


def _what(step: DeviceInfo) -> str:
    return f"device-info {step.path}"
