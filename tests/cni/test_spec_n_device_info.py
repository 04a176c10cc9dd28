"""Items 112 to 120 of the specification's checklist: the device-info file, and what Multus does with it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import PORT, refused, succeeded, switch_of, tree
from tests.lab.node.node import CONTAINER, Node

MAPPED = "/var/lib/cni/usrspcni"
ROLES = [("client", "server"), ("server", "client")]


def info_of(node: Node) -> Path:
    """Where the tests' runtime asks for the file."""
    return node.device_info / "cni" / "default-net-net1-device.json"


def asking(node: Node, mode: str = "client", **vhost: Any) -> dict[str, Any]:
    """A network for which the runtime asks for a device-info file."""
    network = node.network(runtimeConfig={"CNIDeviceInfoFile": str(info_of(node))})
    network["host"]["vhost"] = {"mode": mode, **vhost}
    return network


def test_112_only_where_the_runtime_asks(node: Node, sandbox: str) -> None:
    """Without runtimeConfig.CNIDeviceInfoFile no file is written, whatever else names one."""
    path = str(info_of(node))
    elsewhere: list[dict[str, Any]] = [{}, {"CNIDeviceInfoFile": path}, {"args": {"cni": {"CNIDeviceInfoFile": path}}}]
    for keys in [*elsewhere, {"runtimeConfig": {}}]:
        succeeded(node.run("ADD", node.network(**keys), sandbox, CNI_ARGS=f"CNIDeviceInfoFile={path}"))
        assert not info_of(node).parent.exists()
        assert not [name for name in tree(node.directory) if "device" in Path(name).name]
        succeeded(node.run("DEL", node.network(), sandbox))


@pytest.mark.parametrize(("mode", "role"), ROLES)
def test_113_content(node: Node, sandbox: str, mode: str, role: str) -> None:
    """The file describes vhost-user 1.1.0 with the application's mode and path."""
    succeeded(node.run("ADD", asking(node, mode), sandbox))
    content = json.loads(info_of(node).read_text())
    assert content == {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": role, "path": f"{MAPPED}/{PORT}"}}
    succeeded(node.run("DEL", asking(node, mode), sandbox))
    assert node.leftovers() == {}


@pytest.mark.parametrize(("mode", "role"), ROLES)
def test_114_mode_is_the_containers(node: Node, sandbox: str, mode: str, role: str) -> None:
    """OVS's client port makes the application the server, and the other way round, in OVSDB, file and document."""
    network = asking(node, mode)
    succeeded(node.run("ADD", network, sandbox))
    assert switch_of(node).interface(PORT)["type"] == {"client": "dpdkvhostuserclient", "server": "dpdkvhostuser"}[mode]
    assert json.loads(info_of(node).read_text())["vhost-user"]["mode"] == role
    document = json.loads((node.shared / CONTAINER[:12] / f"configData-{PORT}.json").read_text())
    assert document["config"]["vhost"]["mode"] == role
    succeeded(node.run("DEL", network, sandbox))


class TestPaths:
    """Item 115: a socket's path in the pod and on the host."""

    def test_115_two_views(self, node: Node, sandbox: str) -> None:
        """The file has the path in the pod, the result the path on the host.

        Both end in the same name and fit a socket address.
        """
        result = succeeded(node.run("ADD", asking(node, socketfile="app0"), sandbox))
        inside = json.loads(info_of(node).read_text())["vhost-user"]["path"]
        outside = result["interfaces"][0]["socketPath"]
        assert inside == f"{MAPPED}/app0"
        assert outside == switch_of(node).interface(PORT)["options"]["vhost-server-path"]
        assert Path(outside).parent.stat().st_ino == (node.shared / CONTAINER[:12]).stat().st_ino
        assert outside.endswith("/app0")
        assert len(outside) <= 107
        succeeded(node.run("DEL", asking(node), sandbox))

    def test_115_what_does_not_fit(self, node: Node, sandbox: str) -> None:
        """Names that would break annotations or DPDK's arguments, and paths over 107 bytes, are refused before any effect."""
        for name in ("a=b", "a,b", "a b", "a\\b", "a/b", "é", "-a", "..", "x" * 81):
            refused(node.run("ADD", asking(node, socketfile=name), sandbox), 7, "host.vhost.socketfile")
        for ifname in ("a=b", "a,b", "a\\b"):
            refused(node.run("ADD", asking(node), sandbox, ifname=ifname), 4, "CNI_IFNAME")
        long = {"USERSPACE_CNI_SHORT_DIR": f"{node.directory}/{'x' * (70 - len(str(node.directory)))}"}
        refused(node.run("ADD", asking(node, socketfile="x" * 80), sandbox, **long), 7, "107")
        assert node.leftovers() == {}


class TestAllocated:
    """Item 116: a device plugin has written the file before ADD."""

    @pytest.mark.parametrize(("mode", "role"), ROLES)
    def test_116_is_followed_and_kept(self, node: Node, sandbox: str, mode: str, role: str) -> None:
        """ADD uses its mode and path, keeps its other keys, and replaces the file though it is read-only."""
        path = info_of(node)
        facts = {"mode": role, "path": "/dev/vhost/p7", "x": 1}
        _place(path, {"type": "vhost-user", "version": "1.0.0", "vhost-user": facts, "vendor": [2]})
        inode = path.stat().st_ino
        network = {key: value for key, value in asking(node).items() if key != "host"}
        if mode == "server":
            network["host"] = {"vhost": {"mode": "server"}}
        succeeded(node.run("ADD", network, sandbox))
        written = json.loads(path.read_text())
        assert written["vhost-user"] == facts
        assert written["vendor"] == [2]
        assert path.stat().st_ino != inode
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
        interface = switch_of(node).interface(PORT)
        assert interface["type"] == ("dpdkvhostuserclient" if mode == "client" else "dpdkvhostuser")
        assert interface["options"].get("vhost-server-path", "/p7").endswith("/p7")
        succeeded(node.run("DEL", network, sandbox))
        assert path.exists()
        assert node.leftovers() == {}

    def test_116_what_cannot_be_followed(self, node: Node, sandbox: str) -> None:
        """An allocation that contradicts the network or makes no sense fails ADD before any effect, and stays as it is."""
        path = info_of(node)
        allocated = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "client", "path": "/dev/vhost/p7"}}
        wrong: list[tuple[Any, int]] = [
            (allocated, 7),
            ({**allocated, "vhost-user": {"mode": "server", "path": "/a=b"}}, 7),
            ({**allocated, "vhost-user": {"mode": "both", "path": "/p7"}}, 106),
            ({**allocated, "vhost-user": {"mode": "server", "path": "p7"}}, 106),
            ({**allocated, "vhost-user": None}, 106),
            ([], 106),
        ]
        for content, code in wrong:
            _place(path, content)
            refused(node.run("ADD", asking(node), sandbox), code)
            assert json.loads(path.read_text()) == content
            assert node.leftovers() == {}

    def test_116_of_another_type(self, node: Node, sandbox: str) -> None:
        """A file for another type of device belongs to another plugin: ADD is refused before any effect."""
        content = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:00:01.0"}}
        _place(info_of(node), content)
        refused(node.run("ADD", asking(node), sandbox), 106, str(info_of(node)), "pci")
        assert json.loads(info_of(node).read_text()) == content
        assert node.leftovers() == {}


