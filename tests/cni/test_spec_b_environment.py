"""Items 16 to 26 of the specification's checklist: the CNI_* variables."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cni.spec import ipam, refused, scripted, succeeded, tree, without
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import call

OWN = "/proc/self/ns/net"


def test_016_unknown_command(bare_node: Node) -> None:
    """A command that is no verb, in lower case too, is 4, which names it, whatever else is wrong."""
    for command in ("NOPE", "add", "ADD ", "DELETE"):
        for stdin in (b"{", json.dumps(bare_node.network()).encode()):
            refused(bare_node.run(command, stdin, container="/"), 4, "CNI_COMMAND", repr(command))


def test_017_all_missing_variables_are_named(bare_node: Node) -> None:
    """One message names every required variable that is unset or empty, and no other."""
    required = {
        "ADD": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "CHECK": ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL": ["CNI_CONTAINERID", "CNI_IFNAME"],
        "GC": ["CNI_PATH"],
    }
    stdin = json.dumps(bare_node.network()).encode()
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS")
    for verb, missing in required.items():
        for environ in (without(bare_node.variables(verb), *names), bare_node.variables(verb) | dict.fromkeys(names, "")):
            refused(call(bare_node.plugin, verb, environ, stdin), 4, f"[{','.join(missing)}]")
    one = bare_node.run("ADD", stdin, "/absent", ifname="")
    refused(one, 4, "[CNI_IFNAME]")
    assert not bare_node.state.exists()


def test_018_container_id(bare_node: Node) -> None:
    """A container ID consists of letters, digits, '_', '.' and '-', and begins with a letter or digit; anything else is 4."""
    network = bare_node.network()
    for bad in ("a/b", "/a", "_a", "-a", ".a", "..", "a\n", "\na", "a b", "é", "a:b", "a\x01b", "a@b"):
        refused(bare_node.run("DEL", network, "/absent", container=bad), 4, "CNI_CONTAINERID", repr(bad))
    for verb in ("ADD", "CHECK"):
        refused(bare_node.run(verb, network, "/absent", container="a\n"), 4, "CNI_CONTAINERID")
    assert not bare_node.state.exists()
    for good in ("a", "9", "A.b_c-9", "z" * 200):
        succeeded(bare_node.run("DEL", network, container=good))


def test_019_interface_name(bare_node: Node) -> None:
    """An interface name has 1 to 15 bytes without '/', ':' and white space of any alphabet, and is neither '.' nor '..'."""
    network = bare_node.network()
    for bad in ("x" * 16, "é" * 8, ".", "..", "a/b", "a:b", "a b", "a\tb", "a\n", "a\u00a0b", "a\u2003b"):
        refused(bare_node.run("DEL", network, "/absent", ifname=bad), 4, "CNI_IFNAME")
    for verb in ("ADD", "CHECK"):
        refused(bare_node.run(verb, network, "/absent", ifname="é" * 8), 4, "CNI_IFNAME")
    assert not bare_node.state.exists()
    for good in ("x" * 15, "é" * 7, "eth0.100", "-", "a@b", "..."):
        succeeded(bare_node.run("DEL", network, ifname=good))


def test_020_variables_that_a_verb_does_not_use(node: Node) -> None:
    """VERSION, GC and STATUS ignore container, namespace and interface: probes put anything there."""
    network = {**node.network(), "cni.dev/valid-attachments": []}
    for container, netns, ifname, args in (
        ("", "dummy", "dummy", ""),
        ("a/b", "../x", "x" * 99, "no-pair"),
        ("\n", "\n", "\n", ";"),
    ):
        for verb in ("VERSION", "GC", "STATUS"):
            succeeded(node.run(verb, network, netns, container=container, ifname=ifname, CNI_ARGS=args))
    succeeded(node.run("VERSION", b'{"cniVersion":"1.1.0"}', "dummy", container="", ifname="dummy", CNI_PATH="dummy"))


class TestPath:
    """Item 21: CNI_PATH matters only for delegation."""

    def test_021_without_a_delegate(self, node: Node, sandbox: str) -> None:
        """ADD, CHECK, STATUS and DEL need no CNI_PATH when nothing is delegated; GC always does."""
        network = node.network()
        result = succeeded(node.run("ADD", network, sandbox, CNI_PATH=""))
        succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_PATH=""))
        succeeded(node.run("STATUS", network, CNI_PATH=""))
        refused(node.run("GC", {**network, "cni.dev/valid-attachments": []}, CNI_PATH=""), 4, "CNI_PATH")
        assert node.leftovers()["records"]
        succeeded(node.run("DEL", network, sandbox, CNI_PATH=""))
        assert node.leftovers() == {}

    def test_021_with_a_delegate(self, node: Node, sandbox: str) -> None:
        """With a delegate and no CNI_PATH, ADD, CHECK and STATUS answer 4; DEL uses the CNI_PATH of its ADD."""
        network = node.network(ipam=ipam(scripted(node)))
        refused(node.run("ADD", network, sandbox, CNI_PATH=""), 4, "CNI_PATH")
        refused(node.run("STATUS", network, CNI_PATH=""), 4, "CNI_PATH")
        assert node.leftovers() == {}
        result = succeeded(node.run("ADD", network, sandbox))
        refused(node.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_PATH=""), 4, "CNI_PATH")
        succeeded(node.run("DEL", network, sandbox, CNI_PATH=""))
        assert node.leftovers() == {}

    def test_021_del_without_a_record(self, node: Node) -> None:
        """DEL without a record cleans up our own part and reports that the delegate was not reached; the next DEL reaches it."""
        delegate = scripted(node)
        network = node.network(ipam=ipam(delegate))
        refused(node.run("DEL", network, CNI_PATH=""), 4, "CNI_PATH")
        succeeded(node.run("DEL", network))
        assert delegate.commands() == ["DEL"]
        assert node.leftovers() == {}


class TestOwnNamespace:
    """Items 22 and 23: CNI_NETNS is the runtime's own namespace."""

    def test_022_add_is_refused_before_any_effect(self, bare_node: Node, tmp_path: Path) -> None:
        """ADD answers 8 whatever path names the namespace, before a delegate is run or a record written."""
        delegate = scripted(bare_node)
        network = bare_node.network(ipam=ipam(delegate))
        refused(bare_node.run("ADD", network, OWN), 8)
        before = tree(bare_node.directory)
        bound = tmp_path / "own"
        bound.touch()
        subprocess.run(["mount", "--bind", OWN, str(bound)], check=True)
        try:
            for netns in (OWN, f"/proc/{os.getpid()}/ns/net", str(bound)):
                for override in ("", "0", "no"):
                    refused(bare_node.run("ADD", network, netns, CNI_NETNS_OVERRIDE=override), 8, netns)
        finally:
            subprocess.run(["umount", str(bound)], check=True)
        assert delegate.calls() == []
        assert tree(bare_node.directory) == before
        assert not bare_node.state.exists()

    @pytest.mark.parametrize("override", ["1", "true", "TRUE"])
    def test_022_the_override(self, node: Node, override: str) -> None:
        """With CNI_NETNS_OVERRIDE the ADD succeeds."""
        network = node.network()
        result = succeeded(node.run("ADD", network, OWN, CNI_NETNS_OVERRIDE=override))
        assert result["interfaces"][0]["sandbox"] == OWN
        succeeded(node.run("DEL", network, OWN, CNI_NETNS_OVERRIDE=override))
        assert node.leftovers() == {}

    def test_023_del_cleans_the_host(self, node: Node, sandbox: str) -> None:
        """DEL with a reused path that has become the host's namespace removes everything on the host, and succeeds."""
        network = node.network("1.0.0", ipam=node.host_local())
        succeeded(node.run("ADD", network, sandbox))
        succeeded(node.run("DEL", network, OWN))
        assert node.leftovers() == {}


