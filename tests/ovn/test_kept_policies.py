"""The controller keeps policies: with a real northbound database, and an API server that speaks its protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest

from tests.lab import pages
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.ovn.started import run_program
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.switch.switch import wait_until
from tests.ovn.test_kept_logical_ports import (  # noqa: F401 - fixtures
    Make,
    a_pod,
    api,
    keep,
    northbound,
    noted,
    ports,
    switches,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.ovn.northbound import northbound_client
from userspace_cni.ovn.ovn_facts import look_north
from userspace_cni.ovn.policy.policy_acls import deny_group


class NorthboundControl(Protocol):
    """What has a northbound database."""

    def nbctl(self, *args: str) -> str:
        """The output of an ovn-nbctl."""


POLICIES = "networkpolicies.networking.k8s.io"
WEB = {"app": "web"}


def labelled(name: str, labels: Mapping[str, str], on: str = "n1", **spec: Any) -> dict[str, Any]:
    made = a_pod(name, on, **spec)
    return {**made, "metadata": {**made["metadata"], "labels": dict(labels)}}


def policy(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": namespace}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": about, "spec": {"podSelector": {}, **spec}}


def put(api: ApiServer, thing: Mapping[str, Any]) -> None:  # noqa: F811
    """Make the object, or replace it."""
    api.add(thing, thing["metadata"].get("namespace", ""))


def space(name: str, labels: Mapping[str, str], notes: Mapping[str, str] | None = None) -> dict[str, Any]:
    about = {"name": name, "labels": dict(labels), **({"annotations": dict(notes)} if notes else {})}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": about}


def listed(database: NorthboundControl, table: str, *columns: str) -> list[list[Any]]:
    asked = ("--format=json", f"--columns={','.join(columns)}", "list", table)
    rows: list[list[Any]] = json.loads(database.nbctl(*asked))["data"]
    return [[_plain(each) for each in row] for row in rows]


def _plain(value: Any) -> Any:
    """A value of OVSDB, with sets as Python's and maps as dicts."""
    if isinstance(value, list) and value[0] == "map":
        return dict(value[1])
    if isinstance(value, list) and value[0] == "set":
        return {_plain(each) for each in value[1]}
    return value[1] if isinstance(value, list) else value


def groups(database: NorthboundControl) -> dict[str, set[str]]:
    """The ports of the groups, by what the groups are: a policy's "namespace/name", or "namespace direction"."""
    rows = listed(database, "Port_Group", "external_ids", "ports")
    names = {str(row): str(name) for row, name in listed(database, "Logical_Switch_Port", "_uuid", "name")}
    found: dict[str, set[str]] = {}
    for ids, members in rows:
        called = f"{ids['namespace']}/{ids['policy']}" if "policy" in ids else f"{ids.get('namespace')} {ids.get('isolated')}"
        found[called] = {names.get(each, each) for each in (members if isinstance(members, set) else {str(members)})}
    return found


def addresses(database: NorthboundDatabase) -> list[set[str]]:
    found = [row[0] for row in listed(database, "Address_Set", "addresses")]
    return sorted((each if isinstance(each, set) else {each} for each in found), key=sorted)


def transactions(database: NorthboundDatabase) -> list[Mapping[str, Any]]:
    """What the server has written, one for each transaction that is there whole."""
    whole, _, _ = database.file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def wait_for(found: Callable[[], object], wanted: object) -> None:
    wait_until(lambda: found() == wanted, what=f"{wanted}")


