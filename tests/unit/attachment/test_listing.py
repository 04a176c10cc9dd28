"""What people see of an attachment, and the names by which they ask for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.attachment.drift import Dead, Drift
from userspace_cni.attachment.listing import Unresolved, describe, describe_all, name_of, problems_of, select
from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.records import Record, State
from userspace_cni.attachment.steps import (
    Directory,
    Lease,
    LogicalPort,
    OvsPort,
    PlacedSocket,
    PodMount,
    PodNote,
    SocketFile,
    VhostUserClient,
    VhostUserServer,
)
from userspace_cni.base.vlans import Vlan

CONTAINER = "c0ffee0123456789"
POD_DIR = "/pods/uid/shared-dir"


@dataclass(frozen=True)
class Seen:
    """A port as the switch reports it."""

    name: str = "c0ffee012345-net1"
    bridge: str = "br0"
    interface_type: str = "dpdkvhostuserclient"
    link_state: str = "up"
    status: Mapping[str, str] = field(default_factory=lambda: {"mode": "client", "status": "connected", "numa": "0"})
    error: str = ""
    installed: str = ""
    now: PortNow = field(default_factory=lambda: PortNow(Vlan(100, (1, 2)), 9000))


PORT = OvsPort("br0", "c0ffee012345-net1", VhostUserClient("/short/uid/s", 9000), Vlan(100, (1, 2)), mac="02:00:00:00:00:01")
NOTE = PodNote("default", "web", "uid", CONTAINER, "net1", "{}", "/var/lib/cni/usrspcni/")
CLIENT = (
    Lease("host-local", "{}", {}, granted=True),
    Directory(POD_DIR, "/pods"),
    SocketFile(POD_DIR, "/pods", "s"),
    PodMount(POD_DIR, "/pods", "/short/uid"),
    PORT,
    NOTE,
)
RESULT = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}, {"name": "net1", "sandbox": "/run/netns/x"}],
    "ips": [
        {"address": "10.0.0.2/24", "interface": 0},
        {"address": "10.1.2.3/24", "interface": 1},
        {"address": "fd00::3/64", "interface": 1},
    ],
}
RECORD = Record(
    "ready", "n", CONTAINER, "net1", "/run/netns/x", 7, "boot-1", 42, "default", "web", "uid", steps=CLIENT, result=RESULT
)


def known(*ports: Seen) -> dict[str, Seen]:
    return {port.name: port for port in ports}


def named(container: str, ifname: str = "net1", pod: str = "", namespace: str = "default") -> Record:
    return Record("ready", "n", container, ifname, pod_namespace=namespace if pod else "", pod_name=pod)


def test_a_client_port_with_everything() -> None:
    """Record and switch together give the attachment's identity, path and state."""
    assert describe(RECORD, known(Seen()), boot_id="boot-1") == {
        "name": "default/web/net1",
        "container": CONTAINER,
        "ifname": "net1",
        "network": "n",
        "state": "ready",
        "problems": [],
        "findings": [],
        "pod": {"namespace": "default", "name": "web", "uid": "uid"},
        "netns": "/run/netns/x",
        "bridge": "br0",
        "port": "c0ffee012345-net1",
        "interface_type": "dpdkvhostuserclient",
        "role": "server",
        "socket": {"host": f"{POD_DIR}/s", "ovs": "/short/uid/s", "pod": "/var/lib/cni/usrspcni/s"},
        "socket_dead": False,
        "mac": "02:00:00:00:00:01",
        "addresses": ["10.1.2.3/24", "fd00::3/64"],
        "vlan": {"tag": 100, "trunks": [1, 2], "mode": ""},
        "mtu": 9000,
        "now": {
            "vlan": {"tag": 100, "trunks": [1, 2], "mode": ""},
            "mtu": 9000,
            "mtu_open": None,
            "limits": {"to_pod": None, "from_pod": None, "netem": None},
            "qos": "",
        },
        "frames": None,
        "dropped": None,
        "link": None,
        "limits": {"to_pod": None, "from_pod": None, "netem": None},
        "limits_by": "node",
        "mirrors": [],
        "mirror_output": "",
        "logical_port": None,
        "vm": "",
        "vswitchd": "unknown",
        "link_state": "up",
        "vhost": {"state": "connected", "mode": "client"},
        "error": "",
        "created": {"boot": "boot-1", "boottime_ns": 42},
        "steps": ["lease", "directory", "socket-file", "pod-mount", "port", "pod-note"],
    }


@pytest.mark.parametrize(
    ("installed", "waits", "problems"),
    [("default_web", True, []), ("", True, ["OVN has not installed logical port default_web"]), ("other", False, [])],
)
def test_a_logical_port(installed: str, waits: bool, problems: list[str]) -> None:
    """Its name, and whether OVN has installed this one; that it has not is a fault where ADD has waited for it."""
    port = replace(PORT, logical=LogicalPort("default_web", "uid", waits=waits))
    shown = describe(replace(RECORD, steps=(port,)), known(Seen(installed=installed)), boot_id="boot-1")
    assert shown["logical_port"] == {"name": "default_web", "installed": installed == "default_web"}
    assert shown["problems"] == problems
    unknown = describe(replace(RECORD, steps=(port,)), known(Seen(installed=installed)), vswitchd="dead")
    assert unknown["logical_port"] == {"name": "default_web", "installed": None}


