"""Objects of a resource as a watch knows them: what is kept, what is never concluded, and which faults of a server pass.

The loop is that of the watch of pods (test_pods_faults.py). These tests are about what differs for objects.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import define_all, defined_server, definitions
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_watch import ObjectWatch, _WatchedObjects
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import LEASES, NODES, PROVIDER_NETWORKS, VLANS, ApiResource

QUICK = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, fresh_s=30, page=2, confirm_s=0)
TITLE = "vlans.userspace-cni.io"

Begin = Callable[..., ObjectWatch]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with our resources and three Vlans."""
    with defined_server() as started:
        for number in range(3):
            started.add(vlan(f"v{number}", number))
        yield started


@pytest.fixture
def begin(api: ApiServer, tmp_path: Path) -> Iterator[Begin]:
    """Begins a watch, of Vlans unless another resource is named, and ends it after the test."""
    begun: list[ObjectWatch] = []

    def make(resource: ApiResource = VLANS, **options: Any) -> ObjectWatch:
        session = KubeClient(api.kubeconfig(tmp_path)).session
        begun.append(ObjectWatch(session, resource, times=QUICK, **options))
        begun[-1].start()
        return begun[-1]

    yield make
    for watch in begun:
        watch.stop()


def vlan(name: str, number: int) -> dict[str, Any]:
    """A Vlan as a user writes it."""
    spec = {"id": number, "provider": "net1"}
    return {"apiVersion": "userspace-cni.io/v1alpha1", "kind": "Vlan", "metadata": {"name": name}, "spec": spec}


def number_of(thing: Mapping[str, Any]) -> int:
    """What these tests keep of a Vlan."""
    return int(thing["spec"]["id"])


def known(watch: ObjectWatch) -> dict[str, Any]:
    return dict(watch.objects() or {})


def test_objects_are_known_by_name(api: ApiServer, begin: Begin) -> None:
    """What `keep` returns for them is known, read in pages; changes, new and
    deleted objects come as events, each reported once.
    """
    told: list[None] = []
    watch = begin(keep=number_of, on_change=lambda: told.append(None))
    wait_until(lambda: watch.complete)
    assert known(watch) == {"v0": 0, "v1": 1, "v2": 2}
    wait_until(lambda: watch.confirmed and not watch.problem)
    api.add(vlan("v1", 100))
    wait_until(lambda: known(watch)["v1"] == 100)
    api.add(vlan("v9", 9))
    api.objects(TITLE).remove("", "v0")
    wait_until(lambda: known(watch) == {"v1": 100, "v2": 2, "v9": 9})
    assert api.count("LIST") == 4
    assert len(told) == 5


def test_what_is_not_kept_wakes_no_reader(api: ApiServer, begin: Begin) -> None:
    """A status that others write causes no change here, and the same list again does not either."""
    told: list[None] = []
    watch = begin(keep=number_of, on_change=lambda: told.append(None))
    wait_until(lambda: watch.confirmed and not watch.problem)
    api.add({**vlan("v1", 1), "status": {"conflict": True}})
    api.objects(TITLE).compact()
    api.close_watches()
    api.add(vlan("v2", 22))
    wait_until(lambda: known(watch)["v2"] == 22)
    assert len(told) == 3


