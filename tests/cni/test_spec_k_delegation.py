"""Items 96 to 100 of the specification's checklist: delegation to IPAM plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import LEASED, ipam, refused, refused_late, scripted, succeeded, switch_of
from tests.lab.node.node import Node
from tests.lab.runtimes.delegates.scripting import Scripted
from tests.lab.switch.switch import wait_until


class TestSearch:
    """Item 96: where the plugin is searched."""

    def test_096_first_in_cni_path(self, node: Node, sandbox: str, tmp_path: Path) -> None:
        """The first executable file of that name in CNI_PATH is run, also through links; directories of that name are skipped."""
        first, second = Scripted(tmp_path / "first"), Scripted(tmp_path / "second")
        for delegate, address in ((first, "10.1.1.1/24"), (second, "10.2.2.2/24")):
            delegate.tell("ADD", answer={**LEASED, "ips": [{"address": address}]})
        (tmp_path / "a" / "scripted").mkdir(parents=True)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "scripted").touch(mode=0o644)
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "scripted").symlink_to(second.directory / "scripted")
        network = node.network(ipam={"type": "scripted", "script": str(second.directory / "scripted.json")})
        for path, address in (
            ("first:second", "10.1.1.1/24"),
            ("c:first", "10.2.2.2/24"),
            (":a:b:absent::second", "10.2.2.2/24"),
        ):
            network["ipam"]["script"] = str((first if address.startswith("10.1.1") else second).directory / "scripted.json")
            cni_path = ":".join(str(tmp_path / part) if part else "" for part in path.split(":"))
            ran = len(second.calls())
            result = succeeded(node.run("ADD", network, sandbox, CNI_PATH=cni_path))
            assert [entry["address"] for entry in result["ips"]] == [address]
            assert (len(second.calls()) > ran) == address.startswith("10.2")
            succeeded(node.run("DEL", network, sandbox, CNI_PATH=cni_path))
        assert node.leftovers() == {}

    def test_096_absent(self, node: Node, sandbox: str) -> None:
        """A plugin that is missing, or whose name is a path, is 7 for ADD, CHECK and STATUS before any effect."""
        result = succeeded(node.run("ADD", node.network(), sandbox))
        for name in ("absent", "../bin/userspace", ".."):
            network = node.network(ipam={"type": name})
            refused(node.run("ADD", network, sandbox, ifname="net2"), 7, "ipam.type", name)
            refused(node.run("CHECK", {**network, "prevResult": result}, sandbox), 7, "ipam.type", name)
            status = node.run("STATUS", network)
            refused(status, 7, "ipam.type", name)
        assert len(switch_of(node).ports("br-test")) == 1
        succeeded(node.run("DEL", node.network(), sandbox))

    def test_096_absent_at_the_end(self, node: Node, sandbox: str) -> None:
        """DEL and GC do their own part although the plugin is missing, and then report it."""
        for verb in ("DEL", "GC"):
            delegate = scripted(node)
            network = node.network(ipam=ipam(delegate))
            succeeded(node.run("ADD", network, sandbox))
            (node.bin / "scripted").rename(node.bin / "away")
            made = node.run(verb, {**network, "cni.dev/valid-attachments": []}, sandbox)
            assert made.status == 1
            assert "ipam.type" in made.stdout.decode()
            assert node.leftovers().keys() == {"records"}
            (node.bin / "away").rename(node.bin / "scripted")
            succeeded(node.run("DEL", network, sandbox))
            assert node.leftovers() == {}


def test_097_what_the_delegate_is_given(node: Node, sandbox: str) -> None:
    """The delegate gets stdin byte for byte, the whole environment with another CNI_COMMAND, and our stderr."""
    delegate = scripted(node).tell("ADD", answer=LEASED, stderr="from the delegate\n")
    network = node.network(ipam={**ipam(delegate), "odd": [1.50, "é"]}, runtimeConfig={}, args={"cni": {}})
    stdin = b" \n" + json.dumps(network, indent=2, ensure_ascii=False).encode() + b"\n\n"
    environ = {"CNI_ARGS": "A=1;B=2", "HTTP_PROXY": "http://proxy", "CNI_FUTURE": "x", "ODD": "\udcff"}
    added = node.run("ADD", stdin, sandbox, **environ)
    result = succeeded(added)
    assert b"from the delegate\n" in added.stderr
    checked = json.dumps({**network, "prevResult": result}, indent=2).encode()
    succeeded(node.run("CHECK", checked, sandbox, **environ))
    succeeded(node.run("DEL", network, sandbox, **environ))
    for told, verb, given in zip(delegate.calls(), ("ADD", "CHECK", "DEL"), (stdin, checked, stdin), strict=True):
        assert (told["command"], told["stdin"].encode()) == (verb, given)
        expected = {**node.variables(verb, sandbox, **environ), "CNI_COMMAND": verb}
        assert {name: told["env"].get(name) for name in expected} == expected


def test_098_its_answer(node: Node, sandbox: str) -> None:
    """Its result is read at the result's own version, or the configuration's.

    Its interfaces are ignored and the index is ours.
    """
    address = {"address": "10.1.2.3/24", "gateway": "10.1.2.1"}
    routes = [{"dst": "10.0.0.0/8", "gw": "10.1.2.1"}]
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate))
    answers = [
        {"cniVersion": "0.4.0", "ips": [{**address, "version": "4", "interface": 3}], "routes": routes, "dns": {}},
        {"ips": [{**address, "interface": -1}], "routes": routes, "dns": None},
        {"cniVersion": "1.0.0", "interfaces": [{"name": "eth7", "sandbox": "/x"}], "ips": [address], "routes": routes},
    ]
    for answer in answers:
        delegate.tell("ADD", answer=answer)
        result = succeeded(node.run("ADD", network, sandbox))
        assert [entry["name"] for entry in result["interfaces"]] == ["net1"]
        assert (result["ips"], result["routes"]) == ([{**address, "interface": 0}], routes)
        succeeded(node.run("DEL", network, sandbox))
    malformed: list[Any] = [{"cniVersion": "9.9.9", "ips": [address]}, [], {"ips": {}}, {"ips": [{"address": 7}]}]
    for wrong in malformed:
        delegate.tell("ADD", answer=wrong)
        refused(node.run("ADD", network, sandbox), 108, "IPAM plugin")
    delegate.tell("ADD", stdout='{"ips": [{"address": "10.1.2.3/24"}]} trailing')
    refused(node.run("ADD", network, sandbox), 108, "scripted")
    assert node.leftovers() == {}


class TestErrors:
    """Item 99: every verb runs the delegate and reports its failure."""

    @pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
    def test_099_its_own_error(self, node: Node, sandbox: str, verb: str) -> None:
        """Its JSON error is returned with code, msg and details unchanged, in STATUS with code 50."""
        delegate = scripted(node)
        network = {**node.network(ipam=ipam(delegate)), "cni.dev/valid-attachments": [{"containerID": "c", "ifname": "net1"}]}
        result = succeeded(node.run("ADD", node.network(), sandbox, ifname="net9"))
        delegate.tell(verb, answer={"cniVersion": "1.1.0", "code": 177, "msg": "said so", "details": "look there"}, exit=1)
        ifname = "net9" if verb == "CHECK" else "net1"
        made = node.run(verb, {**network, "prevResult": result}, sandbox, ifname=ifname)
        error = refused(made, 50 if verb == "STATUS" else 177)
        assert (error["msg"], error["details"]) == ("said so", "look there")
        assert verb in delegate.commands()

    @pytest.mark.parametrize(
        "behaviour", [{"stdout": "panic: x", "exit": 2}, {"kill": "SIGSEGV"}, {"answer": {"code": -1}, "exit": 1}]
    )
    def test_099_no_error_of_its_own(self, node: Node, sandbox: str, behaviour: dict[str, object]) -> None:
        """A delegate that fails without a CNI error is 108, with its stderr in details."""
        delegate = scripted(node).tell("ADD", stderr="the last words\n", **behaviour)
        refused(node.run("ADD", node.network(ipam=ipam(delegate)), sandbox), 108, "scripted", "the last words")
        assert delegate.commands() == ["ADD", "DEL"]
        assert node.leftovers() == {}


class TestProcess:
    """Item 100: how the delegate's process ends."""

    def test_100_killed_with_its_children(self, node: Node, sandbox: str) -> None:
        """At the deadline the delegate is killed with all processes of its group, which is its own."""
        delegate = scripted(node).tell("ADD", hang=True, grandchild=True)
        network = node.network(ipam=ipam(delegate))

        def hung() -> list[dict[str, Any]]:
            return [call for call in delegate.calls() if call["command"] == "ADD"]

        refused_late(node, lambda: node.run("ADD", network, sandbox), 11, "scripted", met=lambda: bool(hung()))
        told = hung()[-1]
        assert told["sid"] == told["pid"]
        wait_until(lambda: not (_lives(told["pid"]) or _lives(told["grandchild"])), what="both processes are gone")

    def test_100_no_ipam(self, node: Node, sandbox: str) -> None:
        """Without `ipam`, or with an empty one, no delegate is run, and the interface has no address."""
        absent: list[dict[str, Any]] = [{"ipam": {}}, {"ipam": {"type": ""}}, {"ipam": None}]
        for keys in absent:
            network = node.network(**keys)
            result = succeeded(node.run("ADD", network, sandbox, CNI_PATH=""))
            assert "ips" not in result
            if network["ipam"] == {}:
                succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_PATH=""))
                succeeded(node.run("STATUS", network, CNI_PATH=""))
            succeeded(node.run("DEL", network, sandbox, CNI_PATH=""))
        assert node.leftovers() == {}


def _lives(pid: int) -> bool:
    """Whether the process runs. An orphan that has ended may stay a zombie if no process reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
