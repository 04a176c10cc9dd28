"""The commands for people on a real node with a real switch; the plugin runs in this process, without an agent."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cni.spec import OTHER, PORT, away, paused_ovsdb, paused_vswitchd, records, switch_of
from tests.lab.node.forked_node import run_command
from tests.lab.node.inside import killed_at
from tests.lab.node.node import CONTAINER, Node
from tests.lab.switch.switch import wait_until
from userspace_cni.cli.main import userspace_cni
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions
from userspace_cni.switch import vswitchd

UID = "0d0a1b2c-1111-2222-3333-444455556666"
FRAME = bytes.fromhex("02000000000202000000000188b5") + bytes(86)
POD = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=dpdk-app;K8S_POD_UID={UID}"


def cli(node: Node, *arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command on this node; it has to end with this code."""
    done = run_command({**node.environ, "CNI_PATH": str(node.bin), **environ}, *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def decoded(node: Node, *arguments: str, code: int = 0, **environ: str) -> Any:
    return json.loads(cli(node, *arguments, "--json", code=code, **environ).stdout)


@pytest.fixture
def pod(node: Node, sandbox: str) -> Iterator[Node]:
    """A node with a pod that has a client port with a VLAN and an address, and a server port."""
    node.empty_dir(UID)
    client = node.network("1.0.0", ipam=node.host_local(), name="blue")
    client["host"] |= {"mtu": 1500, "bridge": {"bridgeName": "br-test", "vlanId": 100}}
    server = node.network("1.0.0", name="red")
    server["host"]["vhost"]["mode"] = "server"
    calls = [(client, "net1"), (server, "net2")]
    for network, ifname in calls:
        assert node.run("ADD", network, sandbox, ifname=ifname, CNI_ARGS=POD).status == 0
    yield node
    for network, ifname in calls:
        assert node.run("DEL", network, sandbox, ifname=ifname, CNI_ARGS=POD).status == 0
    assert node.leftovers() == {}


@pytest.fixture
def dead_add(node: Node, sandbox: str) -> Iterator[Node]:
    """A node on which an ADD was killed after it had made the port."""
    assert killed_at(node.variables("ADD", sandbox), json.dumps(node.network()).encode(), "after rest of port")
    yield node
    cli(node, "gc")
    assert node.leftovers() == {}


def test_list_tells_what_record_and_switch_say(pod: Node) -> None:
    """`list` shows both attachments with names, bridge and the state of their ports."""
    lines = [line.split() for line in cli(pod, "list").stdout.splitlines()]
    owner, state = ["default/dpdk-app"], ["down", "disconnected", "ready"]
    assert lines[1:] == [
        [*owner, "net1", "blue", "br-test", PORT, "dpdkvhostuserclient", *state],
        [*owner, "net2", "red", "br-test", f"{CONTAINER[:12]}-net2", "dpdkvhostuser", *state],
    ]
    first, second = decoded(pod, "list", "dpdk-app")
    assert (first["vlan"]["tag"], first["mtu"], first["addresses"]) == (100, 1500, ["10.56.0.2/24"])
    assert (first["role"], first["vhost"]) == ("server", {"state": "disconnected", "mode": "client"})
    assert (second["role"], second["vhost"]) == ("client", {"state": "disconnected", "mode": "server"})
    assert first["socket"]["ovs"] == switch_of(pod).interface(PORT)["options"]["vhost-server-path"]
    assert Path(second["socket"]["host"]).is_socket()
    assert first["problems"] == second["problems"] == []


def test_show_tells_everything(pod: Node) -> None:
    """`show` finds interfaces by pod and by the beginning of the container's ID; both share the pod's directory."""
    shown = decoded(pod, "show", "default/dpdk-app/net1")
    assert shown == decoded(pod, "show", f"{CONTAINER[:6]}/net1")
    [only] = shown
    kinds = ["lease", "directory", "socket-file", "pod-mount", "port", "config-file"]
    assert [step["step"] for step in only["steps"]] == kinds
    [directory] = (thing for thing in only["shared"] if thing["thing"].startswith("directory:"))
    assert directory["holders"] == ["default/dpdk-app/net1", "default/dpdk-app/net2"]
    assert not directory["made_by_us"]
    text = cli(pod, "show", "dpdk-app").stdout
    assert f"{pod.short}/{UID}" in text
    assert text.count("steps, in the order of ADD") == 2


def test_check_finds_changed_columns(pod: Node) -> None:
    """`check` reports a port whose columns were changed, and no longer when they are put back."""
    assert cli(pod, "check").stderr.endswith("2 attachments checked, no differences\n")
    switch = switch_of(pod)
    switch.vsctl("set", "Port", PORT, "tag=5", "--", "set", "Interface", PORT, "mtu_request=9000")
    drifts = decoded(pod, "check", code=1)["drifts"]
    found = {drift["what"].rpartition(", ")[2]: (drift["expected"], drift["found"]) for drift in drifts}
    for drift in drifts:
        column = drift["what"].rpartition(", ")[2]
        look, _, back = drift["details"].partition("; a running agent puts it back, as ")
        shown = switch.vsctl(*look.split()[1:])
        assert re.search(rf"^{column} *: {drift['found']}$", shown, re.MULTILINE), (drift, shown)
        switch.vsctl(*back.removesuffix(" does").split()[1:])
    assert found["tag"] == ("100", "5")
    assert found["mtu_request"] == ("1500", "9000")
    assert {drift["name"] for drift in drifts} == {"default/dpdk-app/net1"}
    assert cli(pod, "check", "dpdk-app/net2").stderr.endswith("1 attachment checked, no differences\n")
    assert cli(pod, "check").stdout == ""


def test_check_finds_a_mount_that_is_gone(pod: Node) -> None:
    """`check` looks at directories and files, too."""
    target = pod.short / UID
    subprocess.run(["umount", str(target)], check=True)
    assert [drift["step"] for drift in decoded(pod, "check", code=1)["drifts"]] == ["pod-mount"]
    assert decoded(pod, "gc")["actions"] == {"again-pod-mount": 1}
    assert cli(pod, "check").stdout == ""


def test_gc_makes_a_lost_port_again(pod: Node) -> None:
    """`list` reports a port that another program deleted, and `gc` makes it again with all its columns."""
    switch = switch_of(pod)
    switch.vsctl("del-port", PORT)
    assert f"the switch has no port {PORT}" in cli(pod, "list", code=1).stdout
    assert [each["ifname"] for each in decoded(pod, "show", "dpdk-app", code=1)] == ["net1", "net2"]
    assert cli(pod, "gc").stderr.endswith("1 done by this process, nothing left\n")
    assert switch.port(PORT)["tag"] == 100
    assert cli(pod, "check").stdout == ""


def test_gc_finishes_a_dead_add(dead_add: Node) -> None:
    """`gc --dry-run` names what was left and changes nothing; `gc` undoes it; `status` reports it before and not after."""
    node = dead_add
    [found] = decoded(node, "gc", "--dry-run", code=1)["found"]
    assert (found["container"], found["ifname"]) == (CONTAINER, "net1")
    assert (found["state"], found["problem"]) == ("applying", "unfinished")
    assert [record["state"] for record in records(node)] == ["applying"]
    assert switch_of(node).ports("br-test") == [PORT]
    assert decoded(node, "status", code=1)["unfinished"] == 1
    assert "applying !" in cli(node, "list").stdout
    done = decoded(node, "gc")
    assert (done["actions"], done["remaining"]) == ({"removed-unfinished": 1}, [])
    assert node.leftovers() == {}
    assert decoded(node, "status")["unfinished"] == 0


def test_gc_looks_twice_before_it_removes_a_ready_attachment(node: Node, sandbox: str) -> None:
    """A single `gc` removes an attachment whose namespace is gone, while it sees another namespace."""
    gone = Path(sandbox).with_name("cni-gone")
    gone.touch()
    subprocess.run(["unshare", f"--net={gone}", "true"], check=True)
    try:
        assert node.run("ADD", node.network(), str(gone)).status == 0
        assert node.run("ADD", node.network(), sandbox, container=OTHER).status == 0
        assert decoded(node, "gc", "--dry-run")["found"] == []
    finally:
        subprocess.run(["umount", "--lazy", str(gone)], check=True)
        gone.unlink()
    [found] = decoded(node, "gc", "--dry-run", code=1)["found"]
    assert (found["container"], found["problem"]) == (CONTAINER, "sandbox-gone")
    assert decoded(node, "gc")["actions"] == {"removed-sandbox-gone": 1}
    assert [record["container_id"] for record in records(node)] == [OTHER]
    assert node.run("DEL", node.network(), sandbox, container=OTHER).status == 0
    assert node.leftovers() == {}


def test_a_foreign_port_is_listed_and_left_alone(pod: Node) -> None:
    """A port with our mark and another store's id is never touched."""
    switch = switch_of(pod)
    marks = ["owner=userspace-cni", "store=0123", "container-id=feed", "ifname=net1", "network=blue"]
    columns = [f"external_ids:{mark}" for mark in marks]
    add = ["add-port", "br-test", "foreign", "--", "set", "Port", "foreign", *columns]
    interface = ["--", "set", "Interface", "foreign", "type=dpdkvhostuserclient", *columns]
    switch.vsctl(*add, *interface, "options:vhost-server-path=/tmp/no-such-directory/foreign")
    try:
        found = decoded(pod, "gc")
        assert [each["port"] for each in found["foreign"]] == ["foreign"]
        assert (found["found"], found["actions"]) == ([], {})
        assert "foreign" in switch.ports("br-test")
    finally:
        switch.vsctl("del-port", "foreign")


def test_status_of_a_whole_node(pod: Node) -> None:
    """On a node with a switch and two attachments, without an agent, `status` finds nothing wrong."""
    told = decoded(pod, "status")
    assert (told["agent"]["absent"], told["switch"]["reachable"], told["switch"]["vswitchd"]) == (True, True, "alive")
    assert told["records"]["ready"] == 2
    assert told["findings"] == []


def test_a_node_whose_switch_is_away(pod: Node) -> None:
    """Records are listed with unknown columns of the switch, and exit codes say that the switch was not reached."""
    nowhere = away(pod)
    listed = cli(pod, "list", code=0, **nowhere)
    assert listed.stdout.count("unknown") == 4
    assert "the switch cannot be asked" in listed.stderr
    assert {each["step"] for each in decoded(pod, "check", code=3, **nowhere)["unchecked"]} == {"port"}
    assert decoded(pod, "gc", code=3, **nowhere)["found"] == []
    assert decoded(pod, "status", code=3, **nowhere)["switch"]["reachable"] is False
    cli(pod, "show", "dpdk-app", code=0, **nowhere)


def test_a_datapath_that_hangs(pod: Node) -> None:
    """When OVSDB answers and ovs-vswitchd does not, that is a finding, and no command waits for it."""
    with paused_vswitchd(switch_of(pod)):
        told = decoded(pod, "status", code=1)
        assert (told["switch"]["reachable"], told["switch"]["vswitchd"]) == (True, "silent")
        cli(pod, "list")


def test_status_of_a_daemon_that_is_silent_for_a_moment(pod: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command asks once, so that a silence of 30 ms, which is a finding for the agent that asks regularly, is none here."""
    monkeypatch.setattr(vswitchd, "GLANCE_SECONDS", 0.0)
    done = CliRunner().invoke(userspace_cni, ["status", "--json"], env={**pod.environ, "CNI_PATH": str(pod.bin)})
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["switch"]["vswitchd"] == "alive"


def test_list_while_the_daemon_is_dead(pod: Node) -> None:
    """The link states in OVSDB are out of date and not shown: stderr, table and JSON say that the daemon is dead."""
    assert {each["vswitchd"] for each in decoded(pod, "list")} == {"alive"}
    before = cli(pod, "list")
    assert before.stderr == ""
    switch = switch_of(pod)
    switch.kill_vswitchd()
    try:
        listed = cli(pod, "list", code=1)
        assert listed.stderr.startswith("ovs-vswitchd is dead: ")
        client, server, problem, remedy = (line.split() for line in listed.stdout.splitlines()[1:])
        assert (client[-3:], server[-4:]) == (["dead", "unknown", "ready"], ["dead", "unknown", "ready", "!"])
        assert (problem[-3:], remedy[0]) == (["a", "dead", "socket"], "do")
        for each in decoded(pod, "list", code=1):
            assert (each["vswitchd"], each["link_state"], each["vhost"]["state"]) == ("dead", "unknown", "unknown")
        shown = cli(pod, "show", "dpdk-app/net1", code=1)
        assert "ovs-vswitchd is dead" in shown.stderr
        assert "link dead, vhost unknown" in shown.stdout
        [only] = decoded(pod, "show", "dpdk-app/net1", code=1)
        assert (only["vswitchd"], only["switch_status"]) == ("dead", {})
    finally:
        switch.restart_vswitchd()
    assert cli(pod, "list", code=1).stderr == ""  # the socket that OVS made anew is not in its place
    cli(pod, "gc")
    assert cli(pod, "list").stderr == ""


def test_list_while_the_daemon_hangs(pod: Node) -> None:
    """A daemon that does not answer is reported."""
    with paused_vswitchd(switch_of(pod)):
        listed = cli(pod, "list")
        assert any(line.startswith("ovs-vswitchd is silent: ") for line in listed.stderr.splitlines())
        assert {line.split()[-3] for line in listed.stdout.splitlines()[1:]} == {"silent"}
        assert "ovs-vswitchd is silent: " in cli(pod, "check").stderr


def test_a_wide_list(pod: Node) -> None:
    """`-o wide` also has VLAN, MTU, MAC, addresses, limits, frames and age; on a narrow terminal, too."""
    first, second = decoded(pod, "list")
    header, *rows = (line.split() for line in cli(pod, "list", "-o", "wide").stdout.splitlines())
    properties, counted = ["VLAN", "MTU", "MAC", "ADDRESSES", "LIMITS"], ["FROM-POD", "TO-POD", "DROPPED"]
    assert header[6:] == [*properties, "LINK", "VHOST", "STATE", *counted, "AGE"]
    assert rows[0][6:11] == ["100", "1500", first["mac"], "10.56.0.2/24", "-"]
    assert rows[1][6:11] == ["-", "-", second["mac"], "-", "-"]
    assert [row[14:17] for row in rows] == [["-"] * 3] * 2  # the switch counts once an application has connected
    assert all(re.fullmatch(r"[0-9]+(s|m)", row[-1]) for row in rows)
    narrow = cli(pod, "list", "-o", "wide", COLUMNS="80").stdout.splitlines()
    assert [line.split()[:-1] for line in narrow] == [line[:-1] for line in (header, *rows)]
    assert cli(pod, "list", "-o", "json").stdout == cli(pod, "list", "--json").stdout
    assert cli(pod, "show", "dpdk-app", "-o", "json").stdout == cli(pod, "show", "dpdk-app", "--json").stdout
    assert "--json and -o wide" in cli(pod, "list", "--json", "-o", "wide", code=2).stderr


def test_what_the_switch_has_instead_of_the_record(pod: Node) -> None:
    """A VLAN, an MTU and a limit that were changed by hand stand beside the recorded values, with the command that helps.

    That command helps. What the record does not have is no fault.
    """
    switch = switch_of(pod)
    limit = ("--", "set", "Interface", PORT, "ingress_policing_rate=1000", "ingress_policing_burst=100")
    switch.vsctl("set", "Port", PORT, "tag=200", "--", "set", "Interface", PORT, "mtu_request=1400", *limit)
    listed = cli(pod, "list", "-o", "wide", "dpdk-app/net1", code=1)
    row, problem, *_ = (line.split() for line in listed.stdout.splitlines()[1:])
    assert (row[6:8], row[10]) == (["100→200", "1500→1400"], "-→from:1M")
    assert problem[:2] == ["default/dpdk-app/net1:", "port"]
    assert problem[3:] == ["the", "record", "has", "VLAN", "tag", "100,", "the", "switch", "has", "200"]
    shown = cli(pod, "show", "dpdk-app/net1", code=1).stdout
    assert "tag 100 in the record, tag 200 in the switch" in shown
    assert "1500 in the record, 1400 in the switch" in shown
    assert "set by another program" in shown
    [only] = decoded(pod, "show", "dpdk-app/net1", code=1)
    assert (only["vlan"]["tag"], only["now"]["vlan"]["tag"], only["mtu"], only["now"]["mtu"]) == (100, 200, 1500, 1400)
    assert (only["frames"], only["dropped"]) == (None, None)
    assert only["drop_causes"].keys() == {"unread", "too_long", "limit_to_pod", "limit_from_pod"}
    for found in only["findings"]:
        command = found["remedy"].partition("ovs-vsctl ")[2].removesuffix(" removes it")
        switch.vsctl(*command.split())
    assert [each["findings"] for each in decoded(pod, "list")] == [[], []]


def test_frames_that_the_switch_has_counted(pod: Node) -> None:
    """With an application `list` and `show` have the frames of each direction, of this moment."""
    [only] = decoded(pod, "list", "dpdk-app/net1")
    with (
        closing(FrontEndListener(only["socket"]["host"], FrontEndOptions())) as listener,
        closing(listener.accept()) as application,
    ):
        pair = application.pairs[0]
        wait_until(lambda: pair.send_frames([FRAME]), what="room for a frame")
        wait_until(lambda: decoded(pod, "list", "dpdk-app/net1")[0]["frames"]["from_pod"] == 1, what="the frame counted")
        [row] = [line.split() for line in cli(pod, "list", "-o", "wide", "dpdk-app/net1").stdout.splitlines()[1:]]
        assert row[14:17] == ["1", "0", "0"]
        shown = cli(pod, "show", "dpdk-app/net1").stdout
        assert re.search(r"frames from the pod +1, 0 dropped$", shown, re.MULTILINE), shown
        assert re.search(r"frames to the pod +0, 0 dropped$", shown, re.MULTILINE), shown


def test_a_name_that_no_attachment_has(pod: Node) -> None:
    """Names that are spelled alike are asked for."""
    told = cli(pod, "show", "dpdk-ap/net1", code=1).stderr
    assert told == "Error: no attachment is named 'dpdk-ap/net1'; did you mean default/dpdk-app/net1 or default/dpdk-app/net2?\n"


def test_a_database_that_hangs(pod: Node) -> None:
    """A command gives up on a hung ovsdb-server, and still shows the records."""
    with paused_ovsdb(switch_of(pod)):
        assert len(decoded(pod, "list")) == 2
        assert decoded(pod, "status", code=3)["switch"]["reachable"] is False


def test_a_fresh_node_without_a_switch(bare_node: Node) -> None:
    """Before the first attachment, `list` and `gc` find nothing, and make no file by looking."""
    before = sorted(path.name for path in bare_node.directory.iterdir())
    assert decoded(bare_node, "list") == []
    assert decoded(bare_node, "status", code=3)["records"]["ready"] == 0
    assert decoded(bare_node, "check") == {"checked": 0, "drifts": [], "unchecked": []}
    assert sorted(path.name for path in bare_node.directory.iterdir() if path.name != "config.toml") == [
        name for name in before if name != "config.toml"
    ]
