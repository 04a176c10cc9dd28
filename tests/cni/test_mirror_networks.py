"""Networks that make a port the source or the output of a mirror: our own keys, and the chained types of ovs-cni."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni.spec import OTHER, records, refused, refused_soon, succeeded, switch_of
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import netns

ENTRIES = pytest.mark.parametrize("node", ["process", "agent"], indirect=True)
PRODUCER = [{"name": "ids", "ingress": True, "egress": False}]


@pytest.fixture
def other() -> Iterator[str]:
    with netns() as path:
        yield path


def chained(node: Node, kind: str, mirrors: list[dict[str, Any]], previous: Any = None, **keys: Any) -> dict[str, Any]:
    """The configuration of a chained plugin, as libcni gives it."""
    said = {"prevResult": previous} if previous else {}
    name = node.network()["name"]
    return {"cniVersion": "1.1.0", "name": name, "type": kind, "bridge": "br-test", "mirrors": mirrors, **said, **keys}


def sources(node: Node) -> tuple[Any, Any]:
    """select_src_port and select_dst_port of the one mirror."""
    [mirror] = switch_of(node).rows("Mirror")
    return mirror["select_src_port"], mirror["select_dst_port"]


@ENTRIES
def test_a_chain_of_source_and_output(node: Node, sandbox: str, other: str) -> None:
    """A port becomes a source after it was made, with its result unchanged; another port is the output.

    Both roles end with their ports.
    """
    network = node.network("1.0.0", ipam=node.host_local())
    output = node.network("1.0.0", mirrorOutput="ids")
    result = succeeded(node.run("ADD", network, sandbox))
    producer = chained(node, "ovs-mirror-producer", PRODUCER, result, cniVersion="1.0.0")
    assert succeeded(node.run("ADD", producer, sandbox)) == result
    assert succeeded(node.run("ADD", producer, sandbox)) == result
    succeeded(node.run("ADD", output, other, OTHER))
    port = switch_of(node).port(f"{CONTAINER[:12]}-net1")
    assert sources(node) == (port["_uuid"], [])
    succeeded(node.run("CHECK", producer, sandbox))
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))

    def change() -> None:
        switch_of(node).vsctl("clear", "Mirror", "ids", "select_src_port")

    change()
    refused_soon(lambda: node.run("CHECK", producer, sandbox), 103, "source of mirror ids", again=change)
    for each in (producer, network):
        succeeded(node.run("DEL", each, sandbox))
    succeeded(node.run("DEL", output, other, OTHER))
    assert switch_of(node).rows("Mirror") == []
    assert node.leftovers() == {}


def test_a_chained_output(node: Node, sandbox: str, other: str) -> None:
    """The consumer makes its port the output.

    A second output of the same mirror is refused, the error names the holder, and nothing changes.
    """
    consumer = chained(node, "ovs-mirror-consumer", [{"name": "ids"}])
    for place, container in ((sandbox, CONTAINER), (other, OTHER)):
        result = succeeded(node.run("ADD", node.network(), place, container))
        call = node.run("ADD", {**consumer, "prevResult": result}, place, container)
        if container == CONTAINER:
            assert succeeded(call) == result
        else:
            refused(call, 105, "mirror ids", CONTAINER)
    assert switch_of(node).rows("Mirror")[0]["output_port"] == switch_of(node).port(f"{CONTAINER[:12]}-net1")["_uuid"]
    assert max(step.get("mirror_outputs", []) for record in records(node) for step in record["steps"]) == ["ids"]
    for place, container in ((sandbox, CONTAINER), (other, OTHER)):
        succeeded(node.run("DEL", consumer, place, container))
        succeeded(node.run("DEL", node.network(), place, container))
    assert (switch_of(node).rows("Mirror"), node.leftovers()) == ([], {})


def test_a_consumer_of_several_mirrors(node: Node, sandbox: str, other: str) -> None:
    """One port is the output of all mirrors that a list, or a second list after it, names.

    CHECK checks each, and DEL ends them all.
    """
    kind, first = "ovs-mirror-consumer", [{"name": name} for name in ("a", "b", "c")]
    result = succeeded(node.run("ADD", node.network(), sandbox))
    consumers = [chained(node, kind, mirrors, result) for mirrors in (first, [{"name": "c"}, {"name": "d"}])]
    for consumer in (*consumers, consumers[0]):
        assert succeeded(node.run("ADD", consumer, sandbox)) == result
    port = switch_of(node).port(f"{CONTAINER[:12]}-net1")["_uuid"]
    assert {row["name"]: row["output_port"] for row in switch_of(node).rows("Mirror")} == dict.fromkeys("abcd", port)
    assert max(step.get("mirror_outputs", []) for record in records(node) for step in record["steps"]) == [*"abcd"]
    theirs = succeeded(node.run("ADD", node.network(), other, OTHER))
    refused(
        node.run("ADD", chained(node, kind, [{"name": "e"}, {"name": "b"}], theirs), other, OTHER), 105, "mirror b", CONTAINER
    )
    assert len(switch_of(node).rows("Mirror")) == 4
    for consumer in consumers:
        succeeded(node.run("CHECK", consumer, sandbox))
    refused(node.run("CHECK", chained(node, kind, [{"name": "a"}, {"name": "e"}], result), sandbox), 102, "no part in mirror e")
    succeeded(node.run("DEL", node.network(), sandbox))
    assert switch_of(node).rows("Mirror") == []
    succeeded(node.run("DEL", node.network(), other, OTHER))
    assert node.leftovers() == {}


def test_a_chained_port_is_source_or_output(node: Node, sandbox: str) -> None:
    """A source cannot become an output, nor an output a source; the port stays as it was."""
    mirrors: dict[str, list[dict[str, Any]]] = {"ovs-mirror-producer": PRODUCER, "ovs-mirror-consumer": [{"name": "ids"}]}
    for first, second in (list(mirrors), list(mirrors)[::-1]):
        result = succeeded(node.run("ADD", node.network(), sandbox))
        succeeded(node.run("ADD", chained(node, first, mirrors[first], result), sandbox))
        before = records(node)
        again = chained(node, second, mirrors[second], result)
        refused(node.run("ADD", again, sandbox), 7, "ids", "what an output sends is dropped")
        assert records(node) == before
        succeeded(node.run("DEL", node.network(), sandbox))
    assert (switch_of(node).rows("Mirror"), node.leftovers()) == ([], {})


def test_what_a_chained_plugin_refuses(node: Node, sandbox: str, other: str) -> None:
    """Without a previous result, a port of ours, its bridge, a direction or a
    mirror there is an error that names it, and nothing changes.
    """
    result = succeeded(node.run("ADD", node.network(), sandbox))
    before = switch_of(node).port(f"{CONTAINER[:12]}-net1")
    kind = "ovs-mirror-producer"
    refused(node.run("ADD", chained(node, kind, PRODUCER), sandbox), 7, "prevResult", kind)
    refused(node.run("ADD", chained(node, kind, PRODUCER, result, bridge="br-other"), sandbox), 7, "'br-other'", "'br-test'")
    refused(node.run("ADD", chained(node, kind, [{"name": "ids"}], result), sandbox), 7, "no direction")
    refused(node.run("ADD", chained(node, kind, [], result), sandbox), 7, "'mirrors' is missing")
    refused(
        node.run("ADD", chained(node, "ovs-mirror-consumer", [{"name": "a"}, {"name": "a"}], result), sandbox), 7, "'a' twice"
    )
    theirs = {**result, "interfaces": [{**result["interfaces"][0], "sandbox": other}]}
    refused(node.run("ADD", chained(node, kind, PRODUCER, theirs), other, OTHER), 102, "no port of this plugin")
    assert switch_of(node).port(f"{CONTAINER[:12]}-net1") == before
    succeeded(node.run("DEL", node.network(), sandbox))


def test_an_output_of_a_pod_needs_a_rule(node: Node, sandbox: str) -> None:
    """A cluster's pod is the output of a mirror only with a rule of the administrator, whether by key or chained."""
    args, network = Pod().args, node.network(mirrorOutput="ids")
    refused(node.run("ADD", network, sandbox, CNI_ARGS=args), 7, "mirrorOutput", "'ids'", "mirror_outputs")
    assert node.leftovers() == {}
    settings = node.directory / "config.toml"
    text = settings.read_text() if settings.exists() else ""
    settings.write_text(text + '\n[[rule]]\nnamespaces = ["default"]\nmirror_outputs = ["ids"]\n')
    node.settings["USERSPACE_CNI_CONFIG"] = str(settings)
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=args))
    result = succeeded(node.run("ADD", node.network(), sandbox, CNI_ARGS=args))
    consumer = chained(node, "ovs-mirror-consumer", [{"name": "other"}], result)
    refused(node.run("ADD", consumer, sandbox, CNI_ARGS=args), 7, "'other'", "allows ids")
    succeeded(node.run("DEL", node.network(), sandbox, CNI_ARGS=args))
    assert node.leftovers() == {}
