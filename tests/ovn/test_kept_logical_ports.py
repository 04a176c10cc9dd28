"""The controller keeps logical ports of pods: with a real northbound database, and an API server that speaks its protocol."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.definitions import multi_policy_definition, multus_definition
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.switch.switch import wait_until
from tests.unit.controller.test_deploy_controller import asked, granted, read
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.note_writers import RETRIES
from userspace_cni.controller.port_rounds import PortTimes
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.events import Events
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

QUICK = PortTimes(held_s=0.0, back_off=BackOff(0.05, 0.2))
WATCHED = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
TWO = ("n1", "n2")


class Kept:
    """A controller's part for logical ports, with its own connections. `leads` may be set to False."""

    def __init__(self, session: Any, settings: Settings, times: PortTimes = QUICK, refused: BackOff = RETRIES) -> None:
        self.leads = True
        self.wrote: Counter[str] = Counter()
        self.metrics = ControllerMetrics(lambda: self.leads, {})
        task = read_task(settings)
        self.ports = PodPortKeeper(session, task, lambda: self.leads, self.metrics, times, WATCHED)
        self.ports._notes.queue._retries = refused
        self.events = Events(session, "", self.metrics.count_dropped_events)
        self.ports.tell_by(self.events)
        self._told = self.ports.rounds.on_write
        self.ports.rounds.on_write = self._count
        self.ports.start()
        self.events.start()

    def _count(self, kind: str) -> None:
        self.wrote.update([kind])
        self._told(kind)

    def lead(self, leads: bool) -> None:
        self.leads = leads
        self.ports.ask()


Make = Callable[..., Kept]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        for name in TWO:
            started.add(node(name))
        yield started


@pytest.fixture
def northbound() -> Iterator[NorthboundDatabase]:
    """A database with a switch for each node."""
    with TemporaryDirectory(prefix="nb-") as directory:
        authority = Authority(Path(directory) / "ca")
        with NorthboundDatabase(Path(directory), authority) as served:
            switches(served)
            yield served


@pytest.fixture
def keep(api: ApiServer, northbound: NorthboundDatabase, tmp_path: Path) -> Iterator[Make]:
    """Starts such parts of controllers, and stops them."""
    made: list[Kept] = []
    path = api.kubeconfig(tmp_path)

    def make(times: PortTimes = QUICK, refused: BackOff = RETRIES, **settings: Any) -> Kept:
        session = Clients(KubeconfigBounds.of(Settings()), HERE, path).of("").session
        made.append(Kept(session, Settings(ovn_nb=northbound.remote("unix"), **settings), times, refused))
        return made[-1]

    yield make
    for each in made:
        each.ports.stop()
        each.events.stop()


def switches(northbound: NorthboundDatabase) -> None:
    for number, name in enumerate(TWO, 1):
        northbound.nbctl("ls-add", name, "--", "set", "logical_switch", name, f"other_config:subnet=192.168.{number}.0/24")


