"""The device-info file (k8snetworkplumbingwg device-info-spec 1.1.0), at the path that the runtime names, below one directory.

The runtime names the path and removes the file after DEL. A device plugin may have written the file before ADD: then it names the
allocated socket, our update keeps its other facts, and DEL restores its facts of the socket. The directory belongs to the
node. The path comes with the network's configuration, which is a tenant's: so no file outside of the setting `device_info_dir`,
no link below it, and no file of another type of device is ever written or removed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.facts import Allocation
from userspace_cni.attachment.steps import DeviceInfo, Driver, SharedReads
from userspace_cni.base.beneath import directory_if_there, kind, look, make_directory, make_trusted, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.whole_files import read_file, remove_file, replace_file

_MODE = 0o444
"""As the specification's own library writes it. That library never overwrites a file, so no other program changes it after us."""

_DIRECTORY_MODE = 0o755
_SIZE_MAX = 1 << 20
_VHOST_USER = "vhost-user"
_RUN = "/var/run"


def place_of(asked: str, directory: str, root: HostRoot = HERE) -> str:
    """The path `asked` in terms of the setting `directory`. Raises InvalidConfig for a path elsewhere.

    Either may be written with /var/run for /run. Links that lead to the directory are followed; the path `asked` is only compared
    as text, because its links may lead anywhere.
    """
    path = os.path.normpath(f"/{asked.lstrip('/')}")
    names = {path}
    if path.startswith(f"{_RUN}/"):
        names.add(root.resolve(_RUN) + path.removeprefix(_RUN))
    for prefix in (directory, root.resolve(directory)):
        for name in names:
            if name.startswith(f"{prefix}/"):
                return directory + name.removeprefix(prefix)
    raise InvalidConfig(
        f"key 'runtimeConfig.CNIDeviceInfoFile' is {asked!r}, which is not below {directory}",
        "setting device_info_dir: root reads and writes only below it",
    )


def find_allocation(asked: str, directory: str, root: HostRoot = HERE) -> tuple[str, Allocation | None]:
    """The path of the file `asked`, and the allocation in it; ("", None) when the runtime asked for none."""
    if not asked:
        return "", None
    path = place_of(asked, directory, root)
    return path, read_allocation(path, directory, root)


def read_allocation(path: str, trusted: str, root: HostRoot = HERE) -> Allocation | None:
    """The vhost-user allocation in the file at `path`, below `trusted`; None when there is no file.

    Raises DirectoryRefused for a file of another type of device, or one that cannot be understood: it is not ours to change.
    """
    with directory_if_there(_parent(path), trusted, root) as dirfd:
        raw = None if dirfd is None else _read(dirfd, path)
    if raw is None:
        return None
    _require_vhost_user(raw, path)
    facts = raw.get(_VHOST_USER)
    if not isinstance(facts, dict):
        raise DirectoryRefused(f"device-info {path}: no object {_VHOST_USER!r} in it", "the device plugin that wrote it")
    mode, socket = facts.get("mode"), facts.get("path")
    if mode not in ("client", "server"):  # of any JSON type
        raise DirectoryRefused(f"device-info {path}: vhost-user.mode is {mode!r}, not client or server", "the device plugin")
    if not isinstance(socket, str) or not socket.startswith("/"):
        raise DirectoryRefused(f"device-info {path}: vhost-user.path is {socket!r}, not an absolute path", "the device plugin")
    return Allocation(mode, socket, raw)


