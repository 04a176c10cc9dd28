"""`userspace-cni probe` on a node with a real switch: what it tells, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.cni.spec import paused_vswitchd
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.node.served import ServedNode
from tests.lab.switch.probing import probing
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.settings import load
from userspace_cni.node import probes
from userspace_cni.probe import bridge_probe
from userspace_cni.probe.bridge_probe import ProbeOptions, Verdict

NETDEV = "datapath_type=netdev"


def probe(node: Node, *arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, which ends with this code."""
    done = run_command({**node.environ, **environ}, "probe", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def told(node: Node, *arguments: str, code: int = 0, **environ: str) -> Any:
    return json.loads(probe(node, *arguments, "--json", code=code, **environ).stdout)


@pytest.fixture
def bridges(switch: Switch, warm: None) -> tuple[str, str]:
    """Two bridges of an administrator, and one of the kernel's datapath."""
    for name in ("br-a", "br-b"):
        switch.vsctl("add-br", name, "--", "set", "Bridge", name, NETDEV)
    switch.vsctl("--no-wait", "add-br", "br-kernel")
    return "br-a", "br-b"


@pytest.fixture
def spotless(node: Node, switch: Switch) -> Iterator[Node]:
    """A node on which a test leaves no port, no flow, no socket and no mount."""
    yield node
    assert {name: ports for name in switch.bridges() if (ports := switch.ports(name))} == {}
    left = node.leftovers()
    left.pop("bridges", None)
    assert left == {}
    for name in {"br-a", "br-b"} & set(switch.bridges()):
        assert "cookie=0x55636e" not in dumped(switch, name)


def dumped(switch: Switch, bridge: str) -> str:
    """The bridge's flows as ovs-ofctl shows them."""
    argv = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", f"{switch.rundir}/{bridge}.mgmt"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@contextmanager
def running(node: Node, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs."""
    argv = [sys.executable, "-m", "userspace_cni", "probe", *arguments]
    with subprocess.Popen(argv, env=node.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_bridges_that_forward(bridges: tuple[str, str], spotless: Node) -> None:
    """Without names every bridge for vhost-user ports is probed, within a MiB of memory, and each stage is told."""
    found = told(spotless, "--count", "100")
    assert [each["bridge"] for each in found["bridges"]] == list(bridges)
    for each in found["bridges"]:
        assert each["alive"]
        assert [(stage["stage"], stage["ok"]) for stage in each["stages"]] == [
            ("port", True),
            ("socket", True),
            ("negotiation", True),
            ("frame", True),
        ]
        assert (each["state"], each["asked"], each["frames"], each["problem"]) == ("forwards", 100, 100, "")
        assert 0 < each["rtt"]["min_ns"] <= each["rtt"]["p50_ns"]
        assert 0 < each["memory_bytes"] <= 1 << 20
    assert (found["removed"], found["interrupted"]) == ([], False)


def test_what_people_see(bridges: tuple[str, str], spotless: Node) -> None:
    """A line for each bridge that was named, once."""
    lines = [line.split() for line in probe(spotless, "br-b", "br-b").stdout.splitlines()]
    assert lines[0][:2] == ["BRIDGE", "DATAPATH"]
    assert [line[:2] for line in lines[1:]] == [["br-b", "forwards"]]
    assert "none attached" in " ".join(lines[1])


def test_on_a_terminal_of_80_columns(switch: Switch, spotless: Node) -> None:
    """All columns are shown, beyond its edge, too, however long the bridge's name is, and no row is folded."""
    switch.vsctl("add-br", "br-of-15-letter", "--", "set", "Bridge", "br-of-15-letter", NETDEV)
    lines = probe(spotless, COLUMNS="80").stdout.splitlines()
    assert lines[0].split() == probe(spotless).stdout.splitlines()[0].split()
    assert len(lines) == 2


def test_a_probe_that_is_out_of_time(bridges: tuple[str, str], spotless: Node) -> None:
    """When time is over before all frames were timed, the bridge forwards, and stderr says how many were timed."""
    done = probe(spotless, "br-a", "--count", "1000000", "--timeout", "2")
    assert re.search(r"br-a: \d+ of 1000000 frames were timed", done.stderr)
    assert "forwards" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"), [("br-nowhere", "there is no bridge br-nowhere"), ("br-kernel", "system (the default)")]
)
def test_bridges_that_cannot_be_probed(bridges: tuple[str, str], spotless: Node, name: str, text: str) -> None:
    """A bridge that is missing, or not for vhost-user ports, is a usage error."""
    assert text in probe(spotless, "br-a", name, code=2).stderr


def test_no_bridge_at_all(spotless: Node) -> None:
    """A fresh node has nothing to probe, and nothing that is dead."""
    assert "no bridge is for vhost-user ports" in probe(spotless).stderr
    assert told(spotless)["bridges"] == []


def test_no_switch(bare_node: Node) -> None:
    """Without a database to ask there is no verdict."""
    assert "OVSDB" in probe(bare_node, code=3).stderr


@pytest.mark.parametrize("kind", ["directory", "state", "inodes", "descriptors"])
def test_faults_of_this_side(bridges: tuple[str, str], switch: Switch, spotless: Node, kind: str) -> None:
    """A fault of the node proves nothing about a bridge: each is unknown, and no warning names things that were never made."""
    node, file = spotless, spotless.directory / "config.toml"
    if kind == "state":
        assert "id of the state directory" in (done := probe(node, code=3, USERSPACE_CNI_STATE_DIR=f"{file}/x")).stderr
    elif kind == "directory":
        done = probe(node, code=3, USERSPACE_CNI_SHORT_DIR=str(file))
    elif kind == "inodes":  # one for itself, one for the run's directory
        node.short.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "none", str(node.short)], check=True)
        done = probe(node, code=3)
        subprocess.run(["umount", str(node.short)], check=True)
    else:
        argv = ["prlimit", "--nofile=14", sys.executable, "-m", "userspace_cni", "probe"]
        done = subprocess.run(argv, env=node.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 3, (done.stdout, done.stderr)
    if kind != "state":
        assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [["br-a", "unknown"], ["br-b", "unknown"]]
    assert "stays" not in done.stderr
    assert switch.ports("br-a") == []


def test_a_switch_that_freezes_amid_the_frames(bridges: tuple[str, str], switch: Switch, spotless: Node) -> None:
    """A bridge that stops answering is dead, and no flow outlives its port: the port stays until gc can delete both."""
    with running(spotless, "br-a", "--count", "1000000", "--json") as process:
        wait_until(lambda: re.search("cookie=0x55636e.*n_packets=[1-9][0-9]", dumped(switch, "br-a")))
        with paused_vswitchd(switch):
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 1
            [found] = json.loads(output)["bridges"]
            assert (found["state"], found["asked"]) == ("dead", 1000000)
            assert found["problem"].startswith("frame: ")
            assert 0 < found["lost"] <= found["frames"] < found["asked"]
            assert "stays" in errors
            assert len(switch.ports("br-a")) == 1
            assert json.loads(gc(spotless, code=1))["remaining"]
    assert "cookie=0x55636e" in dumped(switch, "br-a")
    assert json.loads(gc(spotless))["actions"] == {"removed-dead-test": 1}


def gc(node: Node, code: int = 0) -> str:
    """What `gc --json` says, which ends with this code."""
    done = run_command(node.environ, "gc", "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def test_a_dead_switch(own_switch: Switch, spotless: Node) -> None:
    """A daemon that dies amid the frames makes a dead bridge; one known to be dead is told at once, and nothing is left."""
    own_switch.vsctl("add-br", "br-a", "--", "set", "Bridge", "br-a", NETDEV)
    spotless.settings |= {"USERSPACE_CNI_OVSDB": own_switch.ovsdb, "OVS_RUNDIR": own_switch.rundir}
    with running(spotless, "br-a", "--count", "1000000", "--json") as process:
        wait_until(lambda: re.search("cookie=0x55636e.*n_packets=[1-9][0-9]", dumped(own_switch, "br-a")))
        own_switch.kill_vswitchd()
        output, _ = process.communicate(timeout=60)
    [found] = json.loads(output)["bridges"]
    assert (found["state"], process.returncode) == ("dead", 1)
    assert "hung up" in found["problem"]
    assert own_switch.ports("br-a") == []
    assert "ovs-vswitchd is dead" in probe(spotless, code=3).stderr
    assert own_switch.ports("br-a") == []


def test_a_switch_that_hangs(bridges: tuple[str, str], switch: Switch, spotless: Node) -> None:
    """A bridge whose switch does not open the port in time is dead, with the stage and the reason."""
    with paused_vswitchd(switch):
        [found] = told(spotless, "br-a", "--timeout", "5", code=1)["bridges"]
    assert not found["alive"]
    assert found["problem"].startswith("port: ")
    assert "silent" in found["problem"]
    assert [stage["ok"] for stage in found["stages"]] == [False, None, None, None]
    assert found["applications"] is None


def test_a_bridge_that_drops(bridges: tuple[str, str], switch: Switch, spotless: Node) -> None:
    """When the flow is taken away amid the frames, what is lost is counted, and the command does not go on for ever."""
    with running(spotless, "br-a", "--count", "1000000", "--json") as process:
        wait_until(lambda: re.search("cookie=0x55636e.*n_packets=[1-9][0-9]", dumped(switch, "br-a")))
        argv = ["ovs-ofctl", "-O", "OpenFlow13", "del-flows", f"{switch.rundir}/br-a.mgmt"]
        subprocess.run(argv, check=True)
        output, _ = process.communicate(timeout=60)
    [found] = json.loads(output)["bridges"]
    assert found["lost"] > 0
    assert found["frames"] < 1000000


def test_a_bridge_that_never_forwards(bridges: tuple[str, str], spotless: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is open and agreed on, and from which no frame comes back, is dead by the frame alone."""
    monkeypatch.setattr(probes.ProbePorts, "reflect", lambda *_: None)
    with probing(load(spotless.environ)) as ports:
        verdict = Verdict.of(ports.bridges()[0], 8)
        bridge_probe.probe(verdict, ports, ProbeOptions(2.0))
    found = verdict.to_json()
    assert not found["alive"]
    assert found["problem"].startswith("frame: no frame has come back within 2 s")
    assert [stage["ok"] for stage in found["stages"]] == [True, True, True, False]
    assert found["rtt"] is None


def test_a_switch_that_does_not_come(bridges: tuple[str, str], spotless: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the switch cannot reach the socket that stage fails: here the switch gets another path."""
    reserve = probes.ProbePorts.reserve
    monkeypatch.setattr(
        probes.ProbePorts, "reserve", lambda self, bridge: replace(reserve(self, bridge), server_path="/nowhere/at/all")
    )
    with probing(load(spotless.environ)) as ports:
        verdict = Verdict.of(ports.bridges()[0], 8)
        bridge_probe.probe(verdict, ports, ProbeOptions(0.3))
    found = verdict.to_json()
    assert found["problem"].startswith("socket: the switch has not connected")
    assert [stage["ok"] for stage in found["stages"]] == [True, False, None, None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_probe_that_is_stopped(bridges: tuple[str, str], switch: Switch, spotless: Node, number: signal.Signals) -> None:
    """A signal amid the frames ends it, what was found so far is told, and everything is removed before it is over."""
    with running(spotless, "br-b", "br-a", "--count", "1000000", "--timeout", "2", "--json") as process:
        wait_until(lambda: "0x55636e" in dumped(switch, "br-a"))
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    told = json.loads(output)
    assert told["interrupted"]
    assert [each["bridge"] for each in told["bridges"]] == ["br-b", "br-a"]
    assert told["bridges"][0]["state"] == "forwards"
    assert told["bridges"][1]["state"] in ("forwards", "unknown")


def test_a_killed_probe(bridges: tuple[str, str], switch: Switch, spotless: Node) -> None:
    """What SIGKILL leaves is found by `gc --dry-run`, and removed by the next probe or by `gc`."""
    for command in ("probe", "gc"):
        with running(spotless, "br-a", "--count", "1000000") as process:
            wait_until(lambda: "0x55636e" in dumped(switch, "br-a"))
            process.kill()
            process.wait(60)
        [port] = switch.ports("br-a")
        done = run_command(spotless.environ, "gc", "--dry-run", "--json")
        [found] = json.loads(done.stdout)["found"]
        assert (found["problem"], found["port"], found["network"], done.returncode) == ("dead-test", port, "probe", 1)
        if command == "probe":
            assert told(spotless, "br-b")["removed"] == [port]
        else:
            done = run_command(spotless.environ, "gc", "--json")
            assert json.loads(done.stdout)["actions"] == {"removed-dead-test": 1}
        assert switch.ports("br-a") == []


@pytest.mark.parametrize("node", ["agent"], indirect=True)
def test_the_agent_removes_what_a_killed_probe_left(bridges: tuple[str, str], switch: Switch, spotless: Node) -> None:
    """A pass of the agent's reconciliation takes the ports of a dead probe away, as it does with what dead calls left."""
    assert isinstance(spotless, ServedNode)
    spotless.serve()
    with running(spotless, "br-a", "--count", "1000000") as process:
        wait_until(lambda: "0x55636e" in dumped(switch, "br-a"))
        process.kill()
        process.wait(60)
    done = run_command(spotless.environ, "gc", "--json")
    told = json.loads(done.stdout)
    assert (told["by"], told["actions"]) == ("the agent", {"removed-dead-test": 1})


def test_two_probes_at_once(bridges: tuple[str, str], spotless: Node) -> None:
    """Two commands on one bridge do not disturb each other."""
    with running(spotless, "br-a", "--json") as one, running(spotless, "br-a", "--json") as other:
        outputs = [process.communicate(timeout=60)[0] for process in (one, other)]
    assert [json.loads(output)["bridges"][0]["alive"] for output in outputs] == [True, True]


def test_ports_of_attachments(bridges: tuple[str, str], spotless: Node, sandbox: str) -> None:
    """Ports of attachments are counted by what the switch says of them, and not touched; one without application is no fault."""
    assert spotless.run("ADD", spotless.network(), sandbox).status == 0
    [found] = told(spotless, "br-test")["bridges"]
    assert found["alive"]
    assert found["applications"] == {"connected": 0, "waiting": 1, "broken": 0}
    assert spotless.run("DEL", spotless.network(), sandbox).status == 0
