"""The commands for people on a node in memory: what they print, what they do, and how they end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.node.calls import call_plugin
from tests.lab.node.memory_switch import Alive, MemoryPorts
from tests.lab.node.world import World, name_of
from tests.lab.switch.switch import wait_until
from tests.unit.cli.test_cli_client import answering, told
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import Lease, OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, RecordRefused, Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import Rule
from userspace_cni.cli import agent_client, node_load
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.node_load import NodeLoad
from userspace_cni.cli.site import Site, attachment_limit
from userspace_cni.cni import protocol
from userspace_cni.diagnosis.attachment_findings import Outcome, check_one
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugepagePool, HugePages, HugetlbMount

CONTAINER = "c0ffee0123456789"
OTHER = "deadbeef01234567"
LIKE_IT = "deadbeef99999999"
NETNS = "/run/netns/x"
STDIN = b'{"cniVersion":"1.1.0","name":"n","type":"userspace","host":{"vhost":{"mode":"client"}}}'


class Town(World):
    """A node in memory with a switch that can be asked."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, resident=True, now=100)
        self.rules: tuple[Rule, ...] = ()
        self.kubeconfig = ""

    def call(self, verb: str, container: str = CONTAINER, ifname: str = "net1") -> None:
        """Make one call of a runtime, which has to succeed."""
        environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": NETNS, "CNI_IFNAME": ifname}
        assert call_plugin(environ, lambda: STDIN, lambda: self).code == 0

    def record(self, container: str = CONTAINER, ifname: str = "net1") -> Record:
        record = self.journal.read(container, ifname)
        assert record
        return record

    def rewrite(self, container: str = CONTAINER, **changes: Any) -> None:
        """A record with other values."""
        self.journal.write(replace(self.record(container), **changes))

    def lose(self, container: str = CONTAINER) -> None:
        """Remove the port, and leave the record."""
        [port] = (step for step in self.record(container).steps if isinstance(step, OvsPort))
        self.true.discard(name_of(port))

    def spool_del(self, boottime_ns: int, container: str = CONTAINER, stdin: bytes = STDIN) -> Path:
        environ = {"CNI_CONTAINERID": container, "CNI_IFNAME": "net1"}
        extra = {"Called-Boot-Id": "boot-1", "Called-Boottime-Ns": str(boottime_ns)}
        path = self.directory / "state" / "spool" / f"{boottime_ns:020}-1-00000000"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(protocol.request_bytes("/api/v1/del", environ, stdin, extra=extra))
        return path

    def cli(self, *arguments: str) -> Result:
        state, run = self.directory / "state", self.directory / "run"
        short = self.directory / "short"
        settings = Settings(
            state_dir=str(state), run_dir=str(run), short_dir=str(short), rules=self.rules, kubeconfig=self.kubeconfig
        )
        environ = {"CNI_PATH": str(self.directory / "bin")}
        return CliRunner().invoke(userspace_cni, arguments, obj=Site(settings, self, apart_s=0.0, environ=environ))


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """A node with one attachment of a pod."""
    town = Town(tmp_path)
    town.call("ADD")
    town.rewrite(pod_namespace="default", pod_name="web", pod_uid="uid")
    return town


def decoded(result: Result, code: int = 0) -> Any:
    """The JSON of a command that ended with this code."""
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


# -- list ----------------------------------------------------------------------------------------------------------------


def test_list(town: Town) -> None:
    """A line for each attachment with its state at the switch."""
    town.call("ADD", OTHER)
    result = town.cli("list")
    assert result.exit_code == 0
    header, *rows = (line.split() for line in result.stdout.splitlines())
    assert header == ["POD", "IFNAME", "NETWORK", "BRIDGE", "PORT", "TYPE", "LINK", "VHOST", "STATE"]
    state = ["dpdkvhostuserclient", "up", "connected", "ready"]
    assert rows == [
        ["deadbeef0123", "net1", "n", "br0", "deadbeef0123-net1", *state],
        ["default/web", "net1", "n", "br0", "c0ffee012345-net1", *state],
    ]


def test_list_of_nothing(tmp_path: Path) -> None:
    """An empty node is no failure: there is a line on stderr, and an empty list in JSON."""
    town = Town(tmp_path)
    result = town.cli("list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no attachments on this node\n")
    assert decoded(town.cli("list", "--json")) == []


