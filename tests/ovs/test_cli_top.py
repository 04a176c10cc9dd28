"""`userspace-cni top` on a real switch: on a terminal, with keys, and sample by sample."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.frames.idle import Idle, Pods, pods_on
from tests.lab.frames.steady import SIZE, SteadyTraffic, steady_traffic
from tests.lab.node.node import Node
from tests.lab.screens.terminal import SECONDS, Terminal
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import BRIDGE, CLIENT, add_bridge

TOP = (sys.executable, "-m", "userspace_cni", "top")
MANY = 400
MARKS = ("external_ids:owner=userspace-cni", "external_ids:network=many", "external_ids:ifname=net1")
LEFT = b"\x1b[?1049l"


@pytest.fixture
def pods(warm: None, node: Node, switch: Switch, sandbox: str) -> Iterator[Pods]:
    with pods_on(node, switch, sandbox) as made:
        yield made


@pytest.fixture
def pair(pods: Pods) -> tuple[Idle, Idle]:
    return pods.attach("source"), pods.attach("sink")


@pytest.fixture
def traffic(pair: tuple[Idle, Idle]) -> Iterator[SteadyTraffic]:
    """From pod `source` to pod `sink`."""
    with steady_traffic(pair[0].socket, pair[1].socket) as made:
        yield made


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as made:
        yield made


def row(lines: list[str], name: str) -> list[str]:
    """The words of an attachment's line."""
    return next(line.split() for line in lines if line.startswith(f"default/{name}/net1 "))