class TestElsewhere:
    """A tenant writes the network's configuration: a file that it names outside
    of device_info_dir is not written, made or removed.
    """

    def test_a_file_of_the_node_is_not_rewritten(self, node: Node, sandbox: str) -> None:
        """Another plugin's configuration, and a missing directory, are unchanged after ADD and DEL."""
        other = node.directory / "net.d" / "10-other.conf"
        other.parent.mkdir()
        other.write_text('{"cniVersion": "1.0.0", "type": "other"}')
        before = tree(node.directory)
        for path in (other, node.directory / "made" / "file", node.directory / "devinfo-other" / "x", node.device_info):
            network = node.network(runtimeConfig={"CNIDeviceInfoFile": str(path)})
            refused(node.run("ADD", network, sandbox), 7, str(path), "device_info_dir")
            succeeded(node.run("DEL", network, sandbox))
        assert other.read_text() == '{"cniVersion": "1.0.0", "type": "other"}'
        made = tree(node.directory).keys() - before.keys()
        assert not [path for path in made if not Path(path).is_relative_to(node.state) and "/run" not in path]


def _place(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(content))
    path.chmod(0o444)


def test_117_modes(node: Node, sandbox: str) -> None:
    """The directory is made with 0755, because Multus' own library gives it no mode, and the file with 0444; with any umask."""
    succeeded(node.run("ADD", asking(node), sandbox))
    assert stat.S_IMODE(info_of(node).stat().st_mode) == 0o444
    for directory in (info_of(node).parent, info_of(node).parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    succeeded(node.run("DEL", asking(node), sandbox))


def test_118_cannot_be_written(node: Node, sandbox: str) -> None:
    """When the file cannot be written, ADD fails, names it and undoes everything: the workload would not find its socket."""
    network = {**asking(node), "cniVersion": "1.0.0", "ipam": node.host_local()}
    for obstacle in (info_of(node).parent.parent, info_of(node).parent):
        obstacle.parent.mkdir(exist_ok=True)
        obstacle.touch(exist_ok=False)
        refused(node.run("ADD", network, sandbox), 106, str(info_of(node)))
        assert node.leftovers() == {}
        obstacle.unlink()
    info_of(node).mkdir(parents=True)
    refused(node.run("ADD", network, sandbox), 106, str(info_of(node)))
    assert node.leftovers() == {}


def test_119_removal(node: Node, sandbox: str) -> None:
    """DEL removes our file without reading it, and succeeds if Multus has removed it or a device plugin had made it."""
    path = info_of(node)
    for content in ("", "garbage", None):
        succeeded(node.run("ADD", asking(node), sandbox))
        if content != "":
            path.unlink()
        if content:
            path.write_text(content)
        succeeded(node.run("DEL", asking(node), sandbox))
        assert not path.exists()
    succeeded(node.run("ADD", asking(node), sandbox))
    path.unlink()
    path.parent.rmdir()
    succeeded(node.run("DEL", asking(node), sandbox))
    assert node.leftovers() == {}


def test_a_file_that_is_another_devices_meanwhile(node: Node, sandbox: str) -> None:
    """DEL leaves a file for another type of device that was put in the place of ours."""
    path = info_of(node)
    other = '{"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:01:00.0"}}'
    succeeded(node.run("ADD", asking(node), sandbox))
    path.unlink()
    path.write_text(other)
    succeeded(node.run("DEL", asking(node), sandbox))
    assert path.read_text() == other
    assert node.leftovers() == {}


def test_120_without_the_file(node: Node, sandbox: str) -> None:
    """Multus asks for the file only with a deviceID: without it, result and document say where the socket is."""
    result = succeeded(node.run("ADD", node.network(deviceID="0000:00:01.0"), sandbox))
    assert result["interfaces"][0]["socketPath"] == switch_of(node).interface(PORT)["options"]["vhost-server-path"]
    document = json.loads((node.shared / CONTAINER[:12] / f"configData-{PORT}.json").read_text())
    assert document["config"]["vhost"] == {"mode": "server", "socketfile": PORT}
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}
