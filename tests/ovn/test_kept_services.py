"""The controller keeps load balancers of Services: with a real northbound database, and an API server of the tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.objectstore import ENDPOINT_SLICES, FORMER_ENDPOINT_SLICES, Kind
from tests.lab.kube.services import endpoint, endpoint_slice, put, service
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.ovn.kept_services import GROUPS, WATCHED, KeptServices
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.kube.list_watch import WatchTimes

SLICES = "endpointslices.discovery.k8s.io"


Make = Callable[..., KeptServices]


@pytest.fixture(params=[ENDPOINT_SLICES, FORMER_ENDPOINT_SLICES], ids=["v1", "v1beta1"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The version in which the server has EndpointSlices."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add(node("n1", "192.0.2.11"))
        yield started


@pytest.fixture
def northbound() -> Iterator[NorthboundDatabase]:
    """A database with the groups."""
    with (
        TemporaryDirectory(prefix="nb-") as directory,
        NorthboundDatabase(Path(directory), Authority(Path(directory) / "ca")) as served,
    ):
        for name in GROUPS:
            served.nbctl("create", "Load_Balancer_Group", f"name={name}")
        yield served


@pytest.fixture
def keep(api: ApiServer, northbound: NorthboundDatabase, tmp_path: Path) -> Iterator[Make]:
    """Starts such parts of controllers, and stops them."""
    made: list[KeptServices] = []
    path = api.kubeconfig(tmp_path)

    def make(watched: WatchTimes = WATCHED) -> KeptServices:
        made.append(KeptServices(path, northbound.remote("unix"), watched))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def vips(northbound: NorthboundDatabase, name: str = "default/web_tcp") -> dict[str, str] | None:
    """The VIPs of a load balancer; None where there is none."""
    found = json.loads(northbound.nbctl("--format=json", "--columns=vips", "find", "Load_Balancer", f"name={name}"))["data"]
    return dict(found[0][0][1]) if found else None


def members(northbound: NorthboundDatabase, group: str = GROUPS[0]) -> int:
    return len(northbound.nbctl("get", "Load_Balancer_Group", group, "load_balancer").strip("[]").split())


WEB = (service("web", "10.96.0.10"), endpoint_slice("web-1", "web", endpoint("10.244.1.3")))
SERVED = {"10.96.0.10:80": "10.244.1.3:8080"}


def test_services_come_change_and_go(api: ApiServer, northbound: NorthboundDatabase, keep: Make, kind: Kind) -> None:
    """With each change of the Service and of its endpoints, whichever version of EndpointSlices the server has."""
    api.serve(kind)
    one = {**WEB[1], "apiVersion": f"{kind.group}/{kind.version}"}
    put(api, WEB[0], one)
    kept = keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    assert members(northbound) == 1
    put(api, {**one, "endpoints": [endpoint("10.244.1.3"), endpoint("10.244.2.4")]})
    wait_until(lambda: vips(northbound) == {"10.96.0.10:80": "10.244.1.3:8080,10.244.2.4:8080"}, what="the other endpoint")
    put(api, {**WEB[0], "spec": WEB[0]["spec"] | {"ports": [{"port": 81, "protocol": "TCP"}]}})
    wait_until(lambda: list(vips(northbound) or ()) == ["10.96.0.10:81"], what="the other port")
    api.objects(SLICES).remove("default", "web-1")
    wait_until(lambda: vips(northbound) == {"10.96.0.10:81": ""}, what="no endpoint")
    put(api, {**WEB[0], "spec": WEB[0]["spec"] | {"externalIPs": ["198.51.100.7"]}})
    wait_until(lambda: vips(northbound, "default/web_tcp_external") == {"198.51.100.7:80": ""}, what="the external address")
    assert members(northbound, GROUPS[1]) == 1
    api.objects("services").remove("default", "web")
    wait_until(lambda: vips(northbound) is None, what="the end of the load balancer")
    assert (members(northbound), members(northbound, GROUPS[1])) == (0, 0)
    assert kept.keeper.obstacles == []


def test_nothing_is_written_where_nothing_differs(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """By a second controller, or after others have changed other columns."""
    put(api, *WEB)
    first = keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    first.at_rest()
    assert first.wrote == Counter({"insert": 1})
    first.stop()
    second = keep()
    wait_until(lambda: second.keeper.rounds.full_s is not None, what="its look at everything")
    northbound.nbctl("set", "Load_Balancer", "default/web_tcp", "external_ids:of=others", "options:event=true")
    second.at_rest()
    assert second.wrote == Counter()


@pytest.mark.parametrize(
    "damage",
    [
        ("set", "Load_Balancer", "default/web_tcp", 'vips:"10.96.0.10:80"="10.244.9.9:1"'),
        ("set", "Load_Balancer", "default/web_tcp", 'vips:"10.96.0.77:80"="10.244.9.9:1"'),
        ("remove", "Load_Balancer", "default/web_tcp", "options", "reject"),
        ("clear", "Load_Balancer_Group", GROUPS[0], "load_balancer"),
        ("lb-del", "default/web_tcp"),
    ],
    ids=["endpoints", "vip", "option", "group", "row"],
)
def test_what_others_change_is_put_back(
    api: ApiServer, northbound: NorthboundDatabase, keep: Make, damage: tuple[str, ...]
) -> None:
    """As soon as it is seen."""
    put(api, *WEB)
    keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    northbound.nbctl(*damage)

    def is_whole() -> bool:
        option = northbound.nbctl("--bare", "--columns=options", "find", "Load_Balancer", "name=default/web_tcp")
        return vips(northbound) == SERVED and members(northbound) == 1 and "reject=true" in option

    wait_until(is_whole, what="the row as it was")


def test_rows_of_others_stay(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Also those that have the name of one of ours."""
    northbound.nbctl("create", "Load_Balancer", "name=default/web_tcp", 'vips:"192.0.2.1:1"="192.0.2.2:1"')
    northbound.nbctl("create", "Load_Balancer", "name=other", "external_ids:owner=else")
    put(api, *WEB)
    kept = keep()
    wait_until(lambda: members(northbound) == 1, what="the load balancer")
    api.objects("services").remove("default", "web")
    wait_until(lambda: members(northbound) == 0, what="its end")
    kept.at_rest()
    assert vips(northbound) == {"192.0.2.1:1": "192.0.2.2:1"}
    assert vips(northbound, "other") == {}


