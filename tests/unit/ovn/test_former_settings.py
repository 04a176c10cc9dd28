"""The settings file of ovn-kubernetes' first tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import Settings
from userspace_cni.ovn.former_settings import add_former

TEXT = """
[default]
mtu=1400
unix_socket = "/var/run/openvswitch/ovnnb_db.sock"
private_key='/etc/openvswitch/key.pem'
certificate=/etc/openvswitch/cert.pem
ca_cert=/etc/openvswitch/absent.pem
"""


def add(settings: Settings, text: str = TEXT, northbound: str = "") -> Settings:
    return add_former(settings, text, northbound, is_there=lambda path: "absent" not in path)


def test_it_says_what_nothing_else_does() -> None:
    """Values are Python's literals or plain text; a file that is not there is not meant."""
    found = add(Settings())
    assert found.ovn_nb == "unix:/var/run/openvswitch/ovnnb_db.sock"
    assert (found.ovn_private_key, found.ovn_certificate, found.ovn_ca_cert) == (
        "/etc/openvswitch/key.pem",
        "/etc/openvswitch/cert.pem",
        "",
    )


def test_settings_and_the_switch_win() -> None:
    """Over the file."""
    found = add(Settings(ovn_nb="tcp:192.0.2.1:6641", ovn_certificate="/c"))
    assert (found.ovn_nb, found.ovn_certificate) == ("tcp:192.0.2.1:6641", "/c")
    assert add(Settings(), northbound="tcp:192.0.2.1:6641").ovn_nb == ""


def test_a_file_without_sense() -> None:
    """It is told by its path; one of the later tools, with other sections, says nothing."""
    with pytest.raises(InvalidConfig, match=r"/etc/openvswitch/ovn_k8s\.conf cannot be read"):
        add(Settings(), "mtu=1400\n")
    assert add(Settings(), "[kubernetes]\ntoken=x\n") == Settings()


def test_a_socket_whose_name_no_file_can_have() -> None:
    """The key is named, with what the system says."""
    text = f"[default]\nunix_socket=/run/{'x' * 300}\n"
    with pytest.raises(InvalidConfig, match="unix_socket is") as refused:
        add_former(Settings(), text, is_there=lambda path: Path(path).exists())
    assert "too long" in refused.value.details
