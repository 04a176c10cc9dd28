"""What the JSON Schema of settings takes is what `load` takes: files made of the table of settings, with any value at any key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.unit.base.test_settings import OTHER_VALUES
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.settings import TABLE, load
from userspace_cni.base.settings_schema import settings_schema

SCHEMA = settings_schema()
JUDGE = Draft202012Validator(SCHEMA)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8)
ANYTHING = st.one_of(
    st.sampled_from(["", ".", "/", "/.", "//", "/a", "/a/..", "/a/../b", "a", "ü", " ", "a\n", [], {}, [1], [""], ["/a"], [[]]]),
    st.booleans() | st.integers(-(2**31), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    TEXT | st.lists(TEXT, max_size=2),
)
LEAST: dict[str, dict[str, Any]] = {
    "rule": {"namespaces": ["*"], "bridges": ["br0"]},
    "mirror": {"name": "m", "bridge": "br0", "output": "o"},
    "gateway": {"bridge": "br0", "addresses": ["10.0.0.1/24"]},
    "provider_network": {"name": "net1", "interface": "eth1"},
}
"""A table of each kind, with no key more than it needs."""
GOOD: dict[tuple[str, str], list[Any]] = {
    ("rule", "vlans"): [[100, "1-5"]],
    ("rule", "mirrors"): [["a*"]],
    ("rule", "mirror_outputs"): [["a"]],
    ("rule", "directories"): [["/a"], []],
    ("rule", "logical_switches"): [["blue*"]],
    ("rule", "without_port_security"): [["node"]],
    ("mirror", "select"): ["all"],
    ("gateway", "port"): ["gw0"],
    ("gateway", "mac"): ["02:00:00:00:00:01"],
    ("gateway", "mtu"): [0, 1400],
    ("gateway", "vlan"): [1, 4094],
    ("gateway", "masquerade"): [True],
    ("gateway", "not_masqueraded"): [["10.1.0.0/16"], []],
    ("gateway", "clamp_mss"): [True],
    ("gateway", "routes"): [[{"dst": "10.1.0.0/16", "gw": "10.0.0.2"}]],
    ("gateway", "logical_port"): ["k8s-n1"],
    ("gateway", "sole"): [False],
    ("gateway", "egress_gateway"): [{"via": "10.0.0.2", "table": 1000, "priority": 1000}],
    ("gateway", "next_hop"): ["10.0.0.2"],
    ("gateway", "bandwidth"): [{"ingressRate": 1000000}],
    ("provider_network", "bridge"): ["brnet1"],
    ("provider_network", "port"): ["system", "afxdp"],
    ("provider_network", "move_addresses"): [True, False, "primary"],
    ("provider_network", "give_back_after_s"): [1, 2.5],
    ("provider_network", "vlans"): [[0], [5, "7-9"]],
    ("provider_network", "vlan_interfaces"): [[]],
    ("provider_network", "mtu"): [0, 9000],
    ("provider_network", "rx_queues"): [0],
}
ELSEWHERE = {("provider_network", "bond")}
"""Instead of another key."""


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def is_taken(file: Path, said: dict[str, Any]) -> bool:
    """Whether `load` takes a file that says this."""
    file.write_text("".join(f"{key} = {as_toml(value)}\n" for key, value in said.items()), encoding="utf-8")
    try:
        load({"USERSPACE_CNI_CONFIG": str(file)})
    except UserspaceError:
        return False
    return True


def around(key: str) -> Iterator[st.SearchStrategy[Any]]:
    """Values at the edges of what the setting can be, and others that it can."""
    default, setting = TABLE[key]
    schema = setting.form.schema
    values: list[Any] = [default, OTHER_VALUES.get(key, default), *schema.get("enum", ())]
    for bounds in (schema, *schema.get("anyOf", ())):
        numbers = [bounds[each] for each in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if each in bounds]
        values += [number + more for number in numbers for more in (-1, 0, 1)]
    yield st.sampled_from([list(each) if isinstance(each, tuple) else each for each in values])
    if "maxLength" in schema:
        yield st.integers(-1, 1).map(lambda more: "/".ljust(schema["maxLength"] + more, "a"))


CASES = st.sampled_from(sorted(TABLE)).flatmap(lambda key: st.tuples(st.just(key), st.one_of(ANYTHING, *around(key))))


def is_beyond_a_schema(key: str, value: Any) -> bool:
    """Whether `load` may have more to say of the value: the table says so, or it is how the value is written. 9.0 is an integer
    for JSON Schema, and the end that a pattern of this checker means is before a last newline, too."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if any(isinstance(each, str) and each.endswith("\n") for each in texts):
        return True
    return TABLE[key][1].form.partly or (isinstance(value, float) and value.is_integer())


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Path(directory) / "config.toml"


@settings(max_examples=300)
@given(CASES)
def test_a_value_of_a_setting(file: Path, case: tuple[str, Any]) -> None:
    """What `load` takes the schema takes; what it refuses the schema refuses, where it can."""
    key, value = case
    said = {key: value}
    if is_taken(file, said):
        assert JUDGE.is_valid(said)
    elif not is_beyond_a_schema(key, value):
        assert not JUDGE.is_valid(said)


KEYS = [(name, key) for name in LEAST for key in SCHEMA["properties"][name]["items"]["properties"]]


@settings(max_examples=300)
@given(st.sampled_from(KEYS).flatmap(lambda at: st.tuples(st.just(at), ANYTHING | st.sampled_from(GOOD.get(at, [""])))))
def test_a_value_in_a_table(file: Path, case: tuple[tuple[str, str], Any]) -> None:
    """What `load` takes of a table's key the schema takes. It knows the type of each; the form of the text is not in it."""
    (name, key), value = case
    said = {name: [LEAST[name] | {key: value}]}
    assert JUDGE.is_valid(said) or not is_taken(file, said)


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_good_value_in_a_table(file: Path, name: str, key: str) -> None:
    """Each key of a table has a value that both take, and one that neither does."""
    for value in GOOD.get((name, key), [LEAST[name].get(key)]):
        said = {name: [LEAST[name] | {key: value}]}
        assert (name, key) in ELSEWHERE or (is_taken(file, said), JUDGE.is_valid(said)) == (True, True), value
    said = {name: [LEAST[name] | {key: 1.5 if key != "give_back_after_s" else "1.5"}]}
    assert (is_taken(file, said), JUDGE.is_valid(said)) == (False, False)
