"""The programs that configure a NIC are found by their files and processes,
and each with the way to make it leave the NIC alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.host.places import eventually
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HostRoot
from userspace_cni.host.node_net.network_managers import managers_of
from userspace_cni.host.node_net.nics import Nic

NIC = Nic("ucnic7", 7777, "02:00:00:00:00:01", 1500, "", up=True, carrier=True, master="")


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("run/NetworkManager/devices/7777", "[device]\nmanaged=true\nconnection-uuid=1\n", ["NetworkManager"]),
        ("run/NetworkManager/devices/7777", "[device]\nmanaged=false\n", []),
        ("run/NetworkManager/devices/7778", "[device]\nmanaged=true\n", []),
        ("run/systemd/netif/links/7777", "# private\nADMIN_STATE=configured\nOPER_STATE=routable\n", ["systemd-networkd"]),
        ("run/systemd/netif/links/7777", "ADMIN_STATE=unmanaged\n", []),
    ],
)
def test_by_what_they_keep(tmp_path: Path, path: str, text: str, found: list[str]) -> None:
    """A state file that says that the program has this NIC counts; another NIC's, and one that says "unmanaged", do not."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    managers = managers_of([NIC], HostRoot(str(tmp_path)))[NIC.name]
    assert [each.name for each in managers] == found
    assert all(NIC.name in each.what_to_do for each in managers)


@pytest.mark.parametrize("path", ["run/NetworkManager/devices/7777", "run/systemd/netif/links/7777"])
def test_what_cannot_be_read(tmp_path: Path, path: str) -> None:
    """When a program's file about the NIC is unreadable or invalid, it is unknown whether the program has the NIC."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.mkdir()
    for named in ("Is a directory", "no settings"):
        with pytest.raises(Unavailable, match=f"{path}: .*{named}.*whether a program configures the NIC cannot be known"):
            managers_of([NIC], HostRoot(str(tmp_path)))
        if file.is_dir():
            file.rmdir()
        file.write_text("\0\0no settings")


@contextmanager
def running(program: Path, *arguments: str) -> Iterator[None]:
    """A process of that name, as a DHCP client on the node."""
    shutil.copy("/bin/dash", program)  # -s: it waits for what it is told to do
    with subprocess.Popen([program, "-v", "-s", "192.0.2.1", *arguments], stdin=subprocess.PIPE) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        eventually(lambda: comm.read_text().strip() == program.name)
        yield


def test_by_their_processes(tmp_path: Path) -> None:
    """A DHCP client counts when it names the NIC or no NIC at all, but not when it names another one."""
    root = HostRoot(str(tmp_path / "root"))
    with running(tmp_path / "dhclient", NIC.name):
        [found] = managers_of([NIC], root)[NIC.name]
        assert (found.name, NIC.name in found.what_to_do) == ("dhclient", True)
    with running(tmp_path / "dhclient", "-1"):
        assert [each.name for each in managers_of([NIC], root)[NIC.name]] == ["dhclient"]
    with running(tmp_path / "dhclient", "ucnic8"):
        assert managers_of([NIC], root) == {NIC.name: ()}


def test_not_in_another_namespace(tmp_path: Path, sandbox: str) -> None:
    """The host programs' files are about the host's NICs only."""
    file = tmp_path / "run/systemd/netif/links/7777"
    file.parent.mkdir(parents=True)
    file.write_text("ADMIN_STATE=configured\n")
    assert managers_of([NIC], HostRoot(str(tmp_path)), sandbox) == {NIC.name: ()}
