"""The JSON Schema of networks agrees with ADD: examples and valid values pass, invalid values are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.lab.network_keys import documented, table
from tests.lab.node.configurations import read
from tests.unit.cni.test_values_of_other_programs import LIMITS, MACS, MIRRORS, OTHERS, TRUNKS, VLANS
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cni.network_keys import TABLE
from userspace_cni.cni.network_schema import network_schema
from userspace_cni.consumers import CONSUMERS

EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"
SCHEMA = network_schema(CONSUMERS)
JUDGE = Draft202012Validator(SCHEMA)
FORMER = """{
    "cniVersion": "0.3.1", "type": "userspace", "name": "memif-network", "kubeconfig": "/etc/cni/net.d/x", "logLevel": "debug",
    "logFile": "/var/log/x", "sharedDir": "/var/lib/cni/usrspcni/", "ipam": {"type": "host-local", "subnet": "10.56.217.0/24"},
    "host": {"engine": "ovs-dpdk", "iftype": "vhostuser", "netType": "bridge", "bridge": {"bridgeName": "br4", "bridgeId": 4},
             "vhost": {"mode": "server", "socketfile": "", "user": "", "group": 107}},
    "container": {"engine": "vpp", "iftype": "vhostuser", "netType": "interface", "bridge": {"bridgeName": "4", "bridgeId": 4},
                  "vhost": {"mode": "client"}, "memif": {"role": "slave", "mode": "ethernet"}}
}"""


def network(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "n", "type": "userspace", **keys}


def networks_of_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """The networks in deploy/examples, by name."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] == "NetworkAttachmentDefinition":
                yield document["metadata"]["name"], json.loads(document["spec"]["config"])


VALUES: list[dict[str, Any]] = [
    *({"host": {"bridge": {"trunks": [item]}}} for _, item, _ in TRUNKS),
    *({"host": {"bridge": bridge}} for _, bridge, _ in VLANS),
    *({"bandwidth": said} for _, said, _ in LIMITS),
    *({"runtimeConfig": {"bandwidth": said}} for _, said, _ in LIMITS),
    *({place: {"mac": mac}} for _, mac, _ in MACS for place in ("runtimeConfig", "host")),
    *({"args": {"cni": {"Mac": mac}}} for _, mac, _ in MACS),
    *({"mirrors": [{"name": "ids", **said}]} for _, said, _ in MIRRORS),
    *(keys for _, keys, _ in OTHERS),
]
TOGETHER = (
    *({"host": {"bridge": {"trunks": [item]}}} for _, item, _ in TRUNKS if isinstance(item, dict) and len(item) > 0),
    *({"host": {"bridge": bridge}} for _, bridge, _ in VLANS if len(bridge) > 1),
    *({"mirrors": [{"name": "ids", **said}]} for _, said, _ in MIRRORS),
    *({"bandwidth": said} for _, said, _ in LIMITS),
    *({"runtimeConfig": {"bandwidth": said}} for _, said, _ in LIMITS),
)
"""Cases in which several keys may be wrong together, which a schema per key cannot express."""


def is_refused(keys: dict[str, Any]) -> bool:
    """Whether ADD refuses a network with these keys."""
    try:
        read(**keys)
    except UserspaceError:
        return True
    return False


def test_it_is_a_schema() -> None:
    """It is valid by the dialect's own schema."""
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("name", "found"), [("former", json.loads(FORMER)), *networks_of_examples()])
def test_public_examples(name: str, found: dict[str, Any]) -> None:
    """Each network in deploy/examples, and one of the former plugin, is valid by the schema."""
    assert [error.message for error in JUDGE.iter_errors(found)] == [], name


@pytest.mark.parametrize("keys", VALUES, ids=json.dumps)
def test_values_of_other_programs(keys: dict[str, Any]) -> None:
    """The schema accepts what ADD accepts, and refuses what ADD refuses because of one key.

    JSON Schema cannot express how a number is written (9000.0 is one), nor that two keys differ only by case; and the patterns of
    this checker are Python's, whose end is before a last newline, too.
    """
    refused = is_refused(keys)
    if not refused or not (keys in TOGETHER or json.dumps(keys) in CANNOT_SAY):
        assert JUDGE.is_valid(network(**keys)) != refused


