"""Lists that are answered with 200 and are not true: one such list removes nothing, two complete lists do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import ours
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.false_lists import LACKING, NO_LISTS, Falsify, have_listed_again, list_falsely, without
from tests.lab.switch.switch import FOR_EVER_S, wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import ObjectRefused
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import VLANS
from userspace_cni.kube.watch import PodWatch

TITLE = "vlans.userspace-cni.io"
ALL = {"v0", "v1", "v2"}
QUICK = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, page=100, confirm_s=0)
UNPROVEN = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, page=100, confirm_s=FOR_EVER_S)
"""A distance so long that no list within a test's time confirms another."""
PROVEN_SOON = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, page=100, confirm_s=0.1)

Begin = Callable[..., ObjectWatch]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with defined_server() as started:
        for number in range(3):
            started.add(ours("Vlan", f"v{number}", id=number, provider="net1"))
        yield started


@pytest.fixture
def begin(api: ApiServer, tmp_path: Path) -> Iterator[Begin]:
    """Begins a watch of the Vlans at a times, and ends it after the test."""
    begun: list[ObjectWatch] = []

    def make(times: WatchTimes, **options: Any) -> ObjectWatch:
        begun.append(ObjectWatch(KubeClient(api.kubeconfig(tmp_path)).session, VLANS, times=times, **options))
        begun[-1].start()
        return begun[-1]

    yield make
    for watch in begun:
        watch.stop()


def names(watch: ObjectWatch) -> set[str]:
    return set(watch.objects() or ())


def is_watching(api: ApiServer, watch: ObjectWatch) -> bool:
    """Whether a watch is open and has no problem."""
    return watch.complete and not watch.problem and api.watches == 1


@pytest.mark.parametrize("falsify", [*LACKING.values(), without("v1")], ids=[*LACKING, "one is missing"])
def test_what_one_list_lacks_stays(api: ApiServer, begin: Begin, falsify: Falsify) -> None:
    """Objects stay, whether a list lacks all of them or one of many. The watch goes on, and its events are followed at once."""
    watch = begin(UNPROVEN)
    wait_until(lambda: is_watching(api, watch))
    fault = list_falsely(api, api.objects(TITLE), "/vlans", falsify)
    have_listed_again(api, "/vlans")
    wait_until(lambda: not fault.times and is_watching(api, watch))
    assert names(watch) == ALL
    api.objects(TITLE).remove("", "v1")
    wait_until(lambda: names(watch) == {"v0", "v2"})
    api.add(ours("Vlan", "v9", id=9, provider="net1"))
    wait_until(lambda: names(watch) == {"v0", "v2", "v9"})


@pytest.mark.parametrize("falsify", NO_LISTS.values(), ids=list(NO_LISTS))
def test_what_is_no_list_of_them_tells_nothing(api: ApiServer, begin: Begin, falsify: Falsify) -> None:
    """An invalid list is reported as a problem, at the start and later. All objects stay until a valid list comes."""
    fault = list_falsely(api, api.objects(TITLE), "/vlans", falsify, times=None)
    watch = begin(QUICK)
    wait_until(lambda: "no list of them" in watch.problem)
    assert watch.objects() is None
    api.faults.remove(fault)
    wait_until(lambda: watch.confirmed and is_watching(api, watch))
    list_falsely(api, api.objects(TITLE), "/vlans", falsify, times=None)
    have_listed_again(api, "/vlans")
    before = api.count("LIST")
    wait_until(lambda: api.count("LIST") > before + 3)
    assert "no list of them" in watch.problem
    assert names(watch) == ALL


def test_what_is_gone_goes_by_two_lists(api: ApiServer, begin: Begin) -> None:
    """An object that was deleted long before the watch has no event. So the watch requests a second list by itself."""
    told: list[None] = []
    api.watch_s = 0.3
    watch = begin(PROVEN_SOON, on_change=lambda: told.append(None))
    wait_until(lambda: watch.confirmed and is_watching(api, watch))
    api.faults.append(Fault(status=503, about="/vlans"))
    api.close_watches()
    api.objects(TITLE).remove("", "v1")
    api.objects(TITLE).compact()
    before, listed = len(told), api.count("LIST")
    api.faults.clear()
    wait_until(lambda: names(watch) == {"v0", "v2"})
    assert (len(told), watch.confirmed) == (before + 1, True)
    assert api.count("LIST") >= listed + 2
    wait_until(lambda: is_watching(api, watch))