def test_a_group_that_comes_later(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """The load balancers join it then."""
    for name in GROUPS:
        northbound.nbctl("destroy", "Load_Balancer_Group", name)
    put(api, *WEB)
    keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    northbound.nbctl("create", "Load_Balancer_Group", f"name={GROUPS[0]}")
    wait_until(lambda: members(northbound) == 1, what="its member")


def test_policies_local(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Switches and routers have load balancers of their own, and lose them with the policy."""
    for name in ("n1", "n2"):
        northbound.nbctl("ls-add", name, "--", "set", "Logical_Switch", name, f"external_ids:k8s-node={name}")
    northbound.nbctl("lr-add", "GR_n1", "--", "set", "Logical_Router", "GR_n1", "external_ids:physical_ips=192.0.2.111")
    local = {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}
    ports = [{"port": 80, "protocol": "TCP", "nodePort": 30080}]
    put(api, service("web", "10.96.0.10", ports=ports, type="NodePort", **local), WEB[1])
    keep()

    def held(table: str, name: str) -> list[str]:
        ids = northbound.nbctl("--bare", "--columns=load_balancer", "list", table, name).split()
        return sorted(northbound.nbctl("--bare", "get", "Load_Balancer", each, "name").strip('"') for each in ids)

    wait_until(lambda: held("Logical_Switch", "n1") == ["default/web_tcp_at_n1", "default/web_tcp_external"], what="that of n1")
    assert held("Logical_Switch", "n2") == ["default/web_tcp", "default/web_tcp_external"]
    assert held("Logical_Router", "GR_n1") == ["default/web_tcp_external_at_n1"]
    assert vips(northbound, "default/web_tcp_external_at_n1") == {"192.0.2.111:30080": "10.244.1.3:8080"}
    put(api, service("web", "10.96.0.10", ports=ports, type="NodePort"))
    wait_until(lambda: members(northbound) == 1, what="the group's")
    assert held("Logical_Switch", "n1") == held("Logical_Switch", "n2") == held("Logical_Router", "GR_n1") == []
    assert vips(northbound, "default/web_tcp_external_at_n1") is None


def test_two_lists_before_anything_is_removed(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """A list that lacks a Service, or its endpoints, may be a false one; it keeps nothing else waiting."""
    put(api, *WEB)
    first = keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    first.stop()
    for title, name in (("services", "web"), (SLICES, "web-1")):
        api.objects(title).remove("default", name)
    put(api, service("other", "10.96.0.11"))
    watched = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=3600)
    second = keep(watched)
    wait_until(lambda: vips(northbound, "default/other_tcp") == {"10.96.0.11:80": ""}, what="the other one")
    put(api, WEB[0])
    second.at_rest()
    assert vips(northbound) == SERVED
    second.stop()
    keep()
    wait_until(lambda: vips(northbound) == {"10.96.0.10:80": ""}, what="what two lists have told")


def test_one_acts(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """The one that leads and has the lock; another one goes on where it ended."""
    put(api, *WEB)
    first, second = keep(), keep()
    wait_until(lambda: first.hold.may_write or second.hold.may_write, what="one that has the lock")
    acts, waits = (first, second) if first.hold.may_write else (second, first)
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    acts.lead(False)
    wait_until(lambda: waits.hold.may_write, what="the other one")
    put(api, {**WEB[1], "endpoints": []})
    wait_until(lambda: vips(northbound) == {"10.96.0.10:80": ""}, what="the change")
    assert waits.wrote["update"] == 1


def test_a_lost_database_is_filled_again(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """When it is back, all load balancers are."""
    put(api, *WEB)
    keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    northbound.renew()
    for name in GROUPS:
        northbound.nbctl("create", "Load_Balancer_Group", f"name={name}")
    wait_until(lambda: vips(northbound) == SERVED and members(northbound) == 1, 60.0, what="the load balancer again")


def test_its_author_is_told_what_is_not_served(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """By an Event on the Service, once; the node's address is none that a Service can have."""
    kept = keep()
    put(api, service("greedy", "10.96.0.66", externalIPs=["192.0.2.11"]))
    event = wait_until(lambda: api.events.of("greedy").get("ServiceDegraded"), what="the Event")
    assert event["message"] == "Service default/greedy: external address 192.0.2.11 is that of node n1"
    assert event["involvedObject"]["kind"] == "Service"
    assert vips(northbound, "default/greedy_tcp") == {"10.96.0.66:80": ""}
    assert b"controller_ovn_services_lacking 1\n" in kept.metrics.render()


def test_a_server_without_rights(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """What is known stays, and the obstacle says what the account needs."""
    put(api, *WEB)
    kept = keep()
    wait_until(lambda: vips(northbound) == SERVED, what="the load balancer")
    api.faults.append(Fault("LIST", status=403, about="/endpointslices"))
    api.faults.append(Fault("WATCH", status=403, about="/endpointslices"))
    api.close_watches()
    wait_until(lambda: any("endpointslices" in each and "403" in each for each in kept.keeper.obstacles), what="the obstacle")
    assert vips(northbound) == SERVED
