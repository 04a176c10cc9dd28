"""The VMI annotation: values that are accepted, and values that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt.annotation import ANNOTATION, InterfaceAnnotation, read_annotation
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError

NETWORKS = frozenset({"net1", "net2"})

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["path", "mode", "mtu", "queues", "rxQueueSize", "txQueueSize", "Mtu", ""])


def read(value: Any) -> dict[str, InterfaceAnnotation]:
    """The specs of an annotation with this JSON value."""
    return read_annotation(json.dumps(value), NETWORKS)


def test_no_annotation_asks_for_nothing() -> None:
    """A VM without the annotation, or with an empty one, has no specs."""
    assert read_annotation("", NETWORKS) == {}
    assert read_annotation(" \n", NETWORKS) == {}
    assert read({}) == {}


def test_every_key_is_optional() -> None:
    """A network may have none of the keys, or all of them."""
    everything = {
        "path": "/var/run/kubevirt/a.sock",
        "mode": "client",
        "mtu": 9000,
        "queues": 4,
        "rxQueueSize": 1024,
        "txQueueSize": 256,
    }
    assert read({"net1": {}, "net2": everything}) == {
        "net1": InterfaceAnnotation(),
        "net2": InterfaceAnnotation("/var/run/kubevirt/a.sock", "client", 9000, 4, 1024, 256),
    }


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"Mtu": 9000}, "'Mtu' is unknown"),
        ({"mtu": "9000"}, "'mtu' is a string"),
        ({"mtu": True}, "'mtu' is a boolean"),
        ({"mtu": 9000.0}, "'mtu' is a number"),
        ({"mtu": 67}, "from 68 to 65535"),
        ({"mtu": 65536}, "from 68 to 65535"),
        ({"queues": 0}, "from 1 to 256"),
        ({"queues": 257}, "from 1 to 256"),
        ({"mode": "Server"}, "'server' or 'client'"),
        ({"mode": None}, "'mode' is null"),
        ({"path": ""}, "'path' is empty"),
        ({"path": ["/a"]}, "'path' is a list"),
        ([], "is a list: it must be an object"),
    ],
)
def test_what_can_not_be_meant_is_refused(entry: Any, part: str) -> None:
    """A misspelt key, and a value of another type or out of range, is refused with the name of its network."""
    with pytest.raises(BadInput) as caught:
        read({"net1": entry})
    assert part in caught.value.message
    assert "network 'net1'" in caught.value.message
    assert ANNOTATION in caught.value.message


def test_a_network_that_the_vm_does_not_have_is_refused() -> None:
    """A misspelt network would silently lose its specs; the message lists the real ones."""
    with pytest.raises(BadInput, match=r"'nte1', which the VM does not have \(it has: net1, net2\)"):
        read({"nte1": {"mtu": 9000}})


@pytest.mark.parametrize("size", [0, 128, 300, 2048])
@pytest.mark.parametrize("key", ["rxQueueSize", "txQueueSize"])
def test_a_ring_that_qemu_refuses_has_its_own_name(key: str, size: int) -> None:
    """A ring size with which QEMU would end when the VM starts is refused before that, as ring-size."""
    with pytest.raises(DefinitionRefused) as caught:
        read({"net1": {key: size}})
    assert caught.value.name == "ring-size"
    assert "256, 512, 1024" in caught.value.message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("net1", "not JSON"),
        ('{"net1": {}} {}', "2 JSON values"),
        ('{"net1": {"mtu": NaN}}', "NaN"),
        ('{"net1": {"mtu": 1e999}}', "1e999"),
        ('{"net1": {}, "net1": {"mtu": 9000}}', "'net1' is given twice"),
        ('{"net1": {"path": "\\ud800"}}', "surrogate"),
        ("[" * 5000, "not JSON"),
        ("[" * 70 + "]" * 70, "nested deeper"),
        (" " * (1 << 20) + "{}", "more than"),
        ("9" * 100, "not a JSON number"),
        ("null", "is null"),
    ],
)
def test_text_that_is_no_plain_json_object_is_refused(text: str, part: str) -> None:
    """An ambiguous text is refused, with the reason and without quoting all of it."""
    with pytest.raises(BadInput) as caught:
        read_annotation(text, NETWORKS)
    assert part in caught.value.message
    assert len(caught.value.message) < 300


@given(st.text(max_size=60) | JSON.map(json.dumps))
def test_any_text_gives_specs_or_a_named_error(text: str) -> None:
    """Any text raises nothing but a KubevirtError."""
    try:
        found = read_annotation(text, NETWORKS)
    except KubevirtError:
        return
    assert set(found) <= NETWORKS


@given(st.dictionaries(st.sampled_from(sorted(NETWORKS)), st.dictionaries(KEYS, JSON | st.sampled_from([256, 1500, "server"]))))
def test_any_object_of_the_right_form_gives_specs_or_a_named_error(value: dict[str, Any]) -> None:
    """Accepted values are within the ranges that QEMU takes."""
    try:
        found = read(value)
    except KubevirtError:
        return
    for spec in found.values():
        assert spec.mtu is None or 68 <= spec.mtu <= 65535
        assert spec.queues is None or 1 <= spec.queues <= 256
        assert {spec.rx_queue_size, spec.tx_queue_size} <= {None, 256, 512, 1024}
