"""The node's MTU and its network of Services come from a setting or from another program's file, and are never guessed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.host.node_net.mtu import NodeMtu, node_mtu, node_services


def settings(path: Path, mtu: int = 0) -> Settings:
    return Settings(mtu=mtu, mtu_file=str(path))


def test_settings_alone(tmp_path: Path) -> None:
    """Without a file the setting applies, else 1500; with a setting the file is not read."""
    assert node_mtu(Settings()) == NodeMtu(1500)
    assert node_mtu(Settings(mtu=1400)) == NodeMtu(1400)
    assert node_mtu(settings(tmp_path / "absent", 1400)) == NodeMtu(1400)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"mtu": 1450, "serviceNetworkCIDR": "10.0.0.0/8"}', NodeMtu(1450)),
        ('{"mtu": 1450, "routableMTU": 1400, "platformType": "None"}', NodeMtu(1450, 1400)),
        ('{"mtu": 1450, "routableMTU": null}', NodeMtu(1450)),
        ('{"mtu": 1400, "routableMTU": 1450}', NodeMtu(1400, 1400)),
    ],
)
def test_what_a_file_says(tmp_path: Path, text: str, found: NodeMtu) -> None:
    """Both forms of openshift-sdn are read, also below an agent's root; routes never get a larger MTU than links."""
    path = tmp_path / "config.json"
    path.write_text(text)
    path.chmod(0o444)
    assert node_mtu(settings(path)) == found
    assert node_mtu(Settings(mtu_file="/config.json"), HostRoot(str(tmp_path))) == found


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    """While the file is missing nothing is guessed: the answer is "try again"."""
    path = tmp_path / "config.json"
    with pytest.raises(Unavailable, match="not yet available"):
        node_mtu(settings(path))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "Expecting value"),
        ("[]", "not a JSON object"),
        ("{}", "it has no 'mtu'"),
        ('{"mtu": "1450"}', "'mtu' is '1450'"),
        ('{"mtu": true}', "'mtu' is True"),
        ('{"mtu": 67}', "'mtu' is 67"),
        ('{"mtu": 1450, "routableMTU": 0}', "'routableMTU' is 0"),
        ('{"mtu": 1450}' + " " * (64 << 10), "more than 65536 bytes"),
    ],
)
def test_a_file_that_says_nothing(tmp_path: Path, text: str, named: str) -> None:
    """An invalid MTU is refused with file, key and value."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        node_mtu(settings(path))
    assert [part for part in (str(path), named) if part not in refused.value.message] == []


def test_a_file_of_others(tmp_path: Path) -> None:
    """A file that others can write, and anything but a regular file, is not read; a FIFO without a writer does not block."""
    path = tmp_path / "config.json"
    path.write_text('{"mtu": 1450}')
    path.chmod(0o666)
    with pytest.raises(InvalidConfig, match="with mode 666"):
        node_mtu(settings(path))
    path.chmod(0o644)
    os.chown(path, 65534, -1)
    with pytest.raises(InvalidConfig, match="belongs to user 65534"):
        node_mtu(settings(path))
    path.unlink()
    os.mkfifo(path)
    for wrong in (path, tmp_path):
        with pytest.raises(InvalidConfig, match="not a regular file"):
            node_mtu(settings(wrong))


@pytest.mark.parametrize(
    ("said", "found"),
    [('"172.30.0.0/16"', "172.30.0.0/16"), ('"172.30.0.1/16"', "172.30.0.0/16"), ('"fd02::/112"', "fd02::/112")],
)
def test_the_network_of_services(tmp_path: Path, said: str, found: str) -> None:
    """It is beside the MTU in the file, and read as by openshift-sdn's plugin, without host bits.

    The setting `mtu` does not hide it.
    """
    path = tmp_path / "config.json"
    path.write_text(f'{{"mtu": 1450, "serviceNetworkCIDR": {said}}}')
    assert node_services(settings(path)) == found
    assert node_services(settings(path, 1400)) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"mtu": 1450, "routableMTU": 1400}', "it has no 'serviceNetworkCIDR'"),
        ('{"serviceNetworkCIDR": null}', "it has no 'serviceNetworkCIDR'"),
        ('{"serviceNetworkCIDR": "172.30.0.0"}', "'serviceNetworkCIDR' is '172.30.0.0'"),
        ('{"serviceNetworkCIDR": ["172.30.0.0/16"]}', "'serviceNetworkCIDR' is ['172.30.0.0/16']"),
    ],
)
def test_a_file_without_the_network_of_services(tmp_path: Path, text: str, named: str) -> None:
    """It is refused with file, key and value, as is a node without such a file; while that is absent it is tried again."""
    path = tmp_path / "config.json"
    with pytest.raises(Unavailable, match="not yet available"):
        node_services(settings(path))
    path.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        node_services(settings(path))
    assert [part for part in (str(path), named) if part not in refused.value.message] == []
    with pytest.raises(InvalidConfig, match="mtu_file names no file"):
        node_services(Settings(mtu=1400))