def test_a_dead_socket() -> None:
    """It is a problem of its attachment alone, and a field for programs."""
    dead = Drift("socket /s", "", "an application that listens, or nothing", Dead("a dead socket"))
    [shown, other] = describe_all([RECORD, replace(RECORD, ifname="net2")], [Seen()], dead={RECORD.key: dead})
    assert shown["socket_dead"]
    assert "socket /s: expected an application that listens, or nothing, found a dead socket" in shown["problems"]
    assert not other["socket_dead"]
    assert not [problem for problem in other["problems"] if "dead" in problem]


@pytest.mark.parametrize("state", ["dead", "silent"])
def test_what_a_dead_daemon_had_said(state: str) -> None:
    """Link and application are not shown from OVSDB while the daemon is dead or silent; the port is."""
    told = describe(RECORD, known(Seen()), boot_id="boot-1", vswitchd=state)
    assert (told["vswitchd"], told["link_state"], told["vhost"]) == (state, "unknown", {"state": "unknown", "mode": ""})
    assert told["problems"] == []
    assert "the switch has no port" in describe(RECORD, {}, boot_id="boot-1", vswitchd=state)["problems"][0]


def test_a_vm_is_named() -> None:
    """A VM's name is read from the mark of its port."""
    port = replace(PORT, marks={"vm-name": "vm-1"})
    assert describe(replace(RECORD, steps=(port,)), known())["vm"] == "vm-1"


def test_a_server_port() -> None:
    """The application connects; OVS's path of the socket is where it made it, the pod's where it was placed."""
    placed = PlacedSocket("/ovs/p", POD_DIR, "/pods", "s")
    port = replace(PORT, interface=VhostUserServer(9000))
    shown = describe(replace(RECORD, steps=(port, placed)), known())
    assert shown["role"] == "client"
    assert shown["socket"] == {"host": f"{POD_DIR}/s", "ovs": "/ovs/p", "pod": ""}


def test_an_attachment_that_is_being_leased() -> None:
    """A record without steps is shown with empty places, and says that it is not finished."""
    shown = describe(Record("pending", "n", CONTAINER, "net1"), known())
    assert (shown["name"], shown["pod"], shown["port"], shown["mtu"], shown["steps"]) == ("c0ffee012345/net1", None, "", None, [])
    assert [problem.partition(":")[0] for problem in shown["problems"]] == ["state pending"]


@pytest.mark.parametrize("value", ["text", 5, ["text"], {"a": 1}, [{"address": 5}], [{"interface": {}}]])
def test_a_result_that_was_edited_by_hand(value: Any) -> None:
    """A record whose result is of another shape is shown without addresses, and the others are shown."""
    for key in ("interfaces", "ips"):
        assert describe(replace(RECORD, result={"interfaces": [], "ips": [], key: value}), known())["addresses"] == []


@pytest.mark.parametrize("state", ["pending", "applying", "deleting"])
def test_a_state_other_than_ready_is_a_problem(state: State) -> None:
    """An incomplete attachment is one problem; its missing port is not another one."""
    assert [problem.split()[1] for problem in describe(RECORD.to(state), known())["problems"]] == [f"{state}:"]


def test_what_the_switch_complains_of_is_a_problem() -> None:
    """Interface.error is shown as it is, and among the problems."""
    shown = describe(RECORD, known(Seen(error="could not open", link_state="", status={})))
    assert (shown["error"], shown["problems"]) == ("could not open", ["the switch says: could not open"])
    assert (shown["link_state"], shown["vhost"]) == ("unknown", {"state": "unknown", "mode": ""})


def test_problems_are_findings_about_the_attachment() -> None:
    """Each problem has a name for programs; an attachment that is being made or undone is no error."""
    found = problems_of(RECORD.to("applying"), None, asked=True, boot_id="another")
    assert [(each.name, each.severity, each.subject) for each in found] == [
        ("unfinished", "warning", name_of(RECORD)),
        ("rebooted", "error", name_of(RECORD)),
    ]


def test_a_missing_port_is_a_problem_only_if_the_switch_was_asked() -> None:
    """Nothing is concluded from a switch that did not answer."""
    assert describe(RECORD, known())["problems"] == ["the switch has no port c0ffee012345-net1"]
    shown = describe(RECORD, None)
    assert (shown["problems"], shown["link_state"], shown["vhost"]["state"]) == ([], "unknown", "unknown")


def test_an_earlier_boot_is_a_problem() -> None:
    """What was made before the node started has no sandbox any more."""
    assert describe(RECORD, None, boot_id="boot-2")["problems"] == ["made in an earlier boot: its sandbox is gone"]


