"""The columns of a mirror in the Mirror table: ovs-vswitchd.conf.db(5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from userspace_cni.dataplane.ovsdb.rows.columns import Columns


def mirror_columns(name: str, source: Any, output: Any, marks: Mapping[str, str]) -> Columns:
    """A mirror of every frame that comes from or goes to the port `source`; both ports are references."""
    return {
        "name": name,
        "select_src_port": ("set", [source]),
        "select_dst_port": ("set", [source]),
        "output_port": output,
        "external_ids": dict(marks),
    }
