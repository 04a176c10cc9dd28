"""The setting routes_file: which files are read, and which are reported and change nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.base.settings import Settings
from userspace_cni.node.installation import Installation
from userspace_cni.routes.routes_service import read_kept, read_routes_file


def node(tmp_path: Path, name: str = "cr-config.yaml") -> Installation:
    return Installation(Settings(routes_file=str(tmp_path / name), state_dir=str(tmp_path)), {}, resident=True)


def test_what_is_read(tmp_path: Path) -> None:
    """The file is read, also by a link as in a ConfigMap. A file with [] has no routes, like a missing file."""
    assert read_routes_file(node(tmp_path)) == ()
    assert read_routes_file(Installation(Settings(), {}, resident=True)) == ()
    real = tmp_path / "real.yaml"
    real.write_text("- {route: 172.16.0.0/16, dev: eth1}\n")
    (tmp_path / "cr-config.yaml").symlink_to(real)
    [thing] = read_routes_file(node(tmp_path))
    assert thing["spec"]["route"] == [{"dst": "172.16.0.0/16", "dev": "eth1"}]
    real.write_text("[]")
    [thing] = read_routes_file(node(tmp_path))
    assert thing["spec"]["route"] == []


@pytest.mark.parametrize("text", ["", " \n", "{", "- 7", "a: b", "\udcff"])
def test_what_cannot_be(tmp_path: Path, text: str) -> None:
    """An empty file may still be being written, other files have no routes. Each is an error that names the file."""
    path = tmp_path / "cr-config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidConfig, match=r"cr-config\.yaml"):
        read_routes_file(node(tmp_path))


@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o664, 0), (0o644, 1000)])
def test_a_file_that_others_can_write(tmp_path: Path, mode: int, owner: int) -> None:
    """A file that other users can write is refused: root would make its routes in every pod."""
    path = tmp_path / "cr-config.yaml"
    path.write_text("[]")
    path.chmod(mode)
    os.chown(path, owner, owner)
    with pytest.raises(InvalidConfig, match="writable by root alone"):
        read_routes_file(node(tmp_path))


def test_two_routes_of_one_name(tmp_path: Path) -> None:
    """Both are refused: otherwise their order would decide which one counts."""
    thing = {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "a"}, "spec": {"route": [], "svc": []}}
    (tmp_path / "cr-config.yaml").write_text(json.dumps([thing, thing]))
    with pytest.raises(InvalidConfig, match="twice: objects number 1 and 2"):
        read_routes_file(node(tmp_path))


def test_what_is_no_file(tmp_path: Path) -> None:
    """A FIFO, which would block the reader for ever, and a directory are not opened."""
    os.mkfifo(tmp_path / "cr-config.yaml")
    with pytest.raises(InvalidConfig, match="not a regular file"):
        read_routes_file(node(tmp_path))
    (tmp_path / "cr-config.yaml").unlink()
    (tmp_path / "cr-config.yaml").mkdir()
    with pytest.raises(InvalidConfig, match="not a regular file"):
        read_routes_file(node(tmp_path))


@pytest.mark.parametrize("text", ["", "{", '{"schema": 7}', "\udcff"])
def test_a_torn_file_of_the_former_agent(tmp_path: Path, text: str) -> None:
    """A torn file of an agent that crashed is an error, and no part of it is used."""
    (tmp_path / "routes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserspaceError, match=r"routes\.json"):
        read_kept(node(tmp_path))
