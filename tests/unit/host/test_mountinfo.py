"""The mount table is read as the kernel writes it, whatever a pod calls its directories."""

from __future__ import annotations

from pathlib import Path

from userspace_cni.host.files.mountinfo import Mount, read

LINE = "36 35 98:0 {root} {point} rw,relatime shared:1 master:2 - ext4 /dev/root rw\n"


def test_a_name_with_every_kind_of_line_end(tmp_path: Path) -> None:
    """A pod chooses the directory of a `subPath`, which is in the host's table: only a line feed ends a line there (seq_path)."""
    table = tmp_path / "mountinfo"
    table.write_bytes(LINE.format(root="/pod/a\rb\x0b\x1c\u2028", point="/\\012\\040\\134\r").encode())
    groups = frozenset({"shared:1", "master:2"})
    assert read(str(table)) == {36: Mount(36, "98:0", "/pod/a\rb\x0b\x1c\u2028", "/\n \\\r", groups)}
