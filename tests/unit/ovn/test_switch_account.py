"""The account of the API server that external_ids of Open_vSwitch name."""

from __future__ import annotations

import base64

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.ovn.former_settings import read_places
from userspace_cni.ovn.switch_account import read_account

PEM = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
IDS = {"k8s-api-server": "https://192.0.2.1:6443", "k8s-ca-certificate": PEM.replace("\n", "\\n"), "k8s-api-token": "t"}


def authority(ids: dict[str, str], file: str = "") -> str:
    return base64.b64decode(read_account(ids, file).cluster["certificate-authority-data"]).decode()


def test_what_the_keys_say() -> None:
    """Without a scheme the server is asked by HTTP; a backslash and n divide lines of the certificate; a file of it wins."""
    found = read_account(IDS, "")
    assert (found.cluster["server"], found.user) == ("https://192.0.2.1:6443", {"token": "t"})
    assert authority(IDS) == PEM
    assert authority(IDS, "of the file") == "of the file"
    plain = read_account({"k8s-api-server": "127.0.0.1:8080"}, "")
    assert (plain.cluster, plain.user) == ({"server": "http://127.0.0.1:8080"}, {})


@pytest.mark.parametrize("server", ["ftp://192.0.2.1", "https://me:word@192.0.2.1", "https://192.0.2.1/ x", "http://"])
def test_a_server_that_cannot_be(server: str) -> None:
    """It is told by its key alone."""
    with pytest.raises(InvalidConfig, match="k8s-api-server of Open_vSwitch is no URL") as refused:
        read_account({"k8s-api-server": server}, "")
    assert server not in str(refused.value)


@pytest.mark.parametrize("secret", ["first word", "word\nX-Other: 1", "w\u00f6rd", "word\x7f"])
def test_a_token_that_cannot_be(secret: str) -> None:
    """It is told by its key alone, and is in no request."""
    with pytest.raises(InvalidConfig, match="k8s-api-token of Open_vSwitch is no token") as refused:
        read_account({"k8s-api-server": "https://192.0.2.1:6443", "k8s-api-token": secret}, "")
    assert secret not in str(refused.value)


def test_places_of_the_tools_settings() -> None:
    """The defaults are those of then."""
    assert read_places("").authority == "/etc/openvswitch/k8s-ca.crt"
    assert read_places("[default]\nk8s_ca_certificate='/x.crt'\n").authority == "/x.crt"
    for line in ("mtu=ten", "mtu=1", "cni_link_path=plugins", "cni_conf_path='networks'"):
        with pytest.raises(InvalidConfig, match=line.partition("=")[0]):
            read_places(f"[default]\n{line}\n")
