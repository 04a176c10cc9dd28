"""Files for applications and runtimes are whole or absent, keep what others wrote in them, and are removed by exact name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.steps import ConfigFile, DeviceInfo
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig
from userspace_cni.base.root import HostRoot
from userspace_cni.host.files.device_info import DeviceInfoDriver, place_of, read_allocation
from userspace_cni.host.files.whole_files import ConfigFileDriver
from userspace_cni.linux.boot import boot_id, boottime_ns

CONTENT = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "server", "path": "/run/vhost/sock"}}


def soon() -> Deadline:
    return Deadline.after(60)


@pytest.fixture
def config(tmp_path: Path) -> ConfigFile:
    """A file in a pod's directory."""
    (tmp_path / "pod").mkdir()
    return ConfigFile(directory=f"{tmp_path}/pod", trusted=str(tmp_path), name="configData-c0ffee-net1.json", content='{"a":1}')


@pytest.fixture
def info(tmp_path: Path) -> DeviceInfo:
    """A device-info file in a directory that is still to be made."""
    return DeviceInfo(path=f"{tmp_path}/devinfo/cni/net1.json", content=json.dumps(CONTENT), trusted=f"{tmp_path}/devinfo")


@pytest.fixture
def infos(tmp_path: Path) -> DeviceInfoDriver:
    """The driver of a node whose device_info_dir is in the test's directory."""
    return DeviceInfoDriver()


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
    file = f"file {config.directory}/{config.name}"
    assert driver.check(config, soon()) == [Drift(file, "", "a file", "nothing that could be read")]
    Path(config.directory, config.name).write_text('{"a":2}')
    assert driver.check(config, soon()) == [Drift(file, "", "the content that ADD wrote", Other("another"))]


def test_device_info(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """The file is 0444 in a directory 0755, alone, and as the runtime will read it."""
    infos.apply(info, soon())
    path = Path(info.path)
    assert json.loads(path.read_text()) == CONTENT
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o444, 0o755)
    assert list(path.parent.iterdir()) == [path]
    assert infos.check(info, soon()) == []


