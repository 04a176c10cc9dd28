"""Notes that are written from what a watch knows: without a read if that is current, without loss if it is old."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import at_once, busy_kubelet
from tests.lab.switch.switch import FOR_EVER_S, wait_until
from userspace_cni.attachment.steps import PodNote
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable
from userspace_cni.kube import notes
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.notes import PodNoteDriver
from userspace_cni.kube.pod_requests import MIRROR, Clients
from userspace_cni.kube.watch import PodWatch
from userspace_cni.pod import document

CONTAINER = "b" * 64
STATUS = {"phase": "Pending", "futureField": {"x": [1, 2.5, None]}}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with one pod that has an annotation, a status and fields that no model knows."""
    with ApiServer() as started:
        metadata = {"name": "app", "uid": "u1", "annotations": {"user/own": "kept"}, "managedFields": [{"manager": "kubelet"}]}
        started.add_pod({"metadata": metadata, "spec": {"nodeName": "n1", "futureField": 1}, "status": STATUS})
        yield started


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    """The accounts that driver and watch share."""
    return Clients(KubeconfigBounds((str(tmp_path),)))


@pytest.fixture
def note(api: ApiServer, tmp_path: Path) -> PodNote:
    return PodNote("default", "app", "u1", CONTAINER, "net1", entry("net1"), "/x/", api.kubeconfig(tmp_path))


@pytest.fixture
def watch(api: ApiServer, clients: Clients, note: PodNote) -> Iterator[PodWatch]:
    """A watch of the pod's node that has seen everything."""
    made = PodWatch(clients.of(note.kubeconfig).session, "n1")
    made.start()
    assert made.wait_synced(Deadline.after(60))
    wait_until(lambda: api.watches)
    yield made
    made.stop()


@pytest.fixture
def driver(clients: Clients, watch: PodWatch) -> PodNoteDriver:
    return PodNoteDriver(clients, watch)


def entry(ifname: str) -> str:
    config = {"iftype": "vhostuser", "vhost": {"mode": "server", "socketfile": f"{CONTAINER[:12]}-{ifname}"}}
    link = {"name": ifname, "mac": "02:00:00:00:00:01"}
    return document.render_file(
        document.build_entry(CONTAINER, ifname, "net", config, {"cniVersion": "1.1.0", "interfaces": [link]})
    )


def of(note: PodNote, ifname: str) -> PodNote:
    return dataclasses.replace(note, ifname=ifname, entry=entry(ifname))


def soon(seconds: float = 60.0) -> Deadline:
    """Enough time for a server that answers."""
    return Deadline.after(seconds)


def known_is(watch: PodWatch, api: ApiServer) -> None:
    """Wait until the watch knows the pod as it is."""
    version = api.pod("default", "app")["metadata"]["resourceVersion"]
    wait_until(lambda: (watch.get("default", "app") or {})["metadata"]["resourceVersion"] == version)


def noted(api: ApiServer) -> list[str]:
    """The interfaces that have an entry."""
    text = api.annotations("default", "app").get(document.CONFIGURATION_DATA, "")
    return [entry["ifName"] for entry in document.parse(text)]


def asked(api: ApiServer) -> list[str]:
    """The requests beside lists and watches, in order."""
    return [request.verb for request in api.requests if request.verb not in ("LIST", "WATCH")]


