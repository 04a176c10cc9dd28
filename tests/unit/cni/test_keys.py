"""Misspelt keys of a network are refused with the key that was meant; every other key, known or not, is accepted."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.misspelt import is_within
from userspace_cni.cni import keys
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.consumers import CONSUMERS

LETTERS = string.ascii_letters + string.digits
PLACES = st.sampled_from(sorted(keys.PLACES))
ALL_KNOWN = sorted({key for known in keys.PLACES.values() for key in known})

MANIFEST = """{
    "cniVersion": "1.1.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "n", "type": "userspace", "disableGC": true,
    "disableCheck": true, "loadOnlyInlinedPlugins": true, "deviceID": "0000:00:01.0", "pciBusID": "0000:00:01.0",
    "runtimeConfig": {"ipss": [], "macs": ""}, "capabilities": {"maac": true}, "prevResult": {"interface": []},
    "args": {"cnis": {}, "cni": {"macs": "x", "OvnPort": "p"}}, "dns": {"nameserver": []}, "ipam": {"types": "x"},
    "cni.dev/attachment": [], "cni.dev/valid-attachments": [], "plugins": [], "device": "eth0", "delegates": [],
    "LogFile": "/x", "LogLevel": "debug", "_host": {}, "#bridge": {}, "//container": {}, "mtuu": 1,
    "Host": {
        "engine": "ovs-dpdk", "memif": {"rolle": "x", "modes": "y"}, "bandwidth": {"ingresRate": 0}, "trunks": [],
        "vhost": {"mode": "client", "ingressPolicingRate": 1, "ingressPolicingBurst": 1, "bridge": {}},
        "bridge": {"bridgeName": "br0", "bridge": "br1", "trunks": [{"minId": 1}]}
    }
}"""
"""Keys that a program reads, at their allowed places; and deprecated ones, with a sign in front."""


def within(place: str, held: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(place.split(".") if place else []):
        held = {name: held}
    return held


def told(raw: dict[str, Any]) -> list[str]:
    """The warnings about the keys of a valid configuration."""
    warnings: list[str] = []
    keys.check(raw, warnings.append)
    return warnings


def refusal(raw: dict[str, Any]) -> keys.Misspelt:
    """The error by which a configuration is refused."""
    with pytest.raises(keys.Misspelt) as refused:
        told(raw)
    return refused.value


def distance(one: str, other: str) -> int:
    """Levenshtein's, as every textbook has it."""
    above = list(range(len(other) + 1))
    for row, mine in enumerate(one, 1):
        line = [row]
        for column, theirs in enumerate(other, 1):
            line.append(min(above[column] + 1, line[column - 1] + 1, above[column - 1] + (mine != theirs)))
        above = line
    return above[-1]


@st.composite
def mutated(draw: st.DrawFn, key: str) -> str:
    """The key with one or two letters inserted, removed or replaced, or two neighbours exchanged; in any case."""
    if draw(st.booleans()) and len(key) > 1:
        at = draw(st.integers(0, len(key) - 2))
        return key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(key)))
        letter = draw(st.sampled_from(LETTERS))
        key = draw(st.sampled_from([key[:at] + letter + key[at:], key[:at] + key[at + 1 :], key[:at] + letter + key[at + 1 :]]))
    return draw(st.sampled_from([key, key.lower(), key.upper()]))


@given(PLACES, st.data())
def test_every_misspelling_is_refused(place: str, data: st.DataObject) -> None:
    """A known key with one or two letters inserted, removed, replaced or exchanged is 7, which names key, place and known key."""
    known = data.draw(st.sampled_from(keys.PLACES[place]))
    key = data.draw(mutated(known))
    assume(len(key) >= 5 and key.lower() not in keys._ALLOWED)
    error = refusal(within(place, {key: {}}))
    assert (error.code, error.place, error.key) == (7, place, key)
    assert f"'{keys.path_of(place, key)}'" in error.message
    meant = error.meant.rpartition(".")[2]
    assert 1 <= distance(key.lower(), meant.lower()) <= min(2, distance(key.lower(), known.lower()))