def test_a_mapping_that_was_given_out_never_changes(api: ApiServer, begin: Begin) -> None:
    """A reader goes through one moment, whatever happens meanwhile."""
    watch = begin(keep=number_of)
    wait_until(lambda: watch.confirmed and not watch.problem)
    before = watch.objects() or {}
    api.objects(TITLE).remove("", "v0")
    wait_until(lambda: "v0" not in known(watch))
    assert set(before) == {"v0", "v1", "v2"}


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_an_event_does_not_copy_all_objects(kind: str) -> None:
    """When one of many objects changes, no memory is used for the others until a reader asks."""
    store = _WatchedObjects(number_of, lambda: None)
    store.take_over([(f"v{number}", number) for number in range(20_000)], ())
    before = store.objects()
    tracemalloc.start()
    store.change(kind, ("v7", 70))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000
    assert (before["v7"], store.objects().get("v7")) == (7, 70 if kind == "MODIFIED" else None)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_list_that_fails_is_no_list(api: ApiServer, begin: Begin, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known before the first complete list. The reason is logged once, and a later list is accepted."""
    api.faults.append(Fault("LIST", status=status, about="/vlans"))
    watch = begin()
    wait_until(lambda: api.count("LIST") >= 4)
    assert (watch.complete, watch.objects()) == (False, None)
    assert watch.problem
    assert capsys.readouterr().err.count("level=warning") == 1
    api.faults.clear()
    wait_until(lambda: watch.confirmed and not watch.problem)
    assert set(known(watch)) == {"v0", "v1", "v2"}


def test_half_a_list_is_no_list(api: ApiServer, begin: Begin) -> None:
    """A first page without a second one is no list."""
    api.faults.append(Fault("LIST", status=500, about="continue="))
    watch = begin()
    wait_until(lambda: api.count("LIST") >= 6)
    assert (watch.complete, watch.objects()) == (False, None)


@pytest.mark.parametrize("about", ["continue=", "watch=1"])
def test_a_server_that_always_forgets_is_told(api: ApiServer, begin: Begin, about: str) -> None:
    """If each list, or each watch, is answered "version forgotten", that is reported as a problem."""
    api.faults.append(Fault(status=410, about=about))
    watch = begin(keep=number_of)
    wait_until(lambda: "410" in watch.problem)
    api.faults.clear()
    wait_until(lambda: watch.confirmed and not watch.problem)


@pytest.mark.parametrize("status", [403, 404, 500, 410])
def test_a_server_that_fails_later_takes_nothing_away(api: ApiServer, begin: Begin, status: int) -> None:
    """Known objects stay known and complete while neither list nor watch succeeds, even if they are gone by then."""
    watch = begin(keep=number_of)
    wait_until(lambda: watch.confirmed and not watch.problem)
    api.faults.append(Fault(status=status))
    api.silent = True
    api.objects(TITLE).remove("", "v0")
    api.objects(TITLE).compact()
    api.close_watches()
    api.silent = False
    wait_until(lambda: watch.problem or status == 410)
    before = api.count("LIST") + api.count("WATCH")
    wait_until(lambda: api.count("LIST") + api.count("WATCH") > before + 4)
    assert (watch.complete, set(known(watch))) == (True, {"v0", "v1", "v2"})
    api.faults.clear()
    wait_until(lambda: set(known(watch)) == {"v1", "v2"})


def test_a_resource_that_is_not_installed(tmp_path: Path) -> None:
    """A resource that is not installed is no empty list: the problem names it. Once it is installed, its objects are known."""
    with ApiServer() as api:
        watch = ObjectWatch(KubeClient(api.kubeconfig(tmp_path)).session, PROVIDER_NETWORKS, times=QUICK)
        watch.start()
        wait_until(lambda: "no such resource" in watch.problem)
        assert watch.objects() is None
        define_all(api)
        wait_until(lambda: known(watch) == {} and watch.complete)
        watch.stop()
        assert not watch.alive


def test_an_object_that_cannot_be_kept_takes_nothing_away(api: ApiServer, begin: Begin) -> None:
    """An unreadable object is reported as a problem. Everything known stays, this object too, until it can be read."""
    watch = begin(
        keep=lambda thing: 1 // thing["spec"]["id"] if thing["spec"]["id"] == 0 else int(thing["metadata"]["labels"]["n"])
    )
    wait_until(lambda: "vlans" in watch.problem)
    assert watch.objects() is None
    other = begin(keep=lambda thing: {7: {}}.get(thing["spec"]["id"], {"n": 1})["n"])
    wait_until(lambda: other.complete and not other.problem)
    api.add(vlan("v1", 7))
    wait_until(lambda: other.problem)
    assert known(other) == {"v0": 1, "v1": 1, "v2": 1}
    api.add(vlan("v1", 8))
    wait_until(lambda: not other.problem)


def test_one_object_is_selected_by_field(api: ApiServer, begin: Begin) -> None:
    """Only the node's own Node is read, without managedFields."""
    for name in ("n1", "n2"):
        api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    watch = begin(NODES, field_selector="metadata.name=n1")
    wait_until(lambda: watch.confirmed and not watch.problem)
    assert set(known(watch)) == {"n1"}
    assert "managedFields" not in known(watch)["n1"]["metadata"]
    api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}})
    wait_until(lambda: known(watch)["n1"]["metadata"].get("labels") == {"a": "b"})


def test_objects_of_a_namespace(api: ApiServer, begin: Begin) -> None:
    """Objects of a namespace are known by namespace and name."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"}, "spec": {}}
    for namespace in ("here", "there"):
        api.add({**lease, "metadata": {"name": "leader", "namespace": namespace}}, namespace)
    watch = begin(LEASES.within("here"))
    wait_until(lambda: watch.complete)
    assert set(known(watch)) == {"here/leader"}


def test_the_definitions_are_the_resources() -> None:
    """Requests use the group, version, plural, kind and scope of the definitions in deploy/."""
    from userspace_cni.kube import resources

    ours = [
        each
        for each in vars(resources).values()
        if isinstance(each, ApiResource) and each.group in (resources.GROUP, resources.ROUTES.group)
    ]
    said = [(each["spec"]["group"], each["spec"]["versions"][0]["name"], each["spec"]["names"]) for each in definitions()]
    found = {(group, version, names["plural"], names["kind"]) for group, version, names in said}
    assert found == {(each.group, each.version, each.plural, each.kind) for each in ours}
    assert {each["spec"]["scope"] for each in definitions()} == {"Cluster"}