def test_list_of_a_network(town: Town) -> None:
    """Only attachments of the network that is asked for."""
    assert [each["name"] for each in decoded(town.cli("list", "--network", "n", "--json"))] == ["default/web/net1"]
    result = town.cli("list", "--network", "m")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no attachments of network m\n")


def test_list_by_name(town: Town) -> None:
    """Names choose; a name of no attachment ends with 1 and suggestions, a name of several ends with 2 and lists them."""
    town.call("ADD", OTHER)
    town.call("ADD", LIKE_IT)
    assert [each["container"] for each in decoded(town.cli("list", "web", "--json"))] == [CONTAINER]
    unknown = town.cli("list", "wib")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "default/web/net1" in unknown.stderr
    ambiguous = town.cli("list", "dead")
    assert (ambiguous.exit_code, ambiguous.stdout) == (2, "")
    assert f"{OTHER}/net1, {LIKE_IT}/net1" in ambiguous.stderr


def test_list_shows_problems(town: Town) -> None:
    """An attachment that is not ready, or has a problem at the switch, is marked; the reason is below the table."""
    town.call("ADD", OTHER)
    town.rewrite(OTHER, state="deleting")
    town.ports.errors["c0ffee012345-net1"] = "could not open \x1b[31m"
    result = town.cli("list")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert [line.split()[-2:] for line in lines[1:3]] == [["deleting", "!"], ["ready", "!"]]
    assert lines[3].startswith("deadbeef0123/net1: state deleting")
    assert "userspace-cni gc --dry-run" in lines[4]
    assert lines[5] == "default/web/net1: the switch says: could not open \\x1b[31m"
    assert lines[6].startswith("  do  ovs-vsctl get Interface c0ffee012345-net1 error")