def test_device_info_of_a_device_plugin(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """A file that was there is updated though it is read-only, keeps unknown keys at both levels, and is not removed."""
    path = Path(info.path)
    path.parent.mkdir(parents=True)
    theirs = {"type": "vhost-user", "version": "1.0.0", "vendor": 7, "vhost-user": {"mode": "client", "path": "/x", "queues": 4}}
    path.write_text(json.dumps(theirs))
    path.chmod(0o444)
    step = replace(info, existed=True, before=json.dumps(theirs["vhost-user"]))
    infos.apply(step, soon())
    found = json.loads(path.read_text())
    assert found == {**CONTENT, "vendor": 7, "vhost-user": {"mode": "server", "path": "/run/vhost/sock", "queues": 4}}
    assert path.stat().st_mode & 0o777 == 0o444
    assert infos.check(step, soon()) == []
    for _ in range(2):
        infos.undo(step, soon())
        assert json.loads(path.read_text()) == {**theirs, "version": "1.1.0"}
        assert path.stat().st_mode & 0o777 == 0o444


def test_device_info_of_a_device_plugin_that_has_gone(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """A file that the runtime removed, or that was replaced, is not restored."""
    path = Path(info.path)
    path.parent.mkdir(parents=True)
    step = replace(info, existed=True, before=json.dumps({"mode": "client", "path": "/x"}))
    infos.undo(step, soon())
    assert not path.exists()
    for text in ("garbage", '{"type": "pci"}'):
        path.write_text(text)
        infos.undo(step, soon())
        assert path.read_text() == text


def test_device_info_of_another_device_is_left_alone(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """A file of another type of device is never overwritten, also when it was written during ADD."""
    path = Path(info.path)
    path.parent.mkdir(parents=True)
    for text in ('{"type": "pci", "pci": {}}', '{"cniVersion": "1.0.0", "plugins": []}', "garbage", ""):
        path.write_text(text)
        for step in (info, replace(info, existed=True)):
            with pytest.raises(DirectoryRefused, match=re.escape(info.path)):
                infos.apply(step, soon())
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_device_info_is_below_its_directory(tmp_path: Path) -> None:
    """A path below the setting is accepted by either of its names; another path is refused with the setting's name."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    setting = f"{tmp_path}/link"
    for asked in (f"{setting}/cni/net1", f"{tmp_path}/real/cni/net1", f"/{setting}//cni/./net1"):
        assert place_of(asked, setting) == f"{setting}/cni/net1"
    for asked in ("/etc/cni/net.d/10-other.conf", setting, f"{setting}/", f"{setting}-other/net1", f"{tmp_path}/net1", "/"):
        with pytest.raises(InvalidConfig, match="CNIDeviceInfoFile") as caught:
            place_of(asked, setting)
        assert "device_info_dir" in caught.value.details


def test_device_info_by_the_two_names_of_run(tmp_path: Path) -> None:
    """Multus says /var/run where an administrator may say /run, and the other way round; the host's own links count."""
    root = HostRoot(str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("../run")
    assert place_of("/var/run/k8s/cni/net1", "/run/k8s", root) == "/run/k8s/cni/net1"
    assert place_of("/run/k8s/cni/net1", "/var/run/k8s", root) == "/var/run/k8s/cni/net1"


def test_device_info_through_a_link(info: DeviceInfo, infos: DeviceInfoDriver, tmp_path: Path) -> None:
    """Below its directory no link is followed, neither to write nor to remove."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "devinfo").mkdir()
    (tmp_path / "devinfo" / "cni").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryRefused, match="symbolic link"):
        infos.apply(info, soon())
    (tmp_path / "elsewhere" / "net1.json").write_text(info.content)
    infos.undo(info, soon())
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["net1.json"]


def test_device_info_undone(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """Undoing removes the file; the runtime may have removed it before, with the whole directory."""
    infos.apply(info, soon())
    infos.undo(info, soon())
    assert list(Path(info.path).parent.iterdir()) == []
    infos.undo(info, soon())
    Path(info.path).parent.rmdir()
    infos.undo(info, soon())


def test_device_info_drift(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """A missing file and other facts about the socket are reported."""
    assert infos.check(info, soon()) == [Drift(f"device-info {info.path}", "", "a file", Absent("none"))]
    other = json.dumps({**CONTENT, "vhost-user": {"mode": "client", "path": "/x"}})
    infos.apply(replace(info, content=other), soon())
    [drift] = infos.check(info, soon())
    assert drift.field == "vhost-user"
    assert "'mode': 'server'" in str(drift.expected)
    assert "'mode': 'client'" in str(drift.found)
    Path(info.path).unlink()
    Path(info.path).write_text("{")
    assert "not a JSON object" in str(infos.check(info, soon())[0].found)


def test_allocation(info: DeviceInfo, infos: DeviceInfoDriver) -> None:
    """A device plugin's role, path and whole file are read."""
    infos.apply(info, soon())
    allocation = read_allocation(info.path, info.trusted)
    assert allocation is not None
    assert (allocation.mode, allocation.path, allocation.content) == ("server", "/run/vhost/sock", CONTENT)


def test_no_allocation(info: DeviceInfo) -> None:
    """No directory and no file are no allocation; a file of another device type is refused, for it is another plugin's."""
    assert read_allocation(info.path, info.trusted) is None
    Path(info.path).parent.mkdir(parents=True)
    assert read_allocation(info.path, info.trusted) is None
    Path(info.path).write_text(json.dumps({"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:01:02.3"}}))
    with pytest.raises(DirectoryRefused, match="of a device of type 'pci'"):
        read_allocation(info.path, info.trusted)


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
    """A file that cannot be understood is refused, not overwritten: its error names the path and what is wrong."""
    path = tmp_path / "device.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DirectoryRefused, match=wrong) as caught:
        read_allocation(str(path), str(tmp_path))
    assert str(path) in caught.value.message


def test_allocation_that_is_no_file(tmp_path: Path) -> None:
    """A FIFO, link or directory at the path is refused without being waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name, found in (("fifo", "a FIFO"), ("link", "a symbolic link"), (".", "not the name of a file")):
        with pytest.raises(DirectoryRefused, match=found):
            read_allocation(f"{tmp_path}/{name}", str(tmp_path))


def test_boot() -> None:
    """The boot's id does not change and its clock does not go back."""
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36
    assert 0 < boottime_ns() <= boottime_ns()
