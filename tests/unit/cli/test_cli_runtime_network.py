"""`install --network`: files that are invalid, and what a former `none` has left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.steps import RuntimeNetwork
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.settings import Settings
from userspace_cni.cli.node.install import InstallError
from userspace_cni.cli.node.install_network import forget_network, keep_network
from userspace_cni.cli.site import Site
from userspace_cni.cni.conflist import mark
from userspace_cni.host.runtimes.runtime_networks import RuntimeNetworkDriver
from userspace_cni.network.runtime_network import NAME
from userspace_cni.network.spec_list import INSTALL, RUNTIME_NETWORK
from userspace_cni.node.belongings import RUNTIME_NETWORK_COPY

CONFIG = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "userspace"}]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A node without a switch and without an agent."""
    settings = Settings(
        state_dir=f"{tmp_path}/state",
        run_dir=f"{tmp_path}/run",
        short_dir=f"{tmp_path}/short",
        ovsdb=f"unix:{tmp_path}/db.sock",
        ovs_rundir=str(tmp_path),
        cni_conf_dir=f"{tmp_path}/net.d",
    )
    made = Site(settings, environ={})
    yield made
    made.drivers.close()


@pytest.mark.parametrize("kind", ["FIFO", "directory", "device", "large", "absent"])
def test_what_is_no_file_of_a_network(site: Site, tmp_path: Path, kind: str) -> None:
    """It is refused without waiting for it or reading it for ever; nothing of it is kept."""
    path = tmp_path / "10-net.conflist"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/null")
    elif kind == "large":
        path.touch()
        os.truncate(path, 1 << 40)
    why = {"large": "too large", "absent": "No such file"}.get(kind, "not a regular file")
    with pytest.raises(InstallError, match=why):
        keep_network(str(path), site, standalone=False)
    assert not (tmp_path / "state" / RUNTIME_NETWORK_COPY).exists()


def test_none_is_run_again(site: Site) -> None:
    """When `none` died after it forgot the network, or could not remove the file, the next one removes it."""
    store = site.node.store.journal.identity()
    ours = RuntimeNetwork(site.settings.cni_conf_dir, "10-net.conflist", mark(CONFIG, store), store)
    RuntimeNetworkDriver().apply(ours, Deadline.after(60))
    container = node_container(RUNTIME_NETWORK)
    record = Record("ready", INSTALL, container, NAME, boot_id=site.node.store.boot_id(), steps=(ours,))
    site.node.store.journal.write(record)
    assert forget_network(site) == "the network is taken away"
    assert list(Path(ours.directory).iterdir()) == []
    assert forget_network(site) == "no network was installed"
