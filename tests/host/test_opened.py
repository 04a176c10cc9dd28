"""A file that a pod can replace is checked before it is opened.

Opening a device node has effects: it starts a watchdog, loads a driver, takes a lock. The node in these tests has a device number
without a driver, so that each attempt to open it fails visibly.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.host.places import soon
from userspace_cni.attachment.steps import ConfigFile, DeviceInfo
from userspace_cni.base.beneath import open_regular
from userspace_cni.base.errors import BadEnvironment
from userspace_cni.host.files.device_info import DeviceInfoDriver
from userspace_cni.host.files.whole_files import ConfigFileDriver
from userspace_cni.host.netlink import netns
from userspace_cni.host.runtimes import former_plugin as legacy

MISC = 10
UNSERVED = range(239, 255)
"""Minor numbers of misc devices that are rarely used (Documentation/admin-guide/devices.txt)."""


@pytest.fixture
def device(room: Path) -> Path:
    """A device node that fails to open with ENODEV or, where nodes cannot be used, with EACCES."""
    for minor in UNSERVED:
        path = room / f"device-{minor}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(MISC, minor))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            return path
    raise AssertionError("every misc device of the list is served here")


def test_a_device_in_place_of_the_pods_file_is_not_opened(room: Path, device: Path) -> None:
    """CHECK says that there is no file, and the device has not been opened."""
    step = ConfigFile(str(room), str(room), device.name, "{}")
    [drift] = ConfigFileDriver().check(step, soon())
    assert (drift.expected, drift.found) == ("a file", "nothing that could be read")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_device_in_place_of_device_info_is_not_opened(room: Path, device: Path) -> None:
    """CHECK names the device."""
    [drift] = DeviceInfoDriver().check(DeviceInfo(str(device), str(room), "{}"), soon())
    assert "a character device" in str(drift.found)


def test_a_device_in_place_of_a_namespace_is_not_opened(device: Path) -> None:
    """A device as CNI_NETNS is refused by its kind."""
    with pytest.raises(BadEnvironment, match="not a namespace"):
        netns.namespace(str(device))


def test_neither_device_nor_fifo_in_place_of_the_former_plugins_record_is_opened(room: Path, device: Path) -> None:
    """The port then gets the file's name; a FIFO, whose open would wait for a writer, does not delay DEL."""
    os.mkfifo(room / "local-c0ffee012345-net1.json")
    assert legacy.read_port_name(str(room / "local-c0ffee012345-net1.json")) == "c0ffee012345-net1"
    assert legacy.read_port_name(str(device)) == device.name


def test_only_a_regular_file_is_opened(room: Path) -> None:
    """A link, a socket, a directory and a missing file give no descriptor; a regular file gives one for reading."""
    (room / "file").write_text("content")
    (room / "link").symlink_to("file")
    dirfd = os.open(room, os.O_PATH)
    try:
        assert [open_regular(dirfd, name) for name in ("link", ".", "none")] == [None, None, None]
        fd = open_regular(dirfd, "file")
        assert fd is not None
        with os.fdopen(fd, "rb") as file:
            assert file.read() == b"content"
    finally:
        os.close(dirfd)