def test_a_port_is_isolated_from_its_first_moment_on(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """The transaction that makes it puts it into the groups of its policies."""
    put(api, policy("closed", podSelector={"matchLabels": WEB}, policyTypes=["Ingress", "Egress"]))
    keep()
    for number in range(20):
        api.add_pod(labelled(f"p{number}", WEB))
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(20)))
    wait_for(
        lambda: {name: len(each) for name, each in groups(northbound).items()},
        {
            "default/closed": 20,
            "default ingress": 20,
            "default egress": 20,
            "None None": 0,
        },
    )
    born = {}
    for number, each in enumerate(transactions(northbound)):
        born.update({row: number for row in each.get("Logical_Switch_Port", {}) if row not in born})
        joined = [json.dumps(group["ports"]) for group in each.get("Port_Group", {}).values() if group and "ports" in group]
        for row in [row for row, when in born.items() if when == number]:
            assert sum(row in said for said in joined) == 3, each
    assert len(born) == 20


def test_no_port_is_made_before_policies_are_known(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Its pod gets no annotation, and is told why; what is there already stays."""
    first = keep()
    api.add_pod(labelled("early", WEB))
    wait_until(lambda: noted(api, "early"))
    first.ports.stop()
    api.faults.append(Fault("LIST", status=403, about="/networkpolicies"))
    kept = keep()
    api.add_pod(labelled("late", WEB))
    wait_until(
        lambda: any("NetworkPolicies are not known" in each["message"] for each in api.events.of("late").values()), seconds=30
    )
    assert (noted(api, "late"), set(ports(northbound))) == ("", {"default_early"})
    assert any("new pods wait" in each for each in kept.ports.obstacles)
    put(api, policy("closed"))
    api.faults.clear()
    wait_until(lambda: noted(api, "late"))
    assert groups(northbound)["default ingress"] == {"default_early", "default_late"}


def test_a_group_of_others_isolates_no_port(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """A row that has the name of the group and no mark of ours has none of its ACLs: a new port waits, and is told why."""
    group = deny_group("default", "ingress")
    northbound.nbctl("pg-add", group)
    put(api, policy("closed"))
    keep()
    api.add_pod(labelled("web", WEB))
    wait_until(
        lambda: any("NetworkPolicies are not written yet" in each["message"] for each in api.events.of("web").values()),
        seconds=30,
    )
    assert (noted(api, "web"), ports(northbound)) == ("", {})
    northbound.nbctl("pg-del", group)
    wait_until(lambda: noted(api, "web"))
    assert groups(northbound)["default ingress"] == {"default_web"}


def test_a_port_that_loses_its_mark_stays_isolated(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Whose it is, is not known any more: nothing is let through to it, also after a restart."""
    put(api, policy("closed", podSelector={"matchLabels": WEB}, ingress=[{}]))
    kept = keep()
    api.add_pod(labelled("web", WEB))
    wait_for(lambda: groups(northbound).get("default/closed"), {"default_web"})
    northbound.nbctl("clear", "Logical_Switch_Port", "default_web", "external_ids")
    wait_for(lambda: groups(northbound)["default/closed"], set())
    kept.ports.stop()
    keep()
    api.add_pod(labelled("late", WEB))
    wait_for(lambda: groups(northbound)["default/closed"], {"default_late"})
    assert groups(northbound)["default ingress"] == {"default_web", "default_late"}


def test_a_set_of_peers_that_cannot_be_kept_is_told(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Someone has taken its mark: its addresses may become others', so nothing is let through by it until it is ours again."""
    put(api, policy("web", ingress=[{"from": [{"podSelector": {"matchLabels": WEB}}]}]))
    keep()
    api.add_pod(labelled("web", WEB))
    wait_for(lambda: len(addresses(northbound)), 1)
    name = listed(northbound, "Address_Set", "name")[0][0]

    def opened() -> list[str]:
        return [match for (match,) in listed(northbound, "ACL", "match") if f"${name}" in match]

    wait_for(lambda: len(opened()), 1)
    northbound.nbctl("clear", "Address_Set", name, "external_ids")
    wait_until(lambda: any("a set of its peers is not kept" in each["message"] for each in api.events.of("web").values()))
    wait_for(opened, [])
    northbound.nbctl("destroy", "Address_Set", name)
    wait_for(lambda: len(opened()), 1)


def test_the_guide_removes_all_rows_of_policies(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    keep: Make,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the block of docs/ovn.md, where no controller keeps them any more; the ports stay."""
    put(api, space("default", {}, {"k8s.ovn.org/acl-logging": '{"deny": "alert"}'}))
    put(api, policy("web", ingress=[{"from": [{"podSelector": {"matchLabels": WEB}}]}]))
    kept = keep()
    api.add_pod(labelled("web", WEB))
    wait_for(lambda: (len(addresses(northbound)), len(listed(northbound, "Meter", "name"))), (1, 1))
    kept.ports.stop()
    monkeypatch.setenv("OVN_NB_DB", northbound.remote("unix"))
    (block,) = (each for each in pages.blocks(ROOT / "docs/ovn.md") if "destroy" in each.text)
    run_program("bash", "-euo", "pipefail", "-c", block.text)
    assert [listed(northbound, table, "name") for table in ("Port_Group", "Address_Set", "Meter", "ACL")] == [[], [], [], []]
    assert set(ports(northbound)) == {"default_web"}


def test_rows_follow_labels_namespaces_and_policies(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Of pods, of namespaces and of the policy itself; what others change is put back, and what is not desired goes."""
    for name, labels in (("default", {}), ("other", {"team": "a"})):
        api.add(space(name, labels))
    peers = [{"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {"matchLabels": {"app": "client"}}}]
    put(api, policy("from-a", podSelector={"matchLabels": WEB}, ingress=[{"from": peers}]))
    keep()
    api.add_pod(labelled("web", WEB))
    client = labelled("client", {"app": "client"})
    api.add_pod({**client, "metadata": {**client["metadata"], "namespace": "other"}})
    wait_for(lambda: addresses(northbound), [{"192.168.1.4"}])
    assert groups(northbound)["default/from-a"] == {"default_web"}
    api.change("default", "web", {"metadata": {"labels": {"app": "no-web"}}})
    wait_for(lambda: groups(northbound)["default/from-a"], set())
    api.change("default", "web", {"metadata": {"labels": WEB}})
    wait_for(lambda: groups(northbound)["default/from-a"], {"default_web"})
    put(api, space("other", {"team": "b"}))
    wait_for(lambda: addresses(northbound), [set()])
    put(api, space("other", {"team": "a"}))
    wait_for(lambda: addresses(northbound), [{"192.168.1.4"}])
    name, acl = northbound.nbctl("--bare", "--columns=name,acls", "find", "Port_Group", "external_ids:policy=from-a").split()
    northbound.nbctl("clear", "Port_Group", name, "ports")
    northbound.nbctl("set", "ACL", acl, "action=drop")
    wait_for(lambda: groups(northbound)["default/from-a"], {"default_web"})
    wait_for(lambda: {row[0] for row in listed(northbound, "ACL", "action")}, {"allow", "allow-related", "drop"})
    put(api, policy("from-a", podSelector={"matchLabels": WEB}, policyTypes=["Egress"]))
    wait_for(lambda: set(groups(northbound)), {"default/from-a", "default egress", "None None"})
    assert addresses(northbound) == []
    api.objects(POLICIES).remove("default", "from-a")
    wait_for(lambda: groups(northbound), {})
    assert listed(northbound, "ACL", "action") == []


def test_a_policy_that_cannot_be_read_isolates_and_is_told(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Its author by an Event; once it can be read, it lets through what it says."""
    wrong = policy("wrong", ingress=[{"from": [{"podSelector": {}, "future": {}}]}])
    put(api, wrong)
    kept = keep()
    api.add_pod(labelled("web", WEB))
    event = wait_until(lambda: api.events.of("wrong").get("PolicyRefused"), what="the Event")
    assert "has a key that is not known: 'future'" in event["message"]
    assert event["involvedObject"]["kind"] == "NetworkPolicy"
    wait_for(lambda: groups(northbound).get("default ingress"), {"default_web"})
    assert [row for row in listed(northbound, "ACL", "action") if row == ["allow-related"]] == [["allow-related"]]
    assert "userspace_cni_controller_ovn_policies_closed 1" in kept.metrics.render().decode()
    put(api, policy("wrong", ingress=[{}]))
    wait_for(lambda: sorted(row[0] for row in listed(northbound, "ACL", "action")).count("allow-related"), 2)
    wait_until(lambda: "userspace_cni_controller_ovn_policies_closed 0" in kept.metrics.render().decode())


def matches(database: NorthboundDatabase) -> list[str]:
    """Of the ACLs that policies have for what they let through, without the port group."""
    rows = listed(database, "ACL", "name", "match")
    return sorted(str(match).split(" && ", 1)[1] for name, match in rows if str(name).startswith("default/ports/"))


def fragmented(database: NorthboundDatabase) -> tuple[str, ...]:
    """The policies that `ovn check` names."""
    client = northbound_client(database.remote("unix"))
    try:
        return client.read(look_north, frozenset(), "looking", Deadline.after(60)).fragmented
    finally:
        client.close()


def test_fragments_are_refused_where_ovn_does_not_know_their_ports(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    keep: Make,  # noqa: F811
) -> None:
    """A policy with rules on ports is written, and its author is told; from OVN 26.03 on the controller has OVN know them."""
    put(api, policy("ports", ingress=[{"ports": [{"protocol": "UDP", "port": 53}]}, {"from": [{"podSelector": {}}]}]))
    put(api, policy("peers", ingress=[{}]))
    northbound.nbctl("set", "NB_Global", ".", "options:northd_internal_version=25.03.0-20.41.0-78.8")
    kept = keep()
    api.add_pod(labelled("web", WEB))
    event = wait_until(lambda: api.events.of("ports").get("PolicyWithoutFragments"), what="the Event")
    assert "those of requests are dropped" in event["message"]
    assert [each for each in matches(northbound) if "udp" in each or "frag" in each] == ["ip && udp.dst == {53}"]
    assert "userspace_cni_controller_ovn_policies_without_fragments 1" in kept.metrics.render().decode()
    assert fragmented(northbound) == ("NetworkPolicy default/ports",)
    assert northbound.nbctl("get", "NB_Global", ".", "options:northd_internal_version").strip('"').startswith("25.03")
    northbound.nbctl("set", "NB_Global", ".", "options:northd_internal_version=26.03.1-21.0.0-80.0")
    wait_for(lambda: northbound.nbctl("--if-exists", "get", "NB_Global", ".", "options:acl_ct_translation").strip('"'), "true")
    wait_until(lambda: "userspace_cni_controller_ovn_policies_without_fragments 0" in kept.metrics.render().decode())
    assert not api.events.of("peers")
    assert fragmented(northbound) == ()


def test_fragments_pass_to_every_port_where_that_is_asked_for(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    keep: Make,  # noqa: F811
) -> None:
    """For the peers of a rule on ports, while OVN does not know the ports of fragments; an administrator's option stays."""
    rule = {"from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": "web"}, {"port": 80}]}
    put(api, policy("ports", ingress=[rule]))
    northbound.nbctl("set", "NB_Global", ".", "options:northd_internal_version=26.03.1-21.0.0-80.0")
    northbound.nbctl("set", "NB_Global", ".", "options:acl_ct_translation=false")
    keep(policy_fragments="allow")
    api.add_pod(labelled("web", WEB))
    event = wait_until(lambda: api.events.of("ports").get("PolicyWithoutFragments"), what="the Event")
    assert "pass to every port" in event["message"]
    peers = "ip4.src == {10.1.0.0/16}"
    wait_for(lambda: matches(northbound), [f"{peers} && ip.is_frag", f"{peers} && tcp.dst == {{80}}"])
    northbound.nbctl("set", "NB_Global", ".", "options:acl_ct_translation=true")
    wait_for(lambda: matches(northbound), [f"{peers} && tcp.dst == {{80}}"])


def test_an_emptied_database_gets_its_policies_before_its_ports(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    keep: Make,  # noqa: F811
) -> None:
    """Each port comes back in the groups that it was in."""
    put(api, policy("closed", podSelector={"matchLabels": WEB}))
    keep()
    for number in range(10):
        api.add_pod(labelled(f"p{number}", WEB))
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(10)))
    whole = {"default/closed": 10, "default ingress": 10, "None None": 0}
    wait_for(lambda: {name: len(each) for name, each in groups(northbound).items()}, whole)
    before = groups(northbound)
    northbound.renew()
    switches(northbound)
    wait_for(lambda: groups(northbound), before)
    written = transactions(northbound)
    rows = {row for each in written for row in each.get("Logical_Switch_Port", {})}
    for row in rows:
        [born] = [each for each in written if row in each.get("Logical_Switch_Port", {})][:1]
        assert sum(row in json.dumps(group) for group in born.get("Port_Group", {}).values()) == 2


def test_logs_are_as_a_namespace_asks(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """By the annotation that users of ovn-kubernetes have, with a meter."""
    put(api, space("default", {}, {"k8s.ovn.org/acl-logging": '{"deny": "alert", "allow": "info"}'}))
    put(api, policy("open", ingress=[{}]))
    keep()
    wanted = [
        ["alert", "default/ingress/isolated", "userspace_policies"],
        ["info", "default/open/ingress/0", "userspace_policies"],
    ]
    wait_for(lambda: sorted(row[1:] for row in listed(northbound, "ACL", "log", "severity", "name", "meter") if row[0]), wanted)
    assert listed(northbound, "Meter", "name", "unit") == [["userspace_policies", "pktps"]]
    put(api, space("default", {}))
    wait_for(lambda: listed(northbound, "Meter", "name"), [])
    assert not any(row[0] for row in listed(northbound, "ACL", "log"))


def test_a_port_that_comes_amid_a_round_keeps_its_groups(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """The loop that writes the groups then compares them with what it knows, and that is as new as the rows."""
    put(api, policy("closed", podSelector={"matchLabels": WEB}))
    policies = keep().ports.policies
    assert policies is not None
    wait_until(lambda: {"default/closed", "default ingress"} <= groups(northbound).keys(), what="the groups")
    rounds = policies.rounds
    feed, amid = rounds._feed, threading.Event()

    def feed_before_a_port() -> None:
        feed()
        if (
            rounds.policies
            and not amid.is_set()
            and any(each.ingress for each in (rounds._sources.policies.objects() or {}).values())
        ):
            amid.set()
            api.add_pod(labelled("p1", WEB))
            wait_until(lambda: noted(api, "p1"))

    rules = len(listed(northbound, "ACL", "match"))
    rounds._feed = feed_before_a_port  # type: ignore[method-assign]
    put(api, policy("closed", podSelector={"matchLabels": WEB}, ingress=[{"ports": [{"port": 80}]}]))
    wait_until(amid.is_set, what="a round with the policy's rule")
    wait_until(lambda: len(listed(northbound, "ACL", "match")) > rules, what="the rule")
    port = {"default_p1"}
    wait_until(lambda: [groups(northbound)[each] for each in ("default/closed", "default ingress")] == [port, port])
    [row] = [row for row, name in listed(northbound, "Logical_Switch_Port", "_uuid", "name") if name == "default_p1"]
    changes = [
        each["ports"] for whole in transactions(northbound) for each in whole.get("Port_Group", {}).values() if "ports" in each
    ]
    assert sum(row in json.dumps(each) for each in changes) == 2, changes  # a file of OVSDB has what comes into a set or goes