UNUSABLE = ("01:00:5e:00:00:01", "00-00-00-00-00-00", "02:00:0a:00:00:01\n")
CANNOT_SAY = {
    json.dumps(each)
    for each in (
        {"host": {"mtu": 9000.0}},
        {"ipam": {"Type": "static"}},
        {"IPAM": {"type": "static"}},
        {"args": {"cni": {"mac": "02:00:0a:00:00:01", "MAC": "02:00:0a:00:00:01"}}},
        *({place: {"mac": mac}} for mac in UNUSABLE for place in ("runtimeConfig", "host")),
        *({"args": {"cni": {"Mac": mac}}} for mac in UNUSABLE),
    )
}


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"host": {"vhost": {"mode": "sideways"}}}, "mode"),
        ({"HOST": {"Vhost": {"MODE": "sideways"}}}, "MODE"),
        ({"host": {"bridge": {"vlanId": 4095}}}, "vlanId"),
        ({"host": {"bridge": {"bridgeName": "sixteen-letters-"}}}, "bridgeName"),
        ({"host": {"mtu": 67}}, "mtu"),
        ({"host": {"iftype": "memif"}}, "iftype"),
        ({"host": {"port": "tap"}}, "port"),
        ({"host": {"vhost": {"socketmode": "99"}}}, "socketmode"),
        ({"container": {"vhost": {"queues": 129}}}, "queues"),
        ({"container": {"vhost": {"queueSize": 100}}}, "queueSize"),
        ({"bandwidth": {"ingressRate": 7}}, "ingressRate"),
        ({"netem": {"loss_percent": 101}}, "loss_percent"),
        ({"mirrors": [{}] * 17}, "mirrors"),
        ({"serviceCIDRs": "nodes"}, "serviceCIDRs"),
        ({"consumer": "pods"}, "consumer"),
        ({"addresses": "annotation"}, "addresses"),
        ({"ipMasq": "true"}, "ipMasq"),
        ({"runtimeConfig": {"mac": "02:00"}}, "mac"),
        ({"ipam": {"routes": [{}] * 1025}}, "routes"),
    ],
)
def test_what_it_refuses(keys: dict[str, Any], where: str) -> None:
    """A value that a key cannot have is refused at its place, in any spelling of the key; ADD refuses it, too."""
    [*errors] = JUDGE.iter_errors(network(**keys))
    assert (is_refused(keys), where in {error.absolute_path[-1] for error in errors}) == (True, True)


@pytest.mark.parametrize(
    "keys",
    [
        {"host": {"vhost": {"mode": "sideways"}}},
        {"HOST": {"Vhost": {"moDE": "sideways"}}},
        {"runtimeConfig": {"bandwidth": {"ingressRate": 7}}},
        {"mirrors": [{"NAME": 7}]},
    ],
    ids=json.dumps,
)
def test_each_error_is_told_once(keys: dict[str, Any]) -> None:
    """However deep the key of a wrong value is, and however it is spelled, the value is reported once."""
    assert len(list(JUDGE.iter_errors(network(**keys)))) == 1


def test_every_spelling_of_a_key_matches() -> None:
    """A key's property and its pattern together have each spelling once."""
    patterns = {ref["$ref"].rpartition("/")[2]: pattern for pattern, ref in SCHEMA["patternProperties"].items()}
    spellings = {"".join(each) for each in product(*((letter, letter.upper()) for letter in "host"))}
    assert {each for each in spellings if not re.search(patterns["host"], each)} == {"host"}
    assert not [name for name, pattern in patterns.items() if re.search(pattern, name) or not re.search(pattern, name.swapcase())]


def test_every_key_is_there_with_its_help() -> None:
    """The schema has each key of the table, with its line of help."""
    for key in TABLE:
        found = SCHEMA
        for name in filter(None, key.path.split(".")):
            found = (found.get("items") or found)["properties"][name]
        assert found["description"].startswith(key.help), key.path
        assert "\n" not in key.help


def test_the_documented_table_is_current() -> None:
    """docs/network.md has the table as `python -m tests.lab.network_keys` writes it."""
    assert documented() == table()