@given(PLACES, st.sampled_from([*ALL_KNOWN, *keys._OTHERS]), st.sampled_from([str, str.lower, str.upper]))
def test_no_known_key_is_refused(place: str, key: str, spelling: Any) -> None:
    """A key that is known anywhere, or that other plugins have, is accepted at every place and in any case; a known one without a
    warning.

    Only keys of the specification that decide about the interface have one spelling at the top: the next test.
    """
    assume(place or spelling(key) == key or key not in keys._WRITTEN.values())
    warnings = told(within(place, {spelling(key): None}))
    if key in keys.PLACES[place] and (place or key in keys.TOP or spelling(key) == key):
        assert warnings == []


@pytest.mark.parametrize("key", keys._WRITTEN.values())
def test_what_decides_about_the_interface_has_one_spelling(key: str) -> None:
    """At the top another case of it is 7, which gives the spelling; elsewhere it is no key of the specification."""
    for written in {key.lower(), key.upper(), key.title()} - {key}:
        assert refusal({written: None}).meant == key
        told({"host": {written: None}})


@given(st.text(st.sampled_from("abc"), max_size=7), st.text(st.sampled_from("abc"), max_size=7), st.integers(0, 3))
def test_edits_are_counted_as_by_the_book(one: str, other: str, edits: int) -> None:
    """Two texts count as near exactly when Levenshtein's distance says so."""
    assert is_within(one, other, edits) == (distance(one, other) <= edits)


@pytest.mark.parametrize(
    ("raw", "where", "meant"),
    [
        ({"host": {"brigde": {"bridgeName": "br9"}}}, "host.brigde", "host.bridge"),
        ({"HOST": {"Brigde": {"bridgeName": "br9"}}}, "host.Brigde", "host.bridge"),
        ({"brigde": {"bridgeName": "br9"}}, "brigde", "host.bridge"),
        ({"hosts": {}}, "hosts", "host"),
        ({"hsot1": {}}, "hsot1", ""),
        ({"containr": {}}, "containr", "container"),
        ({"capabilites": {"mac": True}}, "capabilites", "capabilities"),
        ({"shared_dir": "/x"}, "shared_dir", "sharedDir"),
        ({"host": {"bridge": {"bridge_name": "br9"}}}, "host.bridge.bridge_name", "host.bridge.bridgeName"),
        ({"host": {"bridge": {"trunk": [5]}}}, "host.bridge.trunk", "host.bridge.trunks"),
        ({"host": {"bridge": {"vlan_id": 5}}}, "host.bridge.vlan_id", "host.bridge.vlanId"),
        ({"host": {"vhost": {"socket_file": "x"}}}, "host.vhost.socket_file", "host.vhost.socketfile"),
        ({"container": {"vhost": {"queue": 2}}}, "container.vhost.queue", "container.vhost.queues"),
    ],
)
def test_what_people_write(raw: dict[str, Any], where: str, meant: str) -> None:
    """Exchanged letters, plurals and other conventions are recognised; a key three letters away is another key."""
    if not meant:
        assert told(raw) == [f"key '{where}' is unknown and ignored"]
        return
    assert refusal(raw).message == f"key '{where}' is unknown: '{meant}' is probably meant"


def test_manifests_that_work_go_on_working() -> None:
    """Keys of runtimes, Multus, forks of the former plugin and other CNI plugins are accepted."""
    manifest = json.loads(MANIFEST)
    assert [text for text in told(manifest) if "ignored" not in text] == []


def test_a_key_at_another_place_is_named_with_its_place() -> None:
    """A block without its `host`, and a key of the specification in another
    spelling, are ignored with a hint how to write them.
    """
    assert told({"bridge": {}, "Capabilities": {}}) == [
        "key 'Capabilities' is unknown and ignored: the CNI specification writes 'capabilities'",
        "key 'bridge' is unknown and ignored here: write it as 'host.bridge'",
    ]


@given(st.sampled_from([place for place in keys.PLACES if place]), st.sampled_from([*keys.TOP, *keys.STANDARD]))
def test_a_key_of_the_top_in_an_object_is_told_where_it_belongs(place: str, key: str) -> None:
    """Whichever object of ours it is written into, unless that object has a key of this name, too."""
    assume(key not in keys.PLACES[place] and key.lower() not in keys._INSTEAD)
    [warning] = told(within(place, {key: None}))
    assert warning == f"key '{place}.{key}' is unknown and ignored here: '{key}' belongs at the top of the network"