def number(figure: str) -> float:
    """The number of a figure, as 1.20k."""
    return float(figure.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(figure[-1], 1)


def samples(node: Node, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What `top --json` says, one object per sample."""
    argv = [*TOP, "--json", *arguments]
    done = subprocess.run(argv, env=node.environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def attachments(sample: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in sample["attachments"]}


# -- rates ----------------------------------------------------------------------------------------------------------------------


def test_rates_are_true(node: Node, pair: tuple[Idle, Idle], traffic: SteadyTraffic) -> None:
    """Rates times seconds are all frames and bits that the switch has moved, in samples of half a second, in both directions."""
    wait_until(lambda: traffic.sent > 100, what="traffic")
    before = traffic.sent
    found = samples(node, "-n", "6", "-d", "0.5")
    after = traffic.sent
    source, sink = (
        [(each["seconds"], attachments(each)[f"default/{name}/net1"]["rates"]) for each in found] for name in ("source", "sink")
    )
    for rates, way in ((source, "from_pod"), (sink, "to_pod")):
        frames = sum(seconds * each[f"frames_{way}"] for seconds, each in rates)
        bits = sum(seconds * each[f"bits_{way}"] for seconds, each in rates)
        assert 0 < frames <= after - before
        assert bits == pytest.approx(frames * SIZE * 8, rel=0.001)
        assert all(seconds > 0.4 for seconds, _ in rates)
        assert all(each["errors"] is None for _, each in rates)
    moved = sum(seconds * each["frames_to_pod"] for seconds, each in sink)
    assert moved == pytest.approx(sum(seconds * each["frames_from_pod"] for seconds, each in source), rel=0.05)
    assert {each["counters"]["of_now"] for each in found} == {True}
    assert found[-1]["vswitchd"]["state"] == "alive"
    assert 0 < found[-1]["vswitchd"]["up_s"] < 86400
    assert found[-1]["agent"]["state"] == "none"
    assert found[-1]["problems"] == {}


def test_uplinks(node: Node, traffic: SteadyTraffic, switch: Switch, veths: Veths) -> None:
    """What leaves the node by a NIC of a bridge is told beside it, and is not counted as a pod's."""
    veths.add("nic")
    marks = ["external_ids:owner=userspace-cni", "external_ids:owner-kind=node", "external_ids:spec=uplink"]
    switch.vsctl("add-port", "br-test", "nic", "--", "set", "Port", "nic", *marks, "--", "set", "Interface", "nic", *marks)
    switch.vsctl("set", "Interface", "nic", "type=system")
    stranger = bytes.fromhex("02000000007702000000000188b5") + bytes(60)

    def left() -> dict[str, Any] | None:
        traffic.first.pairs[0].send_frames([stranger])  # goes to all ports, as no one has that address
        [sample] = samples(node, "-n", "1")
        uplinks: list[dict[str, Any]] = sample["uplinks"]
        assert "nic" not in {each["port"] for each in sample["attachments"]}
        return uplinks[0] if uplinks and uplinks[0]["rates"]["frames_out"] is not None else None

    try:
        found = wait_until(left, SECONDS, "the uplink counted")
        shown = printed(node, "-n", "1").stdout
    finally:
        switch.vsctl("del-port", "br-test", "nic")
    assert (found["name"], found["bridge"]) == ("nic", "br-test")
    assert set(found["rates"]) == {f"{what}_{way}" for what in ("frames", "bits", "drops") for way in ("in", "out")} | {"errors"}
    assert "nic on br-test" in shown


def test_polling_threads_and_drops(node: Node, pair: tuple[Idle, Idle], traffic: SteadyTraffic) -> None:
    """The sample says which thread polls each attachment, how busy it is, and what an application lost that takes nothing."""
    traffic.drained = False

    def dropped() -> dict[str, Any] | None:
        [sample] = samples(node, "-n", "1")
        drops = attachments(sample)["default/sink/net1"]["rates"]["drops_to_pod"]
        return sample if drops and drops > 0 else None

    sample = wait_until(dropped, SECONDS, "a drop")
    assert [each["core"] for each in sample["threads"]] != []
    queues = {queue["port"]: each["core"] for each in sample["threads"] for queue in each["queues"]}
    for idle in pair:
        name = f"default/{idle.name}"
        assert [each["core"] for each in attachments(sample)[name]["cores"]] == [queues[idle.port]]
    assert all(0 <= each["load"] <= 1 for each in sample["threads"] if each["load"] is not None)
    assert any(pool["total"] for pool in sample["hugepages"])


def test_limits(node: Node, pods: Pods) -> None:
    """A pod that sends more than its limit uses more than all of it, and what the limit drops is shown; others have no limit."""
    rate = 800_000  # half of what is sent
    source = pods.attach("source", keys={"bandwidth": {"egressRate": rate, "egressBurst": 80_000}})
    sink = pods.attach("sink")
    with steady_traffic(source.socket, sink.socket):

        def limited() -> dict[str, Any] | None:
            [sample] = samples(node, "-n", "1", "--sort", "limit used")
            each: dict[str, Any] = sample["attachments"][0]
            dropped = each["rates"]["drops_from_pod"] and each["limits"].get("from_pod", {}).get("drops")
            return each if dropped and each["limits"]["from_pod"]["used"] > 1.2 and passes(each) > 0.65 else None

        def passes(each: dict[str, Any]) -> float:
            """What comes through, as a part of the limit. DPDK counts a frame before the limit drops it."""
            rates = each["rates"]
            return float(each["limits"]["from_pod"]["used"] * (1 - rates["drops_from_pod"] / rates["frames_from_pod"]))

        each = wait_until(limited, SECONDS, "a second in which the sender had its share of the machine, and the limit dropped")
        limit, rates = each["limits"]["from_pod"], each["rates"]
        assert (each["name"], list(each["limits"]), limit["rate"]) == ("default/source/net1", ["from_pod"], rate)
        assert limit["used"] == pytest.approx(rates["bits_from_pod"] / rate, rel=0.01)
        assert passes(each) < 1.35
        shown = printed(node, "-n", "1").stdout
        assert f"% of {rate // 1000}k" in shown


def test_counters_of_the_database(node: Node, pods: Pods, switch: Switch, traffic: SteadyTraffic) -> None:
    """Where a bridge speaks no OpenFlow of ours, rates come from OVSDB, over the time between two writes; the sample says so."""
    switch.vsctl("set", "Bridge", "br-test", "protocols=OpenFlow15")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")  # others have changed it by milliseconds
    try:

        def counted() -> float | None:
            [sample] = samples(node, "-n", "1")
            assert sample["counters"] == {"of_now": False, "written_s": 5.0}
            return None

        counted()
        found = samples(node, "-n", "13", "-d", "1")
        rates = [attachments(each)["default/sink/net1"]["rates"]["frames_to_pod"] for each in found]
        known = [rate for rate in rates if rate is not None]
        assert known != []
        assert all(0 < rate < 2 * traffic.burst / 0.01 for rate in known)
        assert {each["seconds"] for each in found} <= {0.0, 5.0, 10.0}
        assert len(set(known)) < len(known)
    finally:
        switch.vsctl("clear", "Bridge", "br-test", "protocols")


# -- on a terminal --------------------------------------------------------------------------------------------------------------


def test_a_live_screen(node: Node, pair: tuple[Idle, Idle], traffic: SteadyTraffic, terminal: Terminal) -> None:
    """The screen shows node, threads and attachments with rates that are those of the traffic; q restores the terminal."""
    terminal.start(TOP, node.environ)
    wait_until(lambda: row(terminal.wait_for("default/sink/net1"), "sink")[2] not in ("-", "0"), SECONDS, "a rate", pause=0.1)
    lines = terminal.lines()
    assert "Open vSwitch" in lines[1]
    assert "alive" in lines[1]
    assert lines[2].startswith("ports      2 attachments   2 connected")
    assert any(line.startswith("threads    core ") and "busy" in line for line in lines)
    sink, source = row(lines, "sink"), row(lines, "source")
    assert (sink[1], source[1]) == ("connected", "connected")
    assert 0 < number(sink[2]) < 2 * traffic.burst / 0.01
    assert number(source[4]) == pytest.approx(number(sink[2]), rel=0.5)
    first = terminal.lines()[0]
    wait_until(lambda: terminal.lines()[0] != first, SECONDS, "the next refresh")
    terminal.type("q")
    assert terminal.wait_end() == 0
    assert terminal.modes() == terminal.attributes
    assert terminal.received.endswith(LEFT)


def test_keys(node: Node, pair: tuple[Idle, Idle], terminal: Terminal) -> None:
    """Keys sort, filter, group, choose columns and explain; a new size is followed, and what has no room is named."""
    terminal.start(TOP, node.environ)
    terminal.wait_for("default/sink/net1", "sorted by bits ▼")
    terminal.type("N")
    lines = terminal.wait_for("sorted by name ▲")
    assert lines.index(next(line for line in lines if "default/sink" in line)) < lines.index(
        next(line for line in lines if "default/source" in line)
    )
    terminal.type("R")
    terminal.wait_for("sorted by name ▼")
    terminal.type("fsink\r")
    lines = terminal.wait_for("filter 'sink': 1 of 2")
    assert not any("default/source" in line for line in lines)
    terminal.type("=n")
    terminal.wait_for("net-of-sink (1)", "net-of-source (1)")
    terminal.type("nca")
    terminal.wait_for("a [x] network")
    terminal.type("q")
    terminal.wait_for("NETWORK", "net-of-source")
    terminal.type("h")
    terminal.wait_for("Keys", "PgUp")
    terminal.type("xd3\r")
    terminal.wait_for("every 3 s")
    terminal.type("k")
    terminal.wait_for("it ends no pod")
    terminal.type("\x1b[A")
    terminal.resize(60, 16)
    lines = terminal.wait_for("no room for", "default/source/net1")
    assert any(line.startswith("default/source/net1") for line in lines)
    terminal.resize(160, 40)
    wait_until(lambda: "no room for" not in terminal.text(), SECONDS, "room for all")
    terminal.type("\x03")
    assert terminal.wait_end() == 0
    assert terminal.modes() == terminal.attributes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_leave_the_terminal_as_it_was(bare_node: Node, terminal: Terminal, number: int) -> None:
    """A signal that ends the program restores the terminal first, and the process dies of it. Ctrl-S stops nothing before."""
    terminal.start(TOP, bare_node.environ)
    terminal.wait_for("no attachments on this node")
    terminal.type("\x13h")
    terminal.wait_for("Keys")
    os.kill(terminal.process.pid, number)
    assert terminal.wait_end() == -number
    assert terminal.modes() == terminal.attributes
    assert terminal.received.endswith(LEFT)


def test_a_closed_terminal(bare_node: Node, terminal: Terminal) -> None:
    """When the terminal is closed the program ends."""
    terminal.start(TOP, bare_node.environ)
    terminal.wait_for("no attachments on this node")
    terminal.close()
    wait_until(lambda: terminal.process.poll() is not None, SECONDS, "its end")


def test_a_terminal_that_takes_nothing(bare_node: Node, terminal: Terminal) -> None:
    """A program whose output is not read can be ended all the same."""
    terminal.resize(1000, 100)
    terminal.start(TOP, bare_node.environ)
    wait_until(lambda: terminal.waiting() >= 4095, SECONDS, "output that no one reads")
    os.kill(terminal.process.pid, signal.SIGTERM)
    wait_until(lambda: terminal.process.poll() == -signal.SIGTERM, SECONDS, "its end")
    assert terminal.modes() == terminal.attributes


def test_a_stopped_program(bare_node: Node, terminal: Terminal) -> None:
    """Ctrl-Z gives the terminal to the shell as it was; fg shows everything again."""
    terminal.start(["bash", "--norc", "-i"], {**bare_node.environ, "PS1": "$ "})
    terminal.wait_line("$")
    terminal.type("stty -g; " + " ".join(TOP) + "\n")
    terminal.wait_for("no attachments on this node")
    seen = len(terminal.received)
    terminal.type("\x1a")
    wait_until(lambda: LEFT in terminal.received[seen:] or terminal.read(0.1) is None, SECONDS, "the screen left")
    terminal.wait_for("Stopped")
    terminal.type("stty -a | tr ';' '\\n'\n")
    terminal.wait_for(" icanon ", " echo ")
    seen = len(terminal.received)
    terminal.type("fg\n")
    wait_until(lambda: terminal.read(0.1) is None or b"\x1b[?1049h" in terminal.received[seen:], SECONDS, "the screen again")
    terminal.wait_for("no attachments on this node", "q quit")
    terminal.type("q")
    wait_until(lambda: terminal.read(0.1) is None or terminal.received.rstrip().endswith(b"$"), SECONDS, "the shell")
    assert LEFT in terminal.received[seen:]


class TestSwitchThatIsKilled:
    """On a switch of the test's own."""

    @pytest.fixture
    def switch(self, own_switch: Switch) -> Switch:
        return own_switch

    def test_it_goes_on(self, switch: Switch, node: Node, terminal: Terminal) -> None:
        """While ovs-vswitchd is dead or hangs the header says so and keys work; it comes back with the daemon."""
        add_many(switch, 1)
        terminal.start(TOP, node.environ)
        terminal.wait_for("alive", "pod-000/net1")
        switch.pause_vswitchd()
        try:
            terminal.wait_for("ovs-vswitchd is silent")
            terminal.type("h")
            terminal.wait_for("Keys")
            terminal.type("x")
        finally:
            switch.resume_vswitchd()
        terminal.wait_for("alive")
        switch.kill_vswitchd()
        lines = terminal.wait_for("ovs-vswitchd is dead", "1 unknown")
        assert any(line.startswith("pod-000/net1") for line in lines)
        switch.restart_vswitchd()
        terminal.wait_for("alive", "1 without application")
        terminal.type("q")
        assert terminal.wait_end() == 0

    def test_ports_that_go_and_come(self, switch: Switch, node: Node, terminal: Terminal) -> None:
        """Rows come and go with their ports; a port that ovs-vswitchd cannot open is a fault."""
        add_many(switch, 2)
        terminal.start(TOP, node.environ)
        terminal.wait_for("pod-000/net1", "pod-001/net1")
        switch.vsctl("del-port", BRIDGE, "many000")
        wait_until(lambda: "pod-000" not in terminal.text(), SECONDS, "the row gone", pause=0.1)
        switch.vsctl("--no-wait", "add-port", BRIDGE, "odd", "--", "set", "Interface", "odd", "type=system", *MARKS)
        switch.vsctl("--no-wait", "set", "Port", "odd", *MARKS, "external_ids:pod-name=odd")
        terminal.wait_for("odd/net1", "error", "1 faulty")
        terminal.type("q")
        assert terminal.wait_end() == 0

    def test_four_hundred_ports(self, switch: Switch, node: Node, terminal: Terminal) -> None:
        """All of 400 ports are counted, as many as fit are shown, and keys reach the others; refreshes write what changed."""
        add_many(switch, MANY)
        terminal.start((*TOP, "--sort", "name"), node.environ)
        lines = terminal.wait_for("400 attachments", "rows 1-")
        shown = sum(line.startswith("pod-") for line in lines)
        assert f"rows 1-{shown} of 400" in lines[-1]
        terminal.type("\x1b[6~")
        terminal.wait_for(f"rows {shown + 1}-{2 * shown} of 400", f"pod-{shown:03}/net1")
        terminal.type("\x1b[F")
        terminal.wait_for("pod-399/net1")
        first = terminal.lines()[0]
        terminal.read()
        seen = len(terminal.received)
        wait_until(lambda: terminal.lines()[0] != first, SECONDS, "a refresh")
        assert len(terminal.received) - seen < 120 * 30
        terminal.type("fpod-39\r")
        terminal.wait_for("filter 'pod-39': 10 of 400", "pod-390/net1")
        terminal.type("q")
        assert terminal.wait_end() == 0
        switch.kill_vswitchd()  # else it deletes them one by one, for seconds


def add_many(switch: Switch, count: int) -> None:
    """Ports with marks of pods, whose applications are not there."""
    add_bridge(switch)
    words = []
    for number in range(count):
        name, marks = (
            f"many{number:03}",
            (*MARKS, f"external_ids:pod-name=pod-{number:03}", f"external_ids:container-id=c{number}"),
        )
        path = f"options:vhost-server-path={switch.rundir}/{name}"
        words += ["--", "add-port", BRIDGE, name, "--", "set", "Port", name, *marks]
        words += ["--", "set", "Interface", name, f"type={CLIENT}", path, *marks]
    switch.vsctl(*words)


# -- without a terminal ---------------------------------------------------------------------------------------------------------


def printed(node: Node, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [*TOP, *arguments]
    return subprocess.run(argv, env={**node.environ, **environ}, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_a_batch(node: Node, pair: tuple[Idle, Idle]) -> None:
    """Samples are printed one after the other without escape sequences; a narrow one names the columns without room."""
    done = printed(node, "-b", "-n", "2", "-d", "0.3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("userspace-cni top - ") == 2
    assert done.stdout.count("default/source/net1") == 2
    assert "\x1b" not in done.stdout
    narrow = printed(node, "-n", "1", COLUMNS="60")
    assert "no room for " in narrow.stdout.splitlines()[-1]
    found = samples(node, "-n", "1", "-f", "sink")
    assert list(attachments(found[0])) == ["default/sink/net1"]
    ascii_only = printed(node, "-n", "1", PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert (ascii_only.returncode, ascii_only.stdout.isascii()) == (0, True)


def test_a_reader_that_has_enough(bare_node: Node) -> None:
    """A pipe that is closed ends it quietly."""
    argv = [*TOP, "-b", "-d", "0.2"]
    with subprocess.Popen(argv, env=bare_node.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0


def test_no_switch(bare_node: Node) -> None:
    """Without a switch the sample says why nothing is known, and the exit code is 3."""
    [sample, failure] = samples(bare_node, "-n", "1", code=3)
    assert "ovsdb" in sample["problems"]
    assert (sample["counters"], sample["attachments"]) == (None, [])
    assert failure["code"] == 3
    assert "the node cannot be asked" in failure["error"]