def test_024_a_netns_that_is_none(bare_node: Node, tmp_path: Path) -> None:
    """ADD and CHECK answer 4, which names CNI_NETNS, for a path that is relative, missing, or no network namespace."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("absent")
    paths = [
        "proc/self/ns/net",
        f"{tmp_path}/absent",
        f"{tmp_path}/dangling",
        f"{tmp_path}/fifo",
        f"{tmp_path}/file",
        str(tmp_path),
    ]
    for netns in [*paths, "/proc/self/ns/mnt", "/proc/self/ns", "/proc/999999999/ns/net", "/dev/null", "/proc/self/status"]:
        refused(bare_node.run("ADD", bare_node.network(), netns), 4, "CNI_NETNS", netns)
    for netns in ("relative", f"{tmp_path}/absent", f"{tmp_path}/file"):
        refused(bare_node.run("CHECK", bare_node.network(), netns), 4, "CNI_NETNS", netns)
    assert not bare_node.state.exists()


class TestArgs:
    """Item 25: CNI_ARGS, as runtimes and Multus send them."""

    def test_025_what_is_tolerated(self, node: Node, sandbox: str) -> None:
        """Unknown keys, a second '=', repeated keys, empty values and a trailing
        ';' are no errors, with or without IgnoreUnknown.
        """
        network = node.network()
        for args in ("UNKNOWN=1", "A=b=c;;B=", "IgnoreUnknown=0;K8S_POD_UID=;K8S_POD_NAME=;", "A=1;A=2;=x;;"):
            succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
            succeeded(node.run("DEL", network, sandbox, CNI_ARGS=args))
        assert node.leftovers() == {}

    def test_025_an_item_without_a_value(self, node: Node, sandbox: str) -> None:
        """ADD refuses an item that is not key=value with 4, which names CNI_ARGS; DEL ignores it and cleans up."""
        network = node.network()
        refused(node.run("ADD", network, sandbox, CNI_ARGS="A=1;nonsense"), 4, "CNI_ARGS", "nonsense")
        succeeded(node.run("ADD", network, sandbox, CNI_ARGS="A=1"))
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS="nonsense;A=1"))
        assert node.leftovers() == {}


def test_026_traces_reach_the_delegate(node: Node, sandbox: str) -> None:
    """The variables of OpenTelemetry reach the delegate unchanged; when DEL undoes an ADD it passes those of the ADD."""
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate))
    traces = {
        "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "TRACESTATE": "congo=t61rcWkgMzE,x= y",
        "BAGGAGE": "userId=Am%C3%A9lie;p=1",
    }
    succeeded(node.run("ADD", network, sandbox, **traces))
    succeeded(node.run("DEL", network, sandbox))
    assert [entry["command"] for entry in delegate.calls()] == ["ADD", "DEL"]
    for entry in delegate.calls():
        assert {name: entry["env"].get(name) for name in traces} == traces
    assert node.leftovers() == {}
