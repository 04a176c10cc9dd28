"""Where OVN's databases are, and with which files they are reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import Settings
from userspace_cni.controller.port_service import read_task
from userspace_cni.ovn.remotes import northbound_remote, reached_files, reached_remote, southbound_remote, tls_files
from userspace_cni.ovsdb.database import Tls

WITH_FILES = Settings(ovn_private_key="/k", ovn_certificate="/c", ovn_ca_cert="/a")


def test_settings_win_over_the_switch() -> None:
    """And the switch over OVN's usual sockets."""
    ids = {"ovn-nb": "tcp:192.0.2.1:6641", "ovn-remote": "ssl:192.0.2.1:6642"}
    assert northbound_remote(Settings(ovn_nb="unix:/nb"), ids) == "unix:/nb"
    assert northbound_remote(Settings(), ids) == "tcp:192.0.2.1:6641"
    assert southbound_remote(Settings(), ids) == "ssl:192.0.2.1:6642"
    assert southbound_remote(Settings(), {}) == "unix:/var/run/ovn/ovnsb_db.sock"


def test_the_switch_names_what_cannot_be() -> None:
    """The key and the value are told."""
    with pytest.raises(InvalidConfig, match=r"external_ids:ovn-nb of Open_vSwitch is '192\.0\.2\.1'"):
        northbound_remote(Settings(), {"ovn-nb": "192.0.2.1"})


def test_tls_needs_three_files() -> None:
    """For any address with TLS among several; what is missing is named before anything connects."""
    remote = "tcp:192.0.2.1:6641,ssl:192.0.2.2:6641"
    assert tls_files(WITH_FILES, remote) == Tls("/k", "/c", "/a")
    assert tls_files(Settings(), "tcp:192.0.2.1:6641") is None
    with pytest.raises(InvalidConfig, match="ovn_certificate and ovn_ca_cert must be set"):
        tls_files(Settings(ovn_private_key="/k"), remote)


def test_paths_are_the_hosts() -> None:
    """A process that sees the host's root elsewhere reaches sockets and files there; what is no path stays."""

    def below(path: str) -> str:
        return f"/host{path}"

    remote = "unix:/run/a,b.sock,tcp:192.0.2.1:6641,ssl:[2001:db8::1]:6641,unix:/run/nb.sock"
    expected = "unix:/host/run/a,b.sock,tcp:192.0.2.1:6641,ssl:[2001:db8::1]:6641,unix:/host/run/nb.sock"
    assert reached_remote(remote, below) == expected
    assert reached_files(Tls("/k", "/c", "/a"), below) == Tls("/host/k", "/host/c", "/host/a")
    assert reached_files(None, below) is None
    task = read_task(replace(WITH_FILES, ovn_nb="unix:/nb,ssl:192.0.2.1:6641"), map_path=below)
    assert (task.remote, task.tls) == ("unix:/host/nb,ssl:192.0.2.1:6641", Tls("/host/k", "/host/c", "/host/a"))
