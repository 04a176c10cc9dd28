"""Connections to sockets of a name are counted from the listings of all network namespaces."""

from __future__ import annotations

from pathlib import Path

from userspace_cni.linux.unix_sockets import connections_anywhere


def test_connections_as_the_kernel_tells_them(tmp_path: Path) -> None:
    """Connections count by the name of their socket, once, in every namespace, accepted or not yet; listeners do not count."""
    lines = [
        "Num RefCount Protocol Flags Type St Inode Path",
        "0000000000000000: 00000002 00000000 00010000 0001 01 100 /run/ovs/c0ffee-net1",
        "0000000000000000: 00000003 00000000 00000000 0001 03 101 /run/ovs/c0ffee-net1",
        "0000000000000000: 00000003 00000000 00000000 0001 03 102 /run/ovs/c0ffee-net10",
        "0000000000000000: 00000003 00000000 00000000 0001 03 103",
    ]
    waiting = [f"0000000000000000: 00000002 00000000 00000000 0001 02 0 /run/ovs/c0ffee-net{number}" for number in (3, 3, 4)]
    for pid, namespace, shown in (("7", "net:[1]", lines), ("8", "net:[1]", lines), ("9", "net:[2]", waiting)):
        (tmp_path / pid / "net").mkdir(parents=True)
        (tmp_path / pid / "ns").mkdir()
        (tmp_path / pid / "ns" / "net").symlink_to(namespace)
        (tmp_path / pid / "net" / "unix").write_text("\n".join(shown))
    (tmp_path / "10").mkdir()
    (tmp_path / "self").mkdir()
    assert connections_anywhere("c0ffee-net10", tmp_path) == 1
    assert connections_anywhere("c0ffee-net3", tmp_path) == 2
    assert connections_anywhere("c0ffee-net2", tmp_path) == 0
