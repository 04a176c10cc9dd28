"""The environment and the network configuration: what is refused, with which code and which names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from userspace_cni.base.errors import BadEnvironment, InvalidConfig, Undecodable, UnsupportedVersion, UserspaceError
from userspace_cni.cni.request import Verb, decode, read_environment, read_network, read_verb, valid_attachments

GOOD = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}


def network(**keys: Any) -> bytes:
    """A configuration's bytes, with `keys` over the usual ones."""
    return json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace", **keys}).encode()


@pytest.mark.parametrize("command", ["NOPE", "add", "", "ADD "])
def test_unknown_command_is_named(command: str) -> None:
    """A CNI_COMMAND that is no verb is refused with 4, naming the variable and the value."""
    with pytest.raises(BadEnvironment, match="CNI_COMMAND") as refused:
        read_verb({"CNI_COMMAND": command})
    assert refused.value.code == 4
    assert repr(command) in str(refused.value)


def test_all_missing_variables_are_listed() -> None:
    """One message lists everything that is missing; empty counts as missing."""
    with pytest.raises(BadEnvironment) as refused:
        read_environment({"CNI_COMMAND": "ADD", "CNI_NETNS": ""}, "ADD")
    assert "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]" in refused.value.message


@pytest.mark.parametrize("value", ["a/b", "_a", "a\n", "-x", "a b", "é"])
def test_bad_container_id(value: str) -> None:
    """A container ID that does not match as a whole is refused with 4."""
    with pytest.raises(BadEnvironment, match="CNI_CONTAINERID"):
        read_environment({**GOOD, "CNI_CONTAINERID": value}, "ADD")


@pytest.mark.parametrize("value", ["x" * 16, "é" * 8, "a:b", "a/b", "a b", "a\u00a0b", ".", ".."])
def test_bad_ifname(value: str) -> None:
    """An interface name the kernel would not take is refused with 4."""
    with pytest.raises(BadEnvironment, match="CNI_IFNAME"):
        read_environment({**GOOD, "CNI_IFNAME": value}, "ADD")


def test_longest_ifname() -> None:
    """Fifteen bytes are a valid interface name."""
    assert read_environment({**GOOD, "CNI_IFNAME": "x" * 15}, "ADD").ifname == "x" * 15


def test_last_argument_holds() -> None:
    """In CNI_ARGS keys may repeat, as Multus sends them, and the last counts; values may contain '=' or be empty.

    A trailing ';' is ignored.
    """
    args = read_environment({**GOOD, "CNI_ARGS": "A=1;A=2;B=x=y;K8S_POD_UID=;"}, "ADD").args
    assert args == {"A": "2", "B": "x=y", "K8S_POD_UID": ""}


def test_argument_without_value() -> None:
    """An item without '=' fails ADD with 4, and DEL not at all."""
    with pytest.raises(BadEnvironment, match="CNI_ARGS"):
        read_environment({**GOOD, "CNI_ARGS": "nonsense"}, "ADD")
    assert read_environment({**GOOD, "CNI_ARGS": "nonsense"}, "DEL").args == {}


def test_pod_uid_is_no_path() -> None:
    """A K8S_POD_UID that would lead out of the kubelet's directory fails ADD and is ignored by DEL."""
    with pytest.raises(BadEnvironment, match="K8S_POD_UID"):
        read_environment({**GOOD, "CNI_ARGS": "K8S_POD_UID=../../etc"}, "ADD")
    assert read_environment({**GOOD, "CNI_ARGS": "K8S_POD_UID=../../etc"}, "DEL").pod_uid == ""


@pytest.mark.parametrize(
    "stdin", [b"", b"{", b"[]", b"null", b"{} {}", b"\xef\xbb\xbf{}", b'{"name":NaN}', b"\xff", b"[" * 100_000, b"1" * 5000]
)
def test_not_one_json_object(stdin: bytes) -> None:
    """Stdin that is not exactly one JSON object is refused with 6."""
    with pytest.raises(Undecodable) as refused:
        decode(stdin)
    assert refused.value.code == 6


@pytest.mark.parametrize(
    ("keys", "verb", "kind"),
    [
        ({"name": ""}, "ADD", InvalidConfig),
        ({"name": "a/b"}, "ADD", InvalidConfig),
        ({"name": None}, "DEL", InvalidConfig),
        ({"name": 3}, "ADD", Undecodable),
        ({"cniVersion": 1}, "ADD", Undecodable),
        ({"cniVersion": "9.9.9"}, "ADD", UnsupportedVersion),
        ({"cniVersion": ""}, "ADD", UnsupportedVersion),
        ({"cniVersion": "junk"}, "ADD", UnsupportedVersion),
        ({"cniVersion": "junk"}, "DEL", UnsupportedVersion),
        ({"cniVersion": "junk"}, "CHECK", Undecodable),
        ({"cniVersion": "0.3.1"}, "CHECK", UnsupportedVersion),
        ({"cniVersion": "1.0.0"}, "GC", UnsupportedVersion),
        ({"cniVersion": "1.0.0"}, "STATUS", UnsupportedVersion),
        ({"ipam": "host-local"}, "ADD", Undecodable),
        ({"ipam": {"type": 1}}, "ADD", Undecodable),
    ],
)
def test_refused_networks(keys: dict[str, Any], verb: Verb, kind: type[UserspaceError]) -> None:
    """Name, version and verb are checked as the reference library checks them."""
    with pytest.raises(kind) as refused:
        read_network(network(**keys), verb)
    assert refused.value.code == kind.default_code


def test_version_details() -> None:
    """The version error tells the configuration's version and ours."""
    with pytest.raises(UnsupportedVersion) as refused:
        read_network(network(cniVersion="9.9.9"), "ADD")
    assert "9.9.9" in refused.value.details
    assert "0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0" in refused.value.details


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_attachments_under_either_key(key: str) -> None:
    """GC's list is read under the final key and the one of the 1.1.0 drafts."""
    raw = read_network(network(**{key: [{"containerID": "a", "ifname": "b"}]}), "GC")
    assert valid_attachments(raw) == frozenset({("a", "b")})


def test_final_attachments_key_wins() -> None:
    """With both keys there, the final one is read."""
    raw = read_network(network(**{"cni.dev/valid-attachments": None, "cni.dev/attachments": [{"x": 1}]}), "GC")
    assert valid_attachments(raw) == frozenset()


def test_absent_attachments() -> None:
    """A missing list is distinguished from an empty one."""
    assert valid_attachments(read_network(network(), "GC")) is None


@pytest.mark.parametrize("entries", [{}, "x", [1], [{}], [{"containerID": "a"}], [{"containerID": "a", "ifname": 1}]])
def test_malformed_attachments(entries: object) -> None:
    """A list of another shape is refused with 7: a wrong guess would remove live attachments."""
    with pytest.raises(InvalidConfig):
        valid_attachments(read_network(network(**{"cni.dev/valid-attachments": entries}), "GC"))
