"""Debian's own IPAM plugins, as users have them, run by the plugin's own delegate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.node import PLUGINS
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DelegateFailed
from userspace_cni.host.runtimes.ipam import Delegate


def soon() -> Deadline:
    """A deadline that leaves enough time for any plugin that ends at all."""
    return Deadline.after(60)


def debians(plugin: str, container: str = "c0ffee") -> Delegate:
    attachment = {"CNI_CONTAINERID": container, "CNI_NETNS": "/var/run/netns/none", "CNI_IFNAME": "net1", "CNI_PATH": PLUGINS}
    return Delegate(plugin, [PLUGINS], {"PATH": os.defpath, **attachment})


def config(**ipam: Any) -> bytes:
    """A network's configuration with this `ipam` block."""
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "userspace", "ipam": ipam}).encode()


def test_host_local_leases_checks_and_releases(tmp_path: Path) -> None:
    """host-local writes its lease on ADD, confirms it on CHECK and removes it on DEL, twice if asked."""
    stdin = config(type="host-local", subnet="10.1.0.0/24", dataDir=str(tmp_path))
    delegate = debians("host-local")
    answer = delegate.add(stdin, soon())
    lease = tmp_path / "net" / "10.1.0.2"
    assert answer["ips"] == [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]
    assert lease.read_text().split() == ["c0ffee", "net1"]
    checked = {**json.loads(stdin), "prevResult": answer}
    delegate.check(json.dumps(checked).encode(), soon())
    delegate.delete(stdin, soon())
    delegate.delete(stdin, soon())
    assert not lease.exists()


def test_host_local_says_that_the_pool_is_empty(tmp_path: Path) -> None:
    """The plugin's own code and message come through unchanged."""
    stdin = config(
        type="host-local",
        dataDir=str(tmp_path),
        ranges=[[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"}]],
    )
    debians("host-local").add(stdin, soon())
    with pytest.raises(DelegateFailed, match="no IP addresses available") as caught:
        debians("host-local", "other").add(stdin, soon())
    assert caught.value.code == 999


def test_static_takes_its_addresses_from_the_config() -> None:
    """static answers with the addresses of its configuration."""
    delegate = debians("static")
    answer = delegate.add(config(type="static", addresses=[{"address": "10.9.0.5/16", "gateway": "10.9.0.1"}]), soon())
    assert answer["ips"] == [{"address": "10.9.0.5/16", "gateway": "10.9.0.1"}]


def test_versions_decide_what_is_forwarded() -> None:
    """STATUS and GC go only to a plugin that lists 1.1.0, which Debian 12's host-local does not; CHECK goes to every plugin."""
    delegate = debians("host-local")
    modern = "1.1.0" in delegate.versions(soon())
    assert "1.0.0" in delegate.versions(soon())
    assert [delegate.knows(verb, soon()) for verb in ("STATUS", "GC", "CHECK")] == [modern, modern, True]