def a_pod(name: str, node_name: str = "n1", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": node_name, **spec}, "status": {"phase": "Running"}}


def noted(api: ApiServer, name: str) -> str:
    """The address that the pod's annotation says; "" for none."""
    text = api.annotations("default", name).get("ovn")
    return str(json.loads(text)["ip_address"]) if text else ""


def ports(northbound: NorthboundDatabase) -> dict[str, str]:
    """The logical ports with their addresses."""
    lines = northbound.nbctl(
        "--format=csv", "--no-headings", "--columns=name,addresses", "list", "Logical_Switch_Port"
    ).splitlines()
    return {name: rest for name, _, rest in (line.partition(",") for line in lines)}


def at_rest(kept: Kept) -> None:
    """Wait for a round in which nothing is left to do."""
    for _ in range(3):
        assert kept.ports.rounds.await_round(60)
    assert len(kept.ports._notes.queue) == 0


def test_pods_get_ports_and_lose_them(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """One before the controller starts, one after; of a pod that is deleted or has ended the row goes, and others stay."""
    api.add_pod(a_pod("early"))
    keep()
    wait_until(lambda: noted(api, "early") == "192.168.1.3/24")
    api.add_pod(a_pod("late", "n2"))
    wait_until(lambda: noted(api, "late") == "192.168.2.3/24")
    assert set(ports(northbound)) == {"default_early", "default_late"}
    assert northbound.nbctl("lsp-list", "n2").endswith("(default_late)")
    api.remove_pod("default", "early")
    wait_until(lambda: set(ports(northbound)) == {"default_late"})
    api.change("default", "late", {"status": {"phase": "Succeeded"}})
    wait_until(lambda: not ports(northbound))


def test_the_row_comes_before_the_annotation(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """While the database is away a pod gets no annotation."""
    kept = keep()
    api.add_pod(a_pod("first"))
    wait_until(lambda: noted(api, "first"))
    northbound.stop()
    api.add_pod(a_pod("second"))
    wait_until(lambda: kept.ports.rounds.problem)
    assert noted(api, "second") == ""
    northbound.start()
    wait_until(lambda: noted(api, "second"))
    assert "default_second" in ports(northbound)


def test_a_start_over_a_full_database_writes_nothing(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Neither a row nor an annotation."""
    for number in range(40):
        api.add_pod(a_pod(f"p{number}", TWO[number % 2]))
    first = keep()
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(40)))
    at_rest(first)
    first.ports.stop()
    patches, before = api.count("PATCH"), ports(northbound)
    second = keep()
    wait_until(lambda: second.ports.rounds.full_s is not None)
    at_rest(second)
    assert second.wrote == Counter()
    assert (api.count("PATCH"), ports(northbound)) == (patches, before)


def test_an_empty_database_gets_the_same_ports(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """From the annotations: no pod gets another address."""
    for number in range(20):
        api.add_pod(a_pod(f"p{number}", TWO[number % 2]))
    kept = keep()
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(20)))
    api.remove_pod("default", "p0")
    wait_until(lambda: len(ports(northbound)) == 19)
    before, patches = ports(northbound), api.count("PATCH")
    northbound.renew()
    wait_until(lambda: kept.ports.rounds.lacking == 19)
    switches(northbound)
    wait_until(lambda: ports(northbound) == before)
    assert api.count("PATCH") == patches


def test_of_two_controllers_one_writes(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Though both believe that they lead: the lock of the database decides, and passes on."""
    first = keep()
    api.add_pod(a_pod("a"))
    wait_until(lambda: noted(api, "a"))
    second = keep()
    wait_until(lambda: second.ports.obstacles == ["another session has the lock of OVN's northbound database"])
    api.add_pod(a_pod("b"))
    wait_until(lambda: noted(api, "b"))
    assert second.wrote == Counter()
    first.ports.stop()
    api.add_pod(a_pod("c"))
    wait_until(lambda: noted(api, "c"))
    assert second.wrote == Counter({"insert": 1})
    assert len({noted(api, name) for name in "abc"}) == 3


def test_who_leads_gets_the_lock(api: ApiServer, keep: Make) -> None:
    """Whichever process was connected first: one without the Lease gives the lock up, and gets it again with the Lease."""
    first = keep()
    wait_until(lambda: first.ports.hold.has_lock)
    first.lead(False)
    second = keep()
    api.add_pod(a_pod("a"))
    wait_until(lambda: noted(api, "a"))
    assert (second.wrote, first.ports.obstacles) == (Counter({"insert": 1}), [])
    second.lead(False)
    first.lead(True)
    api.add_pod(a_pod("b"))
    wait_until(lambda: noted(api, "b"))
    assert first.wrote == Counter({"insert": 1})


def test_the_next_leader_holds_addresses_that_it_saw_end(api: ApiServer, keep: Make) -> None:
    """It watched while another one acted; so no pod gets the address of one that has just ended."""
    times = replace(QUICK, held_s=3600.0)
    first = keep(times)
    api.add_pod(a_pod("a"))
    wait_until(lambda: noted(api, "a") == "192.168.1.3/24")
    second = keep(times)
    wait_until(lambda: second.ports.rounds._known.get("default/a") and second.ports.rounds._known["default/a"].notes)
    api.remove_pod("default", "a")
    wait_until(lambda: "default/a" not in second.ports.rounds._known)
    first.ports.stop()
    api.add_pod(a_pod("b"))
    wait_until(lambda: noted(api, "b") == "192.168.1.4/24")


def test_who_does_not_lead_writes_nothing(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """And does all of it as soon as it leads."""
    kept = keep()
    kept.lead(False)
    api.add_pod(a_pod("a"))
    wait_until(lambda: "default/a" in kept.ports.rounds._known)
    at_rest(kept)
    assert (ports(northbound), noted(api, "a")) == ({}, "")
    kept.lead(True)
    wait_until(lambda: noted(api, "a"))


def test_who_does_not_act_keeps_nothing_of_rows(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Not their names either, however many come and go; it counts them."""
    keep()
    second = keep()
    for number in range(20):
        api.add_pod(a_pod(f"p{number}"))
    wait_until(lambda: second.ports.rounds.rows == 20)
    for number in range(20):
        api.remove_pod("default", f"p{number}")
    wait_until(lambda: ports(northbound) == {} and second.ports.rounds.rows == 0)
    at_rest(second)
    view = second.ports.rounds._view
    assert (view.ports, view._names) == ({}, set())


def test_a_pod_made_anew_meanwhile_gets_no_note_of_the_other(api: ApiServer, keep: Make) -> None:
    """The annotation is for one UID: the new pod gets its own."""
    kept = keep()
    api.faults.append(Fault("PATCH", status=503))
    api.add_pod(a_pod("a"))
    wait_until(lambda: kept.ports._notes.queue.resting)
    api.remove_pod("default", "a")
    api.add_pod(a_pod("a"))
    api.faults.clear()
    wait_until(lambda: noted(api, "a"))
    uid = api.pod("default", "a")["metadata"]["uid"]
    taken = [request.body["metadata"]["uid"] for request in api.requests if request.method == "PATCH"]
    assert taken[-1] == uid


def test_a_row_that_is_changed_by_hand_is_put_back(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """As soon as it is changed or deleted; what is not ours stays."""
    keep()
    api.add_pod(a_pod("a"))
    wait_until(lambda: noted(api, "a"))
    before = ports(northbound)
    northbound.nbctl("lsp-set-addresses", "default_a", "unknown")
    wait_until(lambda: ports(northbound) == before)
    northbound.nbctl("lsp-del", "default_a", "--", "lsp-add", "n1", "by-hand")
    wait_until(lambda: {**before, "by-hand": "[]"} == ports(northbound))


def told(api: ApiServer, name: str, reason: str) -> str:
    """The message of the pod's Event with this reason; "" for none."""
    return str(api.events.of(name).get(reason, {}).get("message", ""))


def test_what_a_pods_author_has_wrong_is_told_to_the_pod(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """The controller is ready as before; an address that a router gets is told, too."""
    kept = keep()
    api.add_pod(a_pod("a"))
    wait_until(lambda: noted(api, "a"))
    api.add_pod(a_pod("b", "elsewhere"))
    wait_until(lambda: told(api, "b", "LogicalPortMissing") == "eth0: there is no logical switch 'elsewhere'")
    northbound.nbctl("lr-add", "r", "--", "lrp-add", "r", "rtos", "0a:00:00:00:00:01", "192.168.1.3/24")
    why = "eth0: logical port default_a has 192.168.1.3, and router port rtos has it, too"
    wait_until(lambda: told(api, "a", "AddressConflict") == why)
    assert (kept.ports.obstacles, kept.ports.problems()) == ([], [])


def test_readiness_is_the_first_comparison(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Until pods are listed and the database has answered, the reasons are told."""
    northbound.stop()
    api.faults.append(Fault("LIST", status=503, about="/pods"))
    kept = keep()
    wait_until(lambda: any("pods" in each for each in kept.ports.obstacles))
    api.faults.clear()
    wait_until(lambda: "no session" in " ".join(kept.ports.obstacles) or "not reachable" in " ".join(kept.ports.obstacles))
    northbound.start()
    wait_until(lambda: kept.ports.obstacles == [])
    assert kept.ports.rounds.full_s is not None


def test_a_note_that_is_refused_is_tried_again(api: ApiServer, keep: Make) -> None:
    """Until it is taken, without a change of the pod; others' do not wait for it, and the pod is told."""
    kept = keep(refused=BackOff(0.05, 0.2))
    api.faults.append(Fault("PATCH", status=422, about="/pods/bad"))
    api.add_pod(a_pod("bad"))
    wait_until(lambda: "(422)" in told(api, "bad", "AnnotationsRefused"))
    api.add_pod(a_pod("good"))
    wait_until(lambda: noted(api, "good"))
    assert (kept.ports._notes.queue.resting, kept.ports.obstacles) == (1, [])
    api.faults.clear()
    wait_until(lambda: noted(api, "bad") and len(kept.ports._notes.queue) == 0)


def test_an_account_that_may_write_into_no_pod_is_not_ready(api: ApiServer, keep: Make) -> None:
    """That pods of one namespace are refused proves nothing; those of a second do, until a note is taken."""
    kept = keep(refused=BackOff(0.05, 0.2))
    api.faults.append(Fault("PATCH", status=403, about="/pods/"))
    api.add_pod(a_pod("a"))
    wait_until(lambda: told(api, "a", "AnnotationsRefused"))
    assert kept.ports.obstacles == []
    other = a_pod("b")
    other["metadata"]["namespace"] = "other"
    api.add_pod(other)
    wait_until(lambda: any("not allowed (403)" in each for each in kept.ports.obstacles))
    api.faults.clear()
    wait_until(lambda: kept.ports.obstacles == [] and noted(api, "a"))


def test_nothing_is_written_into_a_pod_that_has_ended(api: ApiServer, keep: Make) -> None:
    """A note that was refused is forgotten with its pod."""
    kept = keep()
    api.faults.append(Fault("PATCH", status=422, about="/pods/a"))
    api.add_pod(a_pod("a"))
    wait_until(lambda: kept.ports._notes.queue.resting)
    api.change("default", "a", {"status": {"phase": "Failed"}})
    wait_until(lambda: len(kept.ports._notes.queue) == 0)


def test_many_pods_at_once_share_transactions(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """All get different addresses, while they come from several callers."""
    keep()

    def add(first: int) -> None:
        for number in range(first, first + 50):
            api.add_pod(a_pod(f"p{number}", TWO[number % 2]))

    threads = [threading.Thread(target=add, args=(first,)) for first in range(0, 200, 50)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(200)))
    assert len(set(ports(northbound).values())) == 200


def test_the_numbers_of_a_controller(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:
    """Lock, rows, what cannot be, what waits, and what was written."""
    kept = keep()
    api.add_pod(a_pod("a"))
    api.add_pod(a_pod("b", "elsewhere"))
    wait_until(lambda: noted(api, "a"))
    northbound.nbctl("set", "NB_Global", ".", "nb_cfg=7")
    wait_until(lambda: "controller_ovn_lag 7" in kept.metrics.render().decode())
    lines = (
        "controller_ovn_lock 1",
        "controller_ovn_pods 2",
        "controller_ovn_ports 1",
        "controller_ovn_ports_lacking 1",
        "controller_ovn_limits_refused 0",
        "controller_ovn_ports_doubtful 0",
        "controller_ovn_notes_waiting 0",
        "controller_ovn_notes_refused 0",
        'controller_writes_total{outcome="written",resource="logical_switch_ports"} 1',
        'controller_writes_total{outcome="written",resource="pods"} 1',
    )

    def missing() -> list[str]:
        text = kept.metrics.render().decode()
        return [line for line in lines if f"userspace_cni_{line}" not in text]

    wait_until(lambda: not missing(), what=f"the numbers {missing()}")
    page = Path("docs/metrics.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"_(ovn_\w+)`", page) if name != "ovn_"}
    assert set(re.findall(r"^userspace_cni_controller_(ovn_\w+) ", kept.metrics.render().decode(), re.MULTILINE)) == named


def watched(api: ApiServer) -> set[str]:
    """The resources that are watched."""
    return {asked(request)[1] for request in api.requests if request.verb == "WATCH"}


def test_the_rights_of_the_overlay_are_what_it_uses(api: ApiServer, keep: Make) -> None:
    """Each request is allowed by overlays/logical-ports and the controller's own rights, and each right of the former is used."""
    api.define(multus_definition())
    api.define(multi_policy_definition())
    kept = keep()
    api.add_pod(a_pod("web"))
    wait_until(lambda: noted(api, "web"), what="the annotation")
    wait_until(lambda: {"namespaces", "networkpolicies", "multi-networkpolicies"} <= watched(api), what="the watches")
    at_rest(kept)
    overlays = CLUSTER / "overlays"
    own = granted(read(overlays / "controller" / "cluster-role.yaml")["rules"])
    added = granted(read(overlays / "logical-ports" / "cluster-role.yaml")["rules"])
    used = {(*asked(request)[:3], "") for request in api.requests}
    assert used - own == added