def test_a_check_of_addresses_is_not_a_key_of_the_ipam_plugin() -> None:
    """Our keys about the addresses are told where they belong when they stand in `ipam`; its own keys are the IPAM plugin's."""
    ipam = {"type": "x", "subnet": "10.0.0.0/8", "routes": [], "kubeconfig": "/x", "DuplicateCheck": True, "gatewaycheck": True}
    assert told({"ipam": ipam}) == [
        "key 'ipam.DuplicateCheck' is unknown and ignored here: 'duplicateCheck' belongs at the top of the network",
        "key 'ipam.gatewaycheck' is unknown and ignored here: 'gatewayCheck' belongs at the top of the network",
    ]


@pytest.mark.parametrize("meant", ["ipam", "ipMasq", "dns", "args", "runtimeConfig", "deviceID"])
def test_a_key_of_the_specification_in_another_spelling(meant: str) -> None:
    """One that decides about the interface is refused: libraries take it, and here it would have no effect."""
    assert refusal({meant.upper(): {}}).message == f"key '{meant.upper()}' is unknown: '{meant}' is probably meant"
    assert told({meant: {}}) == []


@pytest.mark.parametrize(
    ("place", "key", "words"),
    [
        ("host.vhost", "ingressPolicingRate", ("no limit is set", "'bandwidth'", "'egressRate' in bit/s")),
        ("host.vhost", "INGRESSPOLICINGBURST", ("no limit is set", "'bandwidth'")),
        ("host", "ingressPolicingRate", ("no limit is set", "'bandwidth'")),
        ("", "OvnPort", ("no logical port of OVN", "'ovn': {}")),
        ("", "vlan", ("no VLAN is set", "'host.bridge.vlanId'")),
        ("host", "trunk", ("no VLANs are set", "'host.bridge.trunks'")),
        ("", "routes", ("no routes are set", "'ipam.routes'")),
        ("", "vhost_user_socket_volume_name", ("setting shared_volume",)),
        ("", "vhost_user_socket_name", ("'host.vhost.socketfile'",)),
        ("", "vhost_user_socket_consumption", ("'consumer': 'kubevirt'",)),
    ],
)
def test_what_an_ignored_key_of_others_would_have_been(place: str, key: str, words: tuple[str, ...]) -> None:
    """For a key of a fork or of ovs-cni that asks for more than a plain port, the warning says what the port lacks."""
    [warning] = told(within(place, {key: 1}))
    assert warning.startswith(f"key '{keys.path_of(place, key)}' is unknown and ignored: ")
    assert [each for each in words if each not in warning] == []


def test_keys_of_kubeovns_plugin_cost_no_warning() -> None:
    """Those without meaning for the port are accepted at the top without a warning, and only there; `device_id` is misspelt."""
    assert told({"server_socket": "/run/openvswitch/kube-ovn-daemon.sock", "provider": "a.b.ovn", "VF_driver": "vfio-pci"}) == []
    assert told({"host": {"provider": "a.b.ovn"}}) == ["key 'host.provider' is unknown and ignored"]
    assert refusal({"device_id": "x"}).meant == "deviceID"


def test_the_misspelt_key_is_reported_before_other_errors() -> None:
    """The misspelling is what ADD answers, whatever else is wrong, and whatever stands beside it."""
    network = {"cniVersion": "1.1.0", "name": "n", "type": "userspace", "host": {"engine": "vpp", "brigde": {}, "zzzzz": 1}}
    stdin = json.dumps(network).encode()
    environ = {"CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}
    request = Request(read_environment(environ, "ADD"), read_network(stdin, "ADD"), stdin)
    with pytest.raises(InvalidConfig, match=r"'host\.brigde' is unknown: 'host\.bridge' is probably meant") as refused:
        read_options(request, CONSUMERS, lambda _text: None)
    assert refused.value.code == 7


def test_a_flood_of_keys_is_bounded() -> None:
    """Only so many keys of an object are compared, and ten of them reported."""
    flood = {f"bridgeNa{number:06}": 1 for number in range(100_000)}
    assert len(told({"host": {"bridge": flood}})) == 11
