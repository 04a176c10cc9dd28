"""Files for applications and runtimes are whole or absent, keep what others wrote in them, and are removed by exact name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from userspace_cni.deadline import Deadline
from userspace_cni.errors import DirectoryRefused
from userspace_cni.host.device_info import DeviceInfoDriver, read_allocation
from userspace_cni.host.files import ConfigFileDriver
from userspace_cni.host.link import boot_id, boottime_ns
from userspace_cni.steps import ConfigFile, DeviceInfo

CONTENT = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "server", "path": "/run/vhost/sock"}}


def soon() -> Deadline:
    """Time enough for a file."""
    return Deadline.after(10)


@pytest.fixture
def config(tmp_path: Path) -> ConfigFile:
    """A file in a pod's directory."""
    (tmp_path / "pod").mkdir()
    return ConfigFile(directory=f"{tmp_path}/pod", trusted=str(tmp_path), name="configData-c0ffee-net1.json", content='{"a":1}')


@pytest.fixture
def info(tmp_path: Path) -> DeviceInfo:
    """A device-info file in a directory that is still to be made."""
    return DeviceInfo(path=f"{tmp_path}/devinfo/cni/net1.json", content=json.dumps(CONTENT))


def test_config_file(config: ConfigFile) -> None:
    """The file has its content, can be read by any user whatever the umask, and is alone in its directory."""
    before = os.umask(0o077)
    try:
        ConfigFileDriver().apply(config, soon())
    finally:
        os.umask(before)
    (path,) = Path(config.directory).iterdir()
    assert (path.name, path.read_text(), path.stat().st_mode & 0o777) == (config.name, config.content, 0o644)
    assert ConfigFileDriver().check(config, soon()) == []


def test_config_file_is_replaced(config: ConfigFile) -> None:
    """A file of ours from before is replaced by a new one, so that a reader of the old one is not disturbed."""
    path = Path(config.directory, config.name)
    path.write_text("old")
    with path.open() as reader:
        ConfigFileDriver().apply(config, soon())
        assert reader.read() == "old"
    assert path.read_text() == config.content


def test_config_file_undone(config: ConfigFile) -> None:
    """Undoing removes the file and what a crash left of it, not its neighbours, and may be repeated."""
    driver = ConfigFileDriver()
    driver.apply(config, soon())
    directory = Path(config.directory)
    (directory / f".{config.name}.tmp").touch()
    (directory / "other").touch()
    driver.undo(config, soon())
    driver.undo(config, soon())
    assert [path.name for path in directory.iterdir()] == ["other"]


def test_config_file_without_directory(config: ConfigFile) -> None:
    """Without the pod's directory ADD is refused, CHECK reports it and DEL has nothing to do."""
    Path(config.directory).rmdir()
    driver = ConfigFileDriver()
    with pytest.raises(DirectoryRefused, match="does not exist"):
        driver.apply(config, soon())
    assert len(driver.check(config, soon())) == 1
    driver.undo(config, soon())


def test_config_file_drift(config: ConfigFile) -> None:
    """Another content and a missing file are reported."""
    driver = ConfigFileDriver()
    assert "found nothing" in driver.check(config, soon())[0].message
    Path(config.directory, config.name).write_text('{"a":2}')
    assert "another" in driver.check(config, soon())[0].message


def test_device_info(info: DeviceInfo) -> None:
    """The file is 0444 in a directory 0755, alone, and as the runtime will read it."""
    DeviceInfoDriver().apply(info, soon())
    path = Path(info.path)
    assert json.loads(path.read_text()) == CONTENT
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o444, 0o755)
    assert list(path.parent.iterdir()) == [path]
    assert DeviceInfoDriver().check(info, soon()) == []


