"""How a tap is configured: the command line, the pod's own document, and who makes the socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from userspace_cni.base.errors import BadRequest, Unavailable
from userspace_cni.cli.main import userspace_cni
from userspace_cni.pod import document
from userspace_cni.tap.tap_forwarding import DesiredTap, TapBridge, TapMode, of_pod, sources_of

MAC = "02:00:00:00:00:01"


def told(directory: Path, ifname: str, **vhost: Any) -> None:
    """An entry in the directory, as the plugin writes it for a pod."""
    config = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "client", "socketfile": f"{ifname}.sock", **vhost}}
    ips = [{"address": "10.1.1.2/24", "gateway": "10.1.1.1"}, {"address": "fd00::2/64"}]
    result = {"interfaces": [{"name": ifname, "mac": MAC, "mtu": 1400}], "ips": ips}
    entry = document.build_entry("c" * 64, ifname, "network", config, result)
    (directory / f"configData-{ifname}.json").write_text(json.dumps(entry))


def tap(*arguments: str) -> Result:
    """The command, in a process that has no pod's document."""
    return CliRunner().invoke(userspace_cni, ["tap", *arguments])


def test_all_that_the_pod_is_told(tmp_path: Path) -> None:
    """The only interface's socket, role, name, MAC, MTU and addresses are used."""
    told(tmp_path, "net1")
    expected = DesiredTap(f"{tmp_path}/net1.sock", TapMode.CLIENT, "net1", MAC, 1400, ("10.1.1.2/24", "fd00::2/64"))
    assert of_pod("", 0, sources_of(directory=str(tmp_path))) == expected


def test_one_of_several_interfaces(tmp_path: Path) -> None:
    """With several interfaces one has to be named, and all are."""
    told(tmp_path, "net1")
    told(tmp_path, "net2", mode="server")
    sources = sources_of(directory=str(tmp_path))
    assert of_pod("net2", 0, sources).mode is TapMode.SERVER
    with pytest.raises(BadRequest, match="net1, net2; --interface"):
        of_pod("", 0, sources)
    with pytest.raises(Unavailable, match="no interface net3"):
        of_pod("net3", 0, sources)


def test_options_override_what_the_pod_is_told() -> None:
    """The command line takes precedence, the rest comes from the document."""
    of_document = DesiredTap("/s", TapMode.SERVER, "net1", MAC, 1400, ("10.1.1.2/24",))
    assert DesiredTap("").overriding(of_document) == of_document
    given = DesiredTap("", TapMode.CLIENT, "eth7", "", 9000, ("10.2.2.2/24",))
    assert given.overriding(of_document) == DesiredTap("/s", TapMode.CLIENT, "eth7", MAC, 9000, ("10.2.2.2/24",))
    given = DesiredTap("", socket_mode=0o666, force=True)
    assert given.overriding(of_document) == replace(of_document, socket_mode=0o666, force=True)


def test_who_makes_the_socket(tmp_path: Path) -> None:
    """Unless told otherwise, the command connects to a socket on which a process listens, and makes it otherwise."""

    def decided(mode: TapMode = TapMode.AUTO) -> TapMode:
        return TapBridge(DesiredTap(f"{tmp_path}/s", mode))._decided()

    assert decided() is TapMode.SERVER
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        assert decided() is TapMode.CLIENT
        assert decided(TapMode.SERVER) is TapMode.SERVER
    assert decided() is TapMode.SERVER


def test_pod_that_is_told_nothing(tmp_path: Path) -> None:
    """Without a source for the interface the exit code is 3, and the error names where it looked."""
    result = tap("--dir", str(tmp_path), "--wait", "0")
    assert result.exit_code == 3
    assert f"{tmp_path}: nothing about vhost-user interfaces yet" in result.stderr


def test_what_a_tap_waits_for_is_told(tmp_path: Path) -> None:
    """Without a terminal there is a line at once about what is missing and for how long, and one when it has come."""
    command = [
        sys.executable,
        "-m",
        "userspace_cni",
        "tap",
        "--dir",
        str(tmp_path),
        "--wait",
        "60",
        "--name",
        "a-name-that-is-too-long",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        missing = process.stderr.readline()
        assert missing.startswith("waiting: this container's vhost-user interfaces: ")
        assert f"{tmp_path}: nothing about vhost-user interfaces yet, no file configData-*.json" in missing
        assert missing.endswith("Z, up to 60 s)\n")
        told(tmp_path, "net1")
        assert process.stderr.readline().startswith(f"net1: told of it, {tmp_path}/net1.sock (after ")
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/s", "--mac", "03:00:00:00:00:01"], "not a MAC address of one station"),
        (["/s", "--mac", "02-00-00-00-00-01"], "not a MAC address of one station"),
        (["/s", "--mtu", "65518"], "68<=x<=65517"),
        (["/s", "--address", "10.1.1.1"], "no prefix length"),
        (["/s", "--address", "10.1.1.300/24"], "10.1.1.300/24"),
        (["/s", "--mode", "both"], "both"),
        (["/s", "--socket-mode", "0888"], "'0888' is not a mode of a file, such as 0660"),
        (["/s", "--socket-mode", "rw"], "'rw' is not a mode of a file"),
        (["/s", "--socket-mode", "4755"], "'4755' is not a mode of a file"),
        (["/s", "--interface", "net1"], "--interface is for a pod's own interfaces"),
        (["/s", "--dir", "/x"], "--dir is for a pod's own interfaces"),
    ],
)
def test_usage(arguments: list[str], words: str) -> None:
    """Wrong usage is refused with 2, before anything is made."""
    result = tap(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