def test_a_known_pod_is_written_without_being_read(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """Each note of ADD and DEL is one PATCH, although the watch has not reported the last one yet."""
    api.silent = True
    driver.apply(note, soon())
    driver.apply(of(note, "net2"), soon())
    assert noted(api) == ["net1", "net2"]
    driver.undo(note, soon())
    driver.undo(of(note, "net2"), soon())
    assert api.annotations("default", "app") == {"user/own": "kept"}
    assert asked(api) == ["PATCH"] * 4
    assert api.pod("default", "app")["status"] == STATUS


def test_a_write_from_old_knowledge_is_refused_and_made_anew(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """When another writer has changed the pod unseen, the server answers 409, the pod is read, and no change is lost."""
    api.silent = True
    api.change("default", "app", {"metadata": {"annotations": {"user/new": "kept too"}}})
    driver.apply(note, soon())
    assert asked(api) == ["PATCH", "GET", "PATCH"]
    assert api.annotations("default", "app")["user/new"] == "kept too"
    assert noted(api) == ["net1"]
    api.change("default", "app", {"metadata": {"labels": {"a": "b"}}})
    driver.undo(note, soon())
    assert asked(api)[3:] == ["PATCH", "GET", "PATCH"]
    assert noted(api) == []


def test_an_account_that_may_not_patch_reads_the_whole_pod(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """A watch keeps a part of a pod. So a PUT has what was just read: unknown fields, managedFields and status verbatim."""
    api.faults.append(Fault("PATCH", status=403))
    before = api.pod("default", "app")
    driver.apply(note, soon())
    assert asked(api) == ["PATCH", "GET", "PUT"]
    sent = next(request.body for request in api.requests if request.verb == "PUT")
    assert sent == {**before, "metadata": {**before["metadata"], "annotations": sent["metadata"]["annotations"]}}
    assert api.pod("default", "app")["status"] == STATUS
    driver.undo(note, soon())
    assert asked(api)[3:] == ["PATCH", "GET", "PUT"]
    assert api.annotations("default", "app") == {"user/own": "kept"}


def test_a_put_is_never_made_from_old_knowledge(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """A PUT is made from the pod that was read for it, also where the watch knows another state."""
    driver.apply(note, soon())
    api.silent = True
    api.faults.append(Fault("PATCH", status=403))
    foreign = document.render([document.parse_entry(entry("net7"))])
    api.change("default", "app", {"metadata": {"annotations": {document.CONFIGURATION_DATA: foreign}}})
    driver.apply(of(note, "net2"), soon())
    assert noted(api) == ["net7", "net2"]
    assert asked(api)[1:] == ["PATCH", "GET", "GET", "PATCH", "PUT"]


def test_knowledge_is_no_reason_to_write_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """When the watch and the pod disagree about the entry, the pod is read."""
    driver.apply(note, soon())
    api.silent = True
    everything = dict.fromkeys((document.CONFIGURATION_DATA, document.MAPPED_DIR, document.DPDK_ARGS))
    before = {key: api.annotations("default", "app")[key] for key in everything}
    api.change("default", "app", {"metadata": {"annotations": everything}})
    driver.apply(note, soon())
    assert noted(api) == ["net1"]
    driver.undo(note, soon())
    api.change("default", "app", {"metadata": {"annotations": before}})
    driver.undo(note, soon())
    assert noted(api) == []


def test_knowledge_is_no_reason_to_refuse(driver: PodNoteDriver, watch: PodWatch, api: ApiServer, note: PodNote) -> None:
    """The pod is read, too, if the watch has another directory or another writer's text, which the pod no longer has."""
    for wrong in ({document.MAPPED_DIR: "/y/"}, {document.CONFIGURATION_DATA: "mine"}):
        api.silent = False
        api.change("default", "app", {"metadata": {"annotations": wrong}})
        known_is(watch, api)
        with pytest.raises((InvalidConfig, NoteRefused)):
            driver.apply(note, soon())
        api.silent = True
        api.change("default", "app", {"metadata": {"annotations": dict.fromkeys(wrong)}})
        driver.apply(note, soon())
        driver.undo(note, soon())


def test_a_pod_that_is_known_to_end_is_left_alone(driver: PodNoteDriver, watch: PodWatch, api: ApiServer, note: PodNote) -> None:
    """DEL of a pod that is known to be deleted sends no request; most DELs are such."""
    driver.apply(note, soon())
    api.store.mark_deleted("default", "app")
    wait_until(lambda: (view := watch.view("default", "app", "u1")) and view.deleting)
    before = asked(api)
    driver.undo(note, soon())
    assert asked(api) == before


def test_another_pod_of_the_name_is_not_written(driver: PodNoteDriver, watch: PodWatch, api: ApiServer, note: PodNote) -> None:
    """Another pod of this name is not written to, whether the watch knows the new pod or still the old one."""
    api.silent = True
    api.change("default", "app", {"metadata": {"uid": "u2"}})
    with pytest.raises(NoteRefused, match="the pod is gone"):
        driver.apply(note, soon())
    assert asked(api) == ["PATCH", "GET"]
    api.silent = False
    wait_until(lambda: watch.view("default", "app", "u2"))
    with pytest.raises(NoteRefused, match="the pod is gone"):
        driver.apply(note, soon())
    driver.undo(note, soon())
    assert asked(api)[2:] == ["GET", "GET"]
    assert noted(api) == []


def test_a_pod_whose_uid_was_not_told_is_read(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """A pod without a UID in the call is read: the watch may know an earlier pod of this name."""
    driver.apply(dataclasses.replace(note, uid=""), soon())
    assert asked(api) == ["GET", "PATCH"]


def test_a_pod_that_is_not_known_yet_is_read(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The runtime may be quicker than the watch. The next note uses the answer to this one, or reads again."""
    api.silent = True
    api.add_pod({"metadata": {"name": "new", "uid": "u9"}, "spec": {"nodeName": "n1"}})
    driver.apply(dataclasses.replace(note, pod="new", uid="u9"), soon())
    assert asked(api) == ["GET", "PATCH"]
    assert document.MAPPED_DIR in api.annotations("default", "new")


@pytest.mark.parametrize("known", [True, False])
def test_a_static_pod_gets_its_note_in_the_mirror(
    clients: Clients, driver: PodNoteDriver, watch: PodWatch, api: ApiServer, note: PodNote, known: bool
) -> None:
    """The step has the static pod's UID, the write carries the mirror's; CHECK and DEL find the note."""
    api.add_pod({"metadata": {"name": "static-n1", "annotations": {MIRROR: "cafe01"}}, "spec": {"nodeName": "n1"}})
    wait_until(lambda: watch.view("default", "static-n1", "cafe01"))
    used = driver if known else PodNoteDriver(clients)
    step = dataclasses.replace(note, pod="static-n1", uid="cafe01")
    used.apply(step, soon())
    assert document.MAPPED_DIR in api.annotations("default", "static-n1")
    assert used.check(step, soon()) == []
    used.undo(step, soon())
    assert api.annotations("default", "static-n1") == {MIRROR: "cafe01"}


@pytest.mark.parametrize("fault", [Fault("PATCH", status=503, times=1), Fault("PATCH", close=True, times=1)], ids=str)
def test_a_write_that_fails_for_once_is_made_anew(driver: PodNoteDriver, api: ApiServer, note: PodNote, fault: Fault) -> None:
    """A restarting server, or a connection that died meanwhile, does not fail the pod's sandbox."""
    api.faults.append(fault)
    driver.apply(note, soon())
    assert noted(api) == ["net1"]
    assert asked(api) == ["PATCH", "GET", "PATCH"]


def test_a_write_whose_answer_was_lost_is_not_made_twice(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """After a lost answer the pod is read, and the note is found in it."""
    api.faults.append(Fault("PATCH", cut=10, times=1))
    driver.apply(note, soon())
    assert noted(api) == ["net1"]
    assert asked(api) == ["PATCH", "GET"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "fault", [Fault("PATCH", hang=FOR_EVER_S), Fault("PATCH", hang=FOR_EVER_S, times=1), Fault("PATCH", status=409)], ids=str
)
def test_del_tries_for_a_second_at_most(
    driver: PodNoteDriver,
    api: ApiServer,
    note: PodNote,
    fault: Fault,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With and without a watch undo returns within its time, whatever the deadline, raises nothing and logs one line."""
    driver.apply(note, soon())
    before = len(asked(api))
    api.faults.append(fault)
    monkeypatch.setattr(notes, "UNDO_LIMIT_S", 0.3)
    driver.undo(note, soon(FOR_EVER_S))
    assert len(asked(api)) - before <= (2 * notes.WRITE_TRIES if fault.status == HTTPStatus.CONFLICT else 3)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("patient")
def test_add_ends_at_its_deadline(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """When the first write hangs, ADD ends at its deadline, and says that no answer came."""
    api.faults.append(Fault("PATCH", hang=FOR_EVER_S))
    with pytest.raises(Unavailable, match="no answer in time"):
        driver.apply(note, soon(0.5))


@pytest.mark.parametrize("forbidden", [False, True], ids=["patch", "put"])
def test_eight_writers_to_a_known_pod_lose_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote, forbidden: bool) -> None:
    """Concurrent ADDs of one pod all end with their entry in it, while the kubelet changes the status; DELs end without."""
    api.faults += [Fault("PATCH", status=403)] if forbidden else []
    with busy_kubelet(api):
        at_once(partial(driver.apply, of(note, f"net{number}"), soon(30)) for number in range(8))
    assert sorted(noted(api)) == [f"net{number}" for number in range(8)]
    assert api.pod("default", "app")["status"]["phase"] == "Pending"
    for number in range(8):
        driver.undo(of(note, f"net{number}"), soon())
    assert api.annotations("default", "app") == {"user/own": "kept"}