def test_device_info_of_a_device_plugin(info: DeviceInfo) -> None:
    """A file that was there is updated though it is read-only, keeps unknown keys at both levels, and is not removed."""
    path = Path(info.path)
    path.parent.mkdir(parents=True)
    theirs = {"type": "vhost-user", "version": "1.0.0", "vendor": 7, "vhost-user": {"mode": "client", "path": "/x", "queues": 4}}
    path.write_text(json.dumps(theirs))
    path.chmod(0o444)
    step = DeviceInfo(info.path, info.content, existed=True)
    DeviceInfoDriver().apply(step, soon())
    DeviceInfoDriver().undo(step, soon())
    found = json.loads(path.read_text())
    assert found == {**CONTENT, "vendor": 7, "vhost-user": {"mode": "server", "path": "/run/vhost/sock", "queues": 4}}
    assert path.stat().st_mode & 0o777 == 0o444
    assert DeviceInfoDriver().check(step, soon()) == []


def test_device_info_undone(info: DeviceInfo) -> None:
    """Undoing removes the file; the runtime may have been first, and with the whole directory."""
    driver = DeviceInfoDriver()
    driver.apply(info, soon())
    driver.undo(info, soon())
    assert list(Path(info.path).parent.iterdir()) == []
    driver.undo(info, soon())
    Path(info.path).parent.rmdir()
    driver.undo(info, soon())


def test_device_info_drift(info: DeviceInfo) -> None:
    """A missing file and other facts about the socket are reported."""
    driver = DeviceInfoDriver()
    assert "found none" in driver.check(info, soon())[0].message
    driver.apply(DeviceInfo(info.path, json.dumps({**CONTENT, "vhost-user": {"mode": "client", "path": "/x"}})), soon())
    assert "'mode': 'server'" in driver.check(info, soon())[0].message
    Path(info.path).unlink()
    Path(info.path).write_text("{")
    assert "not a JSON object" in driver.check(info, soon())[0].message


def test_allocation(info: DeviceInfo) -> None:
    """A device plugin's role, path and whole file are read."""
    DeviceInfoDriver().apply(info, soon())
    allocation = read_allocation(info.path)
    assert allocation is not None
    assert (allocation.mode, allocation.path, allocation.content) == ("server", "/run/vhost/sock", CONTENT)


def test_no_allocation(info: DeviceInfo) -> None:
    """No directory, no file, and a file of another device type are no allocation."""
    assert read_allocation(info.path) is None
    Path(info.path).parent.mkdir(parents=True)
    assert read_allocation(info.path) is None
    Path(info.path).write_text(json.dumps({"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:01:02.3"}}))
    assert read_allocation(info.path) is None


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("\xff", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"type":"vhost-user"}', "no object 'vhost-user'"),
        ('{"type":"vhost-user","vhost-user":{"mode":"both","path":"/x"}}', "mode is 'both'"),
        ('{"type":"vhost-user","vhost-user":{"mode":["server"],"path":"/x"}}', "mode is"),
        ('{"type":"vhost-user","vhost-user":{"mode":"client","path":"x"}}', "path is 'x'"),
        ('{"type":"vhost-user","vhost-user":{"mode":"client"}}', "path is None"),
        (" " * (1 << 20) + "{}", "at most 1 MiB"),
    ],
)
def test_unusable_allocation(tmp_path: Path, content: str, wrong: str) -> None:
    """A file that can not be understood is refused, not overwritten: its error names the path and what is wrong."""
    path = tmp_path / "device.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DirectoryRefused, match=wrong) as caught:
        read_allocation(str(path))
    assert str(path) in caught.value.message


def test_allocation_that_is_no_file(tmp_path: Path) -> None:
    """A FIFO, link or directory at the path is refused without being waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name, found in (("fifo", "a FIFO"), ("link", "a symbolic link"), (".", "not the name of a file")):
        with pytest.raises(DirectoryRefused, match=found):
            read_allocation(f"{tmp_path}/{name}")


def test_boot() -> None:
    """The boot's id does not change and its clock does not go back."""
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36
    assert 0 < boottime_ns() <= boottime_ns()