def test_all_are_in_the_order_of_their_names() -> None:
    """A listing is the same whatever the order of the records."""
    records = [named("b" * 16), named("a" * 16, pod="z"), named("a" * 16, "net2", pod="a"), named("a" * 16, "net1", pod="a")]
    shown = [each["name"] for each in describe_all(records, None)]
    assert shown == ["bbbbbbbbbbbb/net1", "default/a/net1", "default/a/net2", "default/z/net1"]
    assert shown == [each["name"] for each in describe_all(records[::-1], None)]


def test_it_is_json() -> None:
    """What is shown can be encoded, addresses of a result without interfaces included."""
    record = replace(RECORD, result={"ips": [{"address": "10.1.2.3/24"}]})
    assert json.loads(json.dumps(describe(record, known(Seen()))))["addresses"] == ["10.1.2.3/24"]


@pytest.mark.parametrize(
    "name",
    ["web", "default/web", "web/net1", "default/web/net1", CONTAINER, f"{CONTAINER}/net1", "c0ffee", "c0ffee/net1", "c"],
)
def test_names_of_an_attachment(name: str) -> None:
    """Pod, namespace and pod, or the beginning of the container's ID, each with the interface or without."""
    assert select([RECORD, named("ffff")], [name]) == [RECORD]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/net1",
        "we",
        "web/",
        "web/net2",
        "other/web",
        "other/web/net1",
        "default/web/net2",
        "c0ffee/net2",
        "net1",
        "/web/net1",
    ],
)
def test_names_of_nothing(name: str) -> None:
    """Half a pod's name, another namespace or another interface do not name this attachment."""
    with pytest.raises(Unresolved) as caught:
        select([RECORD], [name])
    assert not caught.value.ambiguous


def test_no_name_means_all() -> None:
    """Without names everything is chosen."""
    assert select([RECORD], []) == [RECORD]


def test_a_pod_has_all_its_interfaces_and_sandboxes() -> None:
    """A pod whose sandbox was replaced has attachments of two containers under one name."""
    records = [named("aa", "net1", "web"), named("aa", "net2", "web"), named("bb", "net1", "web"), named("cc", "net1", "other")]
    assert select(records, ["web"]) == records[:3]
    assert select(records, ["web/net2", "cc"]) == [records[1], records[3]]
    assert select(records, ["web", "web/net1"]) == records[:3]


def test_an_ambiguous_prefix_names_its_candidates() -> None:
    """A prefix of two containers means neither; a whole ID means itself, even if it begins another."""
    records = [named("abc"), named("abcdef"), named("abd")]
    with pytest.raises(Unresolved) as caught:
        select(records, ["ab"])
    assert caught.value.ambiguous
    assert caught.value.candidates == ("abc/net1", "abcdef/net1", "abd/net1")
    assert select(records, ["abc"]) == [records[0]]


def test_a_pod_of_two_namespaces_is_ambiguous() -> None:
    """Its namespace tells them apart."""
    records = [named("aa", pod="web", namespace="one"), named("bb", pod="web", namespace="two")]
    with pytest.raises(Unresolved) as caught:
        select(records, ["web/net1"])
    assert caught.value.candidates == ("one/web/net1", "two/web/net1")
    assert select(records, ["two/web"]) == [records[1]]


def test_a_pod_goes_before_a_container() -> None:
    """A pod that is called like the beginning of a container's ID is meant."""
    records = [named("abcdef"), named("123", pod="abc")]
    assert select(records, ["abc"]) == [records[1]]


def test_only_near_pods_are_suggested() -> None:
    """A namespace and an interface that all pods have make none alike; the nearest comes first, of at most three."""
    pods = ["twin", "plain", "app", "twin-2", "twig", "twist"]
    records = [named(f"{number}" * 12, pod=pod, namespace="default") for number, pod in enumerate(pods)]
    for name in ("default/twim", "default/twim/net1", "twim/net1"):
        with pytest.raises(Unresolved) as caught:
            select(records, [name])
        assert caught.value.candidates == ("default/twin/net1", "default/twig/net1", "default/twist/net1"), name
    with pytest.raises(Unresolved) as caught:
        select(records, ["default/zebra"])
    assert caught.value.candidates == ()


def test_near_names_are_suggested() -> None:
    """Similar names are suggested for a typo in a pod's name or an ID."""
    records = [named(CONTAINER, pod="dpdk-app"), named("ffff")]
    for typo in ("dpdk-ap", "dpkd-app", "default/dpdk-app/net2", "app"):
        with pytest.raises(Unresolved) as caught:
            select(records, [typo])
        assert "default/dpdk-app/net1" in caught.value.candidates


@given(st.text(max_size=40))
def test_any_text_is_a_name(name: str) -> None:
    """Any text either means something or is refused."""
    try:
        answer: list[Record] | str = select([RECORD], [name])
    except Unresolved as error:
        answer = str(error)
    assert answer == [RECORD] or (isinstance(answer, str) and "no attachment is named" in answer)


@given(st.sampled_from([RECORD, named("aa"), named("aa", "eth.1"), named("bb", pod="p", namespace="")]))
def test_the_name_that_is_shown_is_understood(record: Record) -> None:
    """What `list` calls an attachment can be given to `show`."""
    assert select([record, named("ff", pod="q")], [name_of(record)]) == [record]