@pytest.mark.parametrize("command", ["list", "show"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_port_that_the_switch_lacks(town: Town, command: str, options: list[str]) -> None:
    """It is a finding for scripts, too; an attachment that is being made or removed is none."""
    assert town.cli(command, "web", *options).exit_code == 0
    town.lose()
    result = town.cli(command, "web", *options)
    assert (result.exit_code, "the switch has no port c0ffee012345-net1" in result.stdout) == (1, True)
    town.rewrite(CONTAINER, state="deleting")
    assert town.cli(command, "web", *options).exit_code == 0


@pytest.mark.parametrize(("state", "code"), [("dead", 1), ("silent", 0), ("unknown", 0), ("alive", 0)])
def test_attachments_of_a_switch_that_may_not_live(town: Town, state: str, code: int) -> None:
    """A dead switch is a finding; a silent one may only be late; the state of one on another machine is unknown."""
    town.ports.alive = Alive(state, "as the test says")
    assert town.cli("list").exit_code == town.cli("show", "web").exit_code == code


def test_list_without_the_switch(town: Town) -> None:
    """The records are listed; what the switch would report is unknown, and the reason is on stderr."""
    town.unreachable = Unavailable("OVSDB is away")
    result = town.cli("list")
    assert (result.exit_code, result.stderr) == (0, "the switch cannot be asked: OVSDB is away\n")
    assert result.stdout.splitlines()[1].split()[-3:] == ["unknown", "unknown", "ready"]


def test_list_of_an_earlier_boot(town: Town) -> None:
    """An attachment of an earlier boot is not ready, whatever its record says."""
    town.boot = "boot-2"
    assert "made in an earlier boot" in town.cli("list").stdout


# -- show ----------------------------------------------------------------------------------------------------------------


def test_show(town: Town) -> None:
    """The path from the pod to the bridge, the steps in their order, and the holders of shared things."""
    result = town.cli("show", "default/web/net1")
    assert result.exit_code == 0
    shown = result.stdout
    stations = ["pod ", "socket ", "mount ", "port ", "bridge "]
    assert [shown.index(f"  {station}") for station in stations] == sorted(shown.index(f"  {station}") for station in stations)
    steps = [line.split()[:2] for line in shown[shown.index("steps, in") : shown.index("\nshared")].splitlines()[1:] if line]
    assert steps == [[str(number), step.kind] for number, step in enumerate(town.record().steps, 1)]
    assert "held by default/web/net1" in shown
    assert CONTAINER in shown


def test_what_a_newer_switch_says(town: Town) -> None:
    """`show` has the keys of Interface.status that it knows; those that Open vSwitch 4.0 adds are not shown."""
    known = {"mode": "client", "status": "connected", "features": "0x1", "num_of_vrings": "2", "numa": "0", "vring_1_size": "256"}
    added = {"tx_tcp_seg_offload": "false", "tx_ip_csum_offload": "true", "n_vring_1_size": "1", "features2": "0x2"}
    town.ports.status = {**known, **added}
    [shown] = decoded(town.cli("show", "web", "--json"))
    assert shown["switch_status"] == known
    text = town.cli("show", "web").stdout
    assert [key for key in known if f"switch: {key}" not in text] == [key for key in added if key in text] == []


def test_show_as_json(town: Town) -> None:
    """The listing's keys, with steps, shared things and the switch's own words."""
    town.rewrite(steps=(Lease("host-local", '{"secret": 1}', {}, granted=True), *town.record().steps))
    [shown] = decoded(town.cli("show", "web", "--json"))
    assert shown["name"] == "default/web/net1"
    assert shown["steps"][0]["stdin"] == "13 characters"
    assert [step["step"] for step in shown["steps"]] == [step.kind for step in town.record().steps]
    assert shown["switch_status"] == {"mode": "client", "status": "connected"}
    assert all(thing["made_by_us"] and thing["holders"] == ["default/web/net1"] for thing in shown["shared"])
    assert shown["quarantined"] == []


def test_show_shares(town: Town) -> None:
    """A directory that two attachments hold names both."""
    town.call("ADD", ifname="net2")
    [shown] = decoded(town.cli("show", "web", "--json"))
    [directory] = (thing for thing in shown["shared"] if thing["thing"].startswith("directory:"))
    assert directory["holders"] == ["c0ffee012345/net2", "default/web/net1"]


def test_show_all_of_a_pod(town: Town) -> None:
    """Without an interface every attachment of the pod is shown."""
    town.call("ADD", ifname="net2")
    town.journal.write(replace(town.record(ifname="net2"), pod_namespace="default", pod_name="web"))
    assert [each["ifname"] for each in decoded(town.cli("show", "web", "--json"))] == ["net1", "net2"]
    assert town.cli("show", "web").stdout.count("steps, in the order of ADD") == 2


def test_show_unreadable_files(town: Town) -> None:
    """Files of the quarantine that name the container, or speak of it, are listed; others are not."""
    quarantine = town.directory / "state" / "quarantine"
    quarantine.mkdir(mode=0o700)
    (quarantine / f"attachments-{CONTAINER}@net9.json.1").write_text("{")
    (quarantine / "spool-00000000000000000001-1-00000000").write_text(f"Cni-Containerid: {CONTAINER}")
    (quarantine / f"attachments-{OTHER}@net1.json.1").write_text("{")
    [shown] = decoded(town.cli("show", "web", "--json"))
    names = sorted(Path(entry["file"]).name for entry in shown["quarantined"])
    assert names == [f"attachments-{CONTAINER}@net9.json.1", "spool-00000000000000000001-1-00000000"]
    assert "unreadable files of this container" in town.cli("show", "web").stdout


def test_show_needs_a_name(town: Town) -> None:
    """Without a name it is wrong usage; an unknown name ends with 1."""
    assert town.cli("show").exit_code == 2
    assert town.cli("show", "unknown").exit_code == 1


# -- check ---------------------------------------------------------------------------------------------------------------


def test_check(town: Town) -> None:
    """Nothing differs after ADD; a thing that is lost afterwards is found, with its step."""
    assert decoded(town.cli("check", "--json")) == {"checked": 1, "drifts": [], "unchecked": []}
    town.lose()
    result = town.cli("check", "web")
    assert (result.exit_code, result.stderr) == (1, "1 attachment checked, 1 differ\n")
    assert result.stdout.splitlines()[1].split()[:2] == ["default/web/net1", "port"]


def test_check_of_another(town: Town) -> None:
    """Only the named attachments are looked at."""
    town.call("ADD", OTHER)
    town.lose()
    assert decoded(town.cli("check", "dead", "--json"))["checked"] == 1
    assert town.cli("check").exit_code == 1


def test_check_of_an_unfinished_attachment(town: Town) -> None:
    """A record that is not ready differs, unless a call is working on it."""
    town.rewrite(state="applying")
    [drift] = decoded(town.cli("check", "--json"), 1)["drifts"]
    assert (drift["expected"], drift["found"]) == ("ready", "applying")
    with town.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert decoded(town.cli("check", "--json"))["drifts"] == []


def test_check_without_the_switch(town: Town) -> None:
    """Steps that need no switch are looked at; the others are unchecked, with exit code 3, or 1 when something differs."""
    town.unreachable = Unavailable("OVSDB is away")
    found = decoded(town.cli("check", "--json"), 3)
    assert [each["step"] for each in found["unchecked"]] == ["port"]
    town.true.discard(next(name for name in town.true if name.startswith("mount:")))
    result = town.cli("check")
    assert result.exit_code == 1
    assert "step 'port' could not be looked at: OVSDB is away" in result.stderr


def test_check_during_a_del(town: Town) -> None:
    """An attachment that is deleted while it is looked at does not differ."""
    town.lose()
    record = town.record()
    assert check_one(record, town, attachment_limit).drifts
    town.call("DEL")
    assert check_one(record, town, attachment_limit) == Outcome()


# -- gc ------------------------------------------------------------------------------------------------------------------


def test_gc_of_a_clean_node(town: Town) -> None:
    """A complete attachment is left alone, and a line says so."""
    before = set(town.true)
    result = town.cli("gc")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing to do\n")
    assert town.true == before


def test_gc_of_an_unfinished_attachment(town: Town) -> None:
    """--dry-run shows reason and action, and does nothing; without it the attachment is undone."""
    town.rewrite(state="applying")
    planned = town.cli("gc", "--dry-run")
    assert (planned.exit_code, planned.stderr) == (1, "1 to do\n")
    assert "ADD died before it was answered" in planned.stdout
    assert "undo " in planned.stdout
    assert town.record().state == "applying"
    done = town.cli("gc")
    assert (done.exit_code, done.stderr) == (0, "1 done by this process, nothing left\n")
    assert "done: undo " in done.stdout
    assert town.true == set()
    assert town.journal.records() == []


def test_gc_leaves_work_in_progress(town: Town) -> None:
    """A running ADD is not cleaned up."""
    town.rewrite(state="applying")
    with town.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert decoded(town.cli("gc", "--dry-run", "--json"))["found"] == []
        assert decoded(town.cli("gc", "--json"))["found"] == []
    assert town.record().state == "applying"


def test_gc_of_a_sandbox_that_is_gone(town: Town) -> None:
    """It is removed after a second look, in the same command."""
    town.gone = {NETNS, "uid"}
    planned = decoded(town.cli("gc", "--dry-run", "--json"), 1)
    assert [(each["problem"], each["action"].partition(", after")[2]) for each in planned["found"]] == [
        ("sandbox-gone", " a second look")
    ]
    done = decoded(town.cli("gc", "--json"))
    assert done["actions"] == {"removed-sandbox-gone": 1}
    assert (done["by"], done["remaining"]) == ("this process", [])
    assert town.journal.records() == []


def test_gc_makes_again_what_was_lost(town: Town) -> None:
    """The port of a living attachment that another program deleted is made again."""
    town.lose()
    assert "make again" in town.cli("gc", "--dry-run").stdout
    assert decoded(town.cli("gc", "--json"))["actions"] == {"again-port": 1}
    assert town.cli("check").exit_code == 0


def test_gc_of_a_port_without_a_record(town: Town) -> None:
    """A port of ours is removed when its sandbox is gone; one of another store is listed and left alone."""
    [port] = (step.ref for step in town.record().steps if isinstance(step, OvsPort))
    foreign = replace(port, name="foreign", marks={**port.marks, "store": "another", "container-id": "other"})
    town.journal.drop(town.record())
    town.marked = [port, foreign]
    town.true.add("port:foreign")
    town.gone = {NETNS}
    found = decoded(town.cli("gc", "--json"))
    assert [each["problem"] for each in found["found"]] == ["record-lost"]
    assert [each["port"] for each in found["foreign"]] == ["foreign"]
    assert "port:foreign" in town.true
    assert name_of(port) not in town.true
    shown = town.cli("gc", "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "nothing to do\n")
    assert "left alone" in shown.stdout
    assert "store another" in shown.stdout


def test_gc_of_a_spooled_del(town: Town) -> None:
    """A DEL that no agent received is listed and carried out; one that was called before the ADD is forgotten."""
    town.spool_del(99, OTHER)
    path = town.spool_del(101)
    rows = {each["container"]: each for each in decoded(town.cli("gc", "--dry-run", "--json"), 1)["found"]}
    assert rows[CONTAINER]["action"].startswith("undo ")
    assert rows[OTHER]["action"] == "undo what is left of it without a record"
    assert path.exists()
    assert decoded(town.cli("gc", "--json"))["remaining"] == []
    assert not path.exists()
    assert town.journal.records() == []


def test_gc_of_a_stale_del(town: Town) -> None:
    """An attachment that is newer than the DEL stays; the DEL is removed."""
    path = town.spool_del(99)
    [found] = decoded(town.cli("gc", "--dry-run", "--json"), 1)["found"]
    assert found["action"] == "forget it: the attachment was made after that call"
    assert town.cli("gc").exit_code == 0
    assert not path.exists()
    assert town.record().state == "ready"


def test_gc_of_an_unusable_del(town: Town) -> None:
    """A DEL whose configuration is no JSON is listed as unreadable, and moved aside."""
    town.spool_del(101, stdin=b"{")
    [found] = decoded(town.cli("gc", "--dry-run", "--json"), 1)["found"]
    assert found["action"] == "put it aside"
    assert town.cli("gc").exit_code == 0
    assert decoded(town.cli("status", "--json"), 1)["quarantine"] == 1


def test_gc_that_does_not_come_to_its_end(town: Town) -> None:
    """Steps that cannot be undone are listed as left, with the reason on stderr and exit code 1."""

    def fault(when: str, step: object) -> None:
        if when == "before undo" and isinstance(step, OvsPort):
            raise Unavailable("the switch hangs")

    town.fault = fault
    town.log_level = "warning"
    town.rewrite(state="applying")
    result = town.cli("gc")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "0 done by this process, 1 left")
    assert "left: undo port" in result.stdout
    assert "the switch hangs" in result.stderr
    assert [step.kind for step in town.record().steps] == ["port"]


def test_gc_without_the_switch(town: Town) -> None:
    """While ports cannot be listed, an empty list proves nothing: exit code 3; with findings it is 1."""
    town.unreachable = Unavailable("OVSDB is away")
    result = town.cli("gc")
    assert result.exit_code == 3
    assert "ports without a record were not looked for: OVSDB is away" in result.stderr
    town.rewrite(state="applying")
    assert town.cli("gc", "--dry-run").exit_code == 1


def test_gc_by_the_agent(town: Town) -> None:
    """An agent that answers is asked to act; what it left is shown."""
    town.rewrite(state="applying")
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    with answering(path, told(200, {"problems": [], "actions": {"removed-unfinished": 0}})) as heard:
        result = decoded(town.cli("gc", "--json"), 1)
    assert [request.split()[1] for request in heard] == [b"/healthz", b"/api/v1/reconcile"]
    assert (result["by"], len(result["remaining"])) == ("the agent", 1)
    assert town.record().state == "applying"


def test_gc_beside_a_dead_agent(town: Town) -> None:
    """When the agent refuses, a note says so, and gc does the work itself."""
    town.rewrite(state="applying")
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    with answering(path, b"nonsense", cut=True):
        result = town.cli("gc")
    assert result.exit_code == 0
    assert "done here: " in result.stderr
    assert town.journal.records() == []


# -- status --------------------------------------------------------------------------------------------------------------


def test_status_of_a_good_node(town: Town) -> None:
    """A node with a switch and no agent is good, and a line says that there is no agent."""
    result = town.cli("status")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "none on this node" in rows["agent"]
    assert rows["attachments"].split()[2:] == ["1", "ready"]
    assert "finding" not in result.stdout


def test_status_as_json(town: Town) -> None:
    """Everything that was looked at, and the findings in words."""
    told_of = decoded(town.cli("status", "--json"))
    assert (told_of["agent"]["absent"], told_of["agent"]["reachable"]) == (True, False)
    assert told_of["switch"]["vswitchd"] == "alive"
    assert told_of["records"] == {"pending": 0, "applying": 0, "ready": 1, "deleting": 0}
    assert [each["setting"] for each in told_of["directories"]] == ["state_dir", "run_dir", "short_dir"]
    assert (told_of["unfinished"], told_of["spool"], told_of["quarantine"], told_of["findings"]) == (0, 0, 0, [])


def test_status_tells_of_rules(town: Town) -> None:
    """The namespaces of the rules in the settings file, in its order; or that there are none."""
    assert decoded(town.cli("status", "--json"))["rules"] == []
    assert "any bridge and VLAN" in town.cli("status").stdout
    town.rules = (Rule(1, ("tenant-[ab]", "dev")), Rule(2, ("*",)))
    assert decoded(town.cli("status", "--json"))["rules"] == [["tenant-[ab]", "dev"], ["*"]]
    assert "1 for tenant-[ab], dev; 2 for *" in town.cli("status").stdout


def test_status_counts_what_waits(town: Town) -> None:
    """Unfinished attachments, DELs that no agent received and unreadable files are findings."""
    town.rewrite(state="deleting")
    town.spool_del(101)
    (town.directory / "state" / "quarantine").mkdir()
    (town.directory / "state" / "quarantine" / "x").touch()
    told_of = decoded(town.cli("status", "--json"), 1)
    assert (told_of["unfinished"], told_of["spool"], told_of["quarantine"]) == (1, 1, 1)
    assert [finding.partition(":")[0] for finding in told_of["findings"]] == ["unfinished", "spool", "quarantine"]
    with town.journal.turn_lock(record_key(CONTAINER, "net1"), Deadline.after(60)):
        assert decoded(town.cli("status", "--json"), 1)["unfinished"] == 0


@pytest.mark.parametrize(
    ("error", "alive"),
    [
        (NotServing("ovs-vswitchd is dead: no control socket", code=51), Alive("dead", "no control socket")),
        (NotServing("ovs-vswitchd runs without DPDK", code=51), Alive()),
    ],
)
def test_status_of_a_bad_datapath(town: Town, error: NotServing, alive: Alive) -> None:
    """When OVSDB answers but the datapath is not usable, that is a finding in the words of STATUS."""
    town.ports.serving_error, town.ports.alive = error, alive
    told_of = decoded(town.cli("status", "--json"), 1)
    assert told_of["switch"]["reachable"]
    assert told_of["findings"] == [f"datapath: {error.message}"]


def test_status_when_nothing_can_be_reached(town: Town) -> None:
    """Neither agent nor switch: exit code 3. With an agent that answers it is a finding."""
    town.unreachable = Unavailable("OVSDB is away")
    assert decoded(town.cli("status", "--json"), 3)["findings"] == ["switch: OVSDB is away"]
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    with answering(path, told(503, {"problems": ["no session with OVSDB"]})):
        told_of = decoded(town.cli("status", "--json"), 1)
    assert told_of["agent"]["problems"] == ["no session with OVSDB"]
    assert len(told_of["findings"]) == 2


def test_status_with_an_agent(town: Town) -> None:
    """A ready agent is shown with its version; a socket that refuses is a finding."""
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    with answering(path, told(200, {"problems": [], "version": "0.2.0", "commit": "c0ffee"})):
        result = town.cli("status")
    assert result.exit_code == 0
    assert f"{path} 0.2.0 (commit c0ffee), ready" in result.stdout
    assert "and the agent 0.2.0 (commit c0ffee); restart the agent" in result.stdout
    refused = decoded(town.cli("status", "--json"), 1)
    assert (refused["agent"]["reachable"], refused["agent"]["absent"]) == (False, False)
    assert "no process listens there" in refused["findings"][0]


def test_status_on_a_busy_node(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node a slow agent is reported as such, asked once, and no finding; on an idle node it is one."""
    monkeypatch.setattr(agent_client, "LOOK_S", 0.05)
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    for processes, code in ((100.0, 0), (0.0, 1)):
        monkeypatch.setattr(node_load, "look", lambda processes=processes: NodeLoad(processes, 2))
        with answering(path, None) as heard:
            told_of = decoded(town.cli("status", "--json"), code)
        assert (told_of["agent"]["slow"], told_of["agent"]["reachable"]) == (not code, False)
        assert "it lives" in told_of["agent"]["problems"][0]
        assert [each.partition(":")[0] for each in told_of["findings"]] == (["agent"] if code else [])
        assert len(heard) == 1
        path.unlink()


def test_a_switch_that_answers_late(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node a silent ovs-vswitchd is asked again, and a late answer counts."""
    monkeypatch.setattr(node_load, "look", lambda: NodeLoad(1000.0, 2))
    for command in ("status", "list"):
        answers = iter([Alive("silent", "no answer in time")] * 2)
        monkeypatch.setattr(MemoryPorts, "watch_liveness", lambda _, answers=answers: next(answers, Alive()))
        told_of = decoded(town.cli(command, "--json"))
        assert (told_of["switch"] if command == "status" else told_of[0])["vswitchd"] == "alive"


def test_status_of_a_directory_that_cannot_be_written(town: Town) -> None:
    """A file in the place of a directory's parent is a finding that names the setting."""
    (town.directory / "short").touch(mode=0o400)
    told_of = decoded(town.cli("status", "--json"), 1)
    assert [each["problem"] for each in told_of["directories"]] == ["", "", "it cannot be written"]


def test_status_tells_huge_pages(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools by size and node, with their mounts; that there are none is shown, and is no finding."""
    found = HugePages(
        machine=(HugepagePool(2 << 20, None, 96, 64, 4, 0), HugepagePool(1 << 30, None, 2, 0, 0, 0)),
        nodes=(HugepagePool(2 << 20, 0, 32, 0, None, 0), HugepagePool(2 << 20, 1, 64, 64, None, 0)),
        mounts=(HugetlbMount("/dev/hugepages", 2 << 20, 0o755, 0, 0, None, None, writable=True),),
    )
    monkeypatch.setattr(hugepages, "read_hugepages", lambda **_: found)
    shown = [line for line in town.cli("status").stdout.splitlines() if line.startswith("huge pages")]
    assert "64 of 2 MiB on node 1, 64 free (4 of the machine's promised), mounted at /dev/hugepages" in shown[1]
    assert "2 of 1 GiB, 0 free, not mounted" in shown[2]
    decoded_pools = decoded(town.cli("status", "--json"))["hugepages"]["pools"]
    assert [(pool["node"], pool["free"]) for pool in decoded_pools] == [(0, 0), (1, 64), (None, 0)]
    monkeypatch.setattr(hugepages, "read_hugepages", lambda **_: HugePages((), (), ()))
    result = town.cli("status")
    assert result.exit_code == 0
    assert "none reserved" in result.stdout


# -- agent probe ---------------------------------------------------------------------------------------------------------


def test_probe(town: Town) -> None:
    """0 when all is well, 1 with the problems on stdout, 3 when no agent answers."""
    path = town.directory / "run" / "agent.sock"
    path.parent.mkdir()
    silent = town.cli("agent", "probe", "healthz")
    assert (silent.exit_code, silent.stdout) == (3, "")
    with answering(path, told(200, {"problems": []})):
        assert town.cli("agent", "probe", "healthz").exit_code == 0
    path.unlink()
    with answering(path, told(503, {"problems": ["one", "two"]})):
        result = town.cli("agent", "probe", "readyz")
        assert (result.exit_code, result.stdout) == (1, "one\ntwo\n")
        assert decoded(town.cli("agent", "probe", "readyz", "--json"), 1) == {"problems": ["one", "two"]}
    assert town.cli("agent", "probe", "metrics").exit_code == 2


# -- how commands end ----------------------------------------------------------------------------------------------------

COMMANDS = [["list"], ["show", "x"], ["check"], ["gc", "--dry-run"], ["gc"], ["status"]]


@pytest.mark.parametrize("command", [*COMMANDS, ["agent"], ["agent", "probe", "readyz"]], ids=" ".join)
def test_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """A mistake in the settings ends with 2 and names the place."""
    monkeypatch.setenv("USERSPACE_CNI_TICK_S", "soon")
    result = CliRunner().invoke(userspace_cni, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "USERSPACE_CNI_TICK_S" in result.stderr


def test_a_mistake_is_told_without_a_traceback() -> None:
    """The program reports it in the same way, and ends with the same code."""
    environ = {**os.environ, "USERSPACE_CNI_TICK_S": "soon"}
    argv = [sys.executable, "-m", "userspace_cni", "list"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "USERSPACE_CNI_TICK_S" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_cannot_be_read(town: Town, command: list[str]) -> None:
    """An unreadable store is not an empty one: exit code 3."""

    class Broken(Journal):
        def records(self) -> list[Record]:
            raise RecordRefused("listing the records", "the disk is gone")

    class Ruin(Town):
        @property
        def journal(self) -> Journal:
            return Broken(f"{self.directory}/state", str(self.directory), print, self.boot_id)

    result = Ruin(town.directory).cli(*command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "listing the records; the disk is gone" in result.stderr


ACTING: list[tuple[list[str], int, str]] = [
    (["probe"], 3, "making ports and sockets of our own"),
    (["ping"], 3, "making ports and sockets of our own"),
    (["load"], 3, "making ports and sockets of our own"),
    (["ping", "a/net1", "b/net1"], 3, "reading the records in"),
    (["agent"], 3, "serving this node"),
    (["tap"], 3, "capability NET_ADMIN"),
    (["install", "--bin-dir", "{closed}/bin"], 3, "writing"),
    (["install", "--standalone", "--bin-dir", "{closed}/bin"], 3, "writing"),
]
LOOKING = [(command, 3, "reading the records in") for command in (*COMMANDS, ["kubevirt", "doctor"])]


def _as_unprivileged(directory: str, cases: list[tuple[list[str], int, str]], answer: Connection) -> None:
    """Run each command, in this process, as a user who is not root; return those that end differently from the case."""
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    os.environ |= {"USERSPACE_CNI_STATE_DIR": f"{directory}/closed/state", "USERSPACE_CNI_RUN_DIR": f"{directory}/run"}
    wrong = []
    for command, code, said in cases:
        result = CliRunner().invoke(userspace_cni, [each.format(closed=f"{directory}/closed") for each in command])
        told = said in result.stderr and "run this as root" in result.stderr
        if (result.exit_code, result.stdout, told) != (code, "", True):
            wrong.append((command, result.exit_code, result.output))
    answer.send(wrong)


@pytest.mark.parametrize("cases", [LOOKING, ACTING], ids=["looking", "acting"])
def test_a_user_who_may_not(tmp_path: Path, cases: list[tuple[list[str], int, str]]) -> None:
    """For users other than root a closed store would look empty: the command is refused with 3.

    A command that needs root says so, and why, before it tries anything as another user.
    """
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    context = multiprocessing.get_context("forkserver")
    hears, tells = context.Pipe(duplex=False)
    process = context.Process(target=_as_unprivileged, args=(str(tmp_path), cases, tells))
    try:
        process.start()
        tells.close()
        assert hears.recv() == []
        process.join(60)
        assert process.exitcode == 0
    finally:
        hears.close()
        closed.chmod(0o700)


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C ends a command that waits for an agent with 130 and no traceback."""
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "agent.sock"
    environ = {**os.environ, "USERSPACE_CNI_STATE_DIR": f"{tmp_path}/state", "USERSPACE_CNI_RUN_DIR": str(path.parent)}
    # what a shell starts in the background ignores SIGINT, and so would all that this test starts
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "userspace_cni", "agent", "probe", "healthz"]
    with answering(path, None) as heard:
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: heard, what="the request")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_a_pipe_that_is_closed(town: Town) -> None:
    """`list | head` ends without an error message."""
    settings = f"USERSPACE_CNI_STATE_DIR={town.directory}/state USERSPACE_CNI_RUN_DIR={town.directory}/run"
    command = f"{settings} {sys.executable} -m userspace_cni list --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_every_command_has_help() -> None:
    """Each command has one line on its purpose, and a longer text on what it does."""
    overview = CliRunner().invoke(userspace_cni, ["--help"]).stdout
    for command in ("list", "show", "check", "gc", "status", "agent", "install"):
        assert f"  {command}" in overview
        assert CliRunner().invoke(userspace_cni, [command, "--help"]).exit_code == 0
    assert "not the CNI verb GC" in CliRunner().invoke(userspace_cni, ["gc", "--help"]).stdout
    mine = [line for line in overview.splitlines() if line.startswith("  ") and not line.startswith("  install")]
    assert not [line for line in mine if line.endswith("...")]