def test_the_same_answer_again_proves_nothing(api: ApiServer, begin: Begin) -> None:
    """A cache repeats one empty list: its version is the same, however long ago the first one came. So nothing is gone."""
    watch = begin(QUICK)
    wait_until(lambda: watch.confirmed and is_watching(api, watch))
    fault = list_falsely(api, api.objects(TITLE), "/vlans", without(), times=None)
    have_listed_again(api, "/vlans")
    before = api.count("LIST")
    wait_until(lambda: api.count("LIST") > before + 5)
    assert names(watch) == ALL
    api.faults.remove(fault)
    wait_until(lambda: is_watching(api, watch))
    assert names(watch) == ALL


def test_a_second_list_that_cannot_be_had_keeps_nothing_from_being_followed(api: ApiServer, begin: Begin) -> None:
    """When later lists are refused and watches are not, changes are followed all the same."""
    api.watch_s = 0.3
    watch = begin(PROVEN_SOON)
    wait_until(lambda: watch.confirmed and is_watching(api, watch))
    fault = list_falsely(api, api.objects(TITLE), "/vlans", without("v1"))
    have_listed_again(api, "/vlans")
    wait_until(lambda: not fault.times)
    api.faults.append(Fault("LIST", status=403, about="/vlans"))
    before = api.count("LIST")
    wait_until(lambda: api.count("LIST") > before and is_watching(api, watch))
    api.objects(TITLE).remove("", "v1")
    wait_until(lambda: names(watch) == {"v0", "v2"})


def test_what_a_first_list_does_not_name_may_be_there(api: ApiServer, begin: Begin) -> None:
    """The first list proves no absence. The second one does."""
    list_falsely(api, api.objects(TITLE), "/vlans", without("v0", "v1"))
    watch = begin(PROVEN_SOON)
    wait_until(lambda: watch.complete)
    assert (watch.confirmed, names(watch)) == (False, {"v2"})
    wait_until(lambda: watch.confirmed)
    assert names(watch) == ALL


@pytest.mark.parametrize("kind", ["Secret", "VlanList"])
def test_an_event_of_another_kind_ends_nothing(api: ApiServer, begin: Begin, kind: str) -> None:
    """An event that another kind of object with this name was deleted changes nothing."""
    watch = begin(QUICK)
    wait_until(lambda: watch.confirmed and is_watching(api, watch))
    listed = api.count("LIST")
    api.say(b'{"type":"DELETED","object":{"kind":"%b","metadata":{"name":"v0","resourceVersion":"9"}}}\n' % kind.encode())
    wait_until(lambda: api.count("LIST") > listed and is_watching(api, watch))
    assert names(watch) == ALL


def test_pods_are_gone_by_two_lists(api: ApiServer, tmp_path: Path) -> None:
    """One list makes no pod's UID count as missing, at the start or later, even if it lacks one pod of many."""
    pods = [api.add_pod({"metadata": {"name": f"p{number}"}, "spec": {"nodeName": "n1"}}) for number in range(3)]
    uids = frozenset(str(each["metadata"]["uid"]) for each in pods)
    list_falsely(api, api.store, "/pods", without("p1"))
    watch = PodWatch(KubeClient(api.kubeconfig(tmp_path)).session, "n1", PROVEN_SOON)
    watch.start()
    wait_until(lambda: watch.synced)
    assert wait_until(watch.uids) == uids
    fault = list_falsely(api, api.store, "/pods", without("p1"))
    have_listed_again(api, "/pods")
    wait_until(lambda: not fault.times and is_watching_pods(api, watch))
    assert watch.uids() == uids
    watch.stop()


def is_watching_pods(api: ApiServer, watch: PodWatch) -> bool:
    return api.watches == 1 and not watch.problem


@pytest.mark.parametrize("falsify", NO_LISTS.values(), ids=list(NO_LISTS))
def test_a_single_request_refuses_what_is_no_list(api: ApiServer, tmp_path: Path, falsify: Falsify) -> None:
    """A single request refuses an invalid list, as a watch does: an empty list would cause all objects to be made anew."""
    objects = Objects(KubeClient(api.kubeconfig(tmp_path)).session)
    list_falsely(api, api.objects(TITLE), "/vlans", falsify)
    with pytest.raises(ObjectRefused, match="no list of them"):
        objects.list(VLANS)
    found: list[Mapping[str, Any]] = list(objects.list(VLANS))
    assert {each["metadata"]["name"] for each in found} == ALL