class DeviceInfoDriver(Driver[DeviceInfo]):
    """Device-info files."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: DeviceInfo, deadline: Deadline) -> None:
        """Write the file; other facts of a device plugin in it are kept."""
        what = _what(step)
        deadline.require(what)
        path = step.path
        with translate_errors(what):
            dirfd = self._made(path, step.trusted)
            try:
                before = _read(dirfd, path)
                if before is not None:
                    _require_vhost_user(before, path)
                content = step.content
                if step.existed and before is not None:
                    content = json.dumps(_merged(before, json.loads(step.content)))
                replace_file(dirfd, _name(path), content, _MODE)
            finally:
                os.close(dirfd)

    def undo(self, step: DeviceInfo, deadline: Deadline) -> None:
        """Remove the file when it is ours, else restore what the device plugin wrote; the runtime may have removed it already."""
        what = _what(step)
        deadline.require(what)
        with translate_errors(what), directory_if_there(_parent(step.path), step.trusted, self._root) as dirfd:
            if dirfd is not None and not step.existed:
                _remove(dirfd, step.path, step)
            elif dirfd is not None:
                _give_back(dirfd, step.path, step)

    def find_changes(self, step: DeviceInfo, seen: SharedReads, deadline: Deadline) -> list[Drift]:
        """All that check tells."""
        del seen
        return self.check(step, deadline)

    def check(self, step: DeviceInfo, deadline: Deadline) -> list[Drift]:
        """A missing file, or one whose facts about the socket are not those of ADD."""
        what = _what(step)
        deadline.require(what)
        try:
            with directory_if_there(_parent(step.path), step.trusted, self._root) as dirfd:
                found = None if dirfd is None else _read(dirfd, step.path)
        except DirectoryRefused as error:
            return [Drift(what, "", "the content that ADD wrote", f"that {error.message}")]
        if found is None:
            return [Drift(what, "", "a file", Absent("none"))]
        expected = json.loads(step.content)
        merged = _merged(found, expected)  # other facts in the file are the device plugin's
        return [
            Drift(what, key, repr(expected.get(key)), repr(found.get(key)))
            for key in ("type", _VHOST_USER)
            if found.get(key) != merged.get(key)
        ]

    def _made(self, path: str, trusted: str) -> int:
        """Open the file's directory; make it and `trusted` when they are missing."""
        make_trusted(self._root.path(trusted), _DIRECTORY_MODE)
        try:
            return make_directory(_parent(path), trusted, _DIRECTORY_MODE, self._root)[0]
        except DirectoryRefused as error:
            raise DirectoryRefused(f"device-info {path}: {error.message}", error.details) from error


def _read(dirfd: int, path: str) -> dict[str, Any] | None:
    name = _name(path)
    data, facts = read_file(dirfd, name, _SIZE_MAX + 1), look(dirfd, name)
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


def _require_vhost_user(raw: dict[str, Any], path: str) -> None:
    if raw.get("type") != _VHOST_USER:
        raise DirectoryRefused(
            f"device-info {path}: it is of a device of type {raw.get('type')!r:.60}, and left as it is",
            "the network's resource is another plugin's",
        )


def _remove(dirfd: int, path: str, step: DeviceInfo) -> None:
    """Remove our file, also with changed content; a file of another type of device was written since, and stays."""
    found = None
    with suppress(DirectoryRefused):  # the content is no device-info any more
        found = _read(dirfd, path)
    if found is not None and found.get("type") != _VHOST_USER:
        say("warning", f"{_what(step)} is of another device meanwhile, and left as it is")
        return
    remove_file(dirfd, _name(path))


def _give_back(dirfd: int, path: str, step: DeviceInfo) -> None:
    """Restore what the device plugin wrote of the socket; other changes in the file stay."""
    try:
        found = _read(dirfd, path)
    except DirectoryRefused as error:
        say("warning", f"{_what(step)} is left as it is", reason=error.message)
        return
    before = json.loads(step.before)
    if found is not None and found.get("type") == _VHOST_USER and found.get(_VHOST_USER) != before:
        replace_file(dirfd, _name(path), json.dumps({**found, _VHOST_USER: before}), _MODE)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` with those keys of `old` that it lacks, one level deep as well (`vhost-user`)."""
    merged = {**old, **new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
    return merged


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return plain(path.rpartition("/")[2])


def _what(step: DeviceInfo) -> str:
    return f"device-info {step.path}"
