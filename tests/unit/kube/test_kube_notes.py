"""Notes in a pod's annotations: what the API server has after ADD, DEL and CHECK, whatever other writers do meanwhile."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import at_once, busy_kubelet
from tests.lab.node.inside import Clock
from tests.lab.switch.switch import FOR_EVER_S
from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.steps import PodNote
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable
from userspace_cni.kube import notes
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.notes import PodNoteDriver
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.linux import instant
from userspace_cni.pod import document

OLD, NEW = "a" * 64, "b" * 64
STATUS = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}], "futureField": {"x": [1, 2.5, None]}}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with one pod that has an annotation, a status and fields that no model knows."""
    with ApiServer() as started:
        metadata = {"name": "app", "uid": "u1", "annotations": {"user/own": "kept"}, "labels": {"l": "1"}}
        started.add_pod({"metadata": metadata, "spec": {"futureField": 1}, "status": STATUS})
        yield started


@pytest.fixture
def driver(tmp_path: Path) -> PodNoteDriver:
    """A driver as the composition root makes it."""
    return PodNoteDriver(Clients(KubeconfigBounds((str(tmp_path),))))


@pytest.fixture
def note(api: ApiServer, tmp_path: Path) -> PodNote:
    entry = document.render_file(made("net1"))
    return PodNote("default", "app", "u1", NEW, "net1", entry, "/x/", api.kubeconfig(tmp_path))


def made(ifname: str, container: str = NEW, **vhost: Any) -> document.Entry:
    config = {"iftype": "vhostuser", "vhost": {"mode": "server", "socketfile": f"{container[:12]}-{ifname}", **vhost}}
    link = {"name": ifname, "mac": "02:00:00:00:00:01"}
    return document.build_entry(container, ifname, "net", config, {"cniVersion": "1.1.0", "interfaces": [link]})


def of(note: PodNote, ifname: str, container: str = NEW, **changes: Any) -> PodNote:
    """The note about another interface or another container."""
    entry = document.render_file(made(ifname, container))
    return dataclasses.replace(note, ifname=ifname, container_id=container, entry=entry, **changes)


def soon(seconds: float = 60.0) -> Deadline:
    """Enough time for a server that answers."""
    return Deadline.after(seconds)


def noted(api: ApiServer) -> list[tuple[str, str]]:
    """Interface and container of each entry in the pod, in order."""
    text = api.annotations("default", "app").get(document.CONFIGURATION_DATA, "")
    return [(entry["ifName"], entry["containerId"]) for entry in document.parse(text)]


def test_a_note_is_written_beside_what_is_there(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The three annotations are added by merge patch; the rest of the pod is as before."""
    before = api.pod("default", "app")
    driver.apply(note, soon())
    after = api.pod("default", "app")
    assert after["metadata"]["annotations"] == {
        "user/own": "kept",
        document.CONFIGURATION_DATA: document.render([made("net1")]),
        document.MAPPED_DIR: "/x/",
        document.DPDK_ARGS: "--in-memory --single-file-segments "
        f"--vdev=virtio_user0,path=/x/{NEW[:12]}-net1,server=1,mac=02:00:00:00:00:01",
    }
    assert (after["spec"], after["status"], after["metadata"]["labels"]) == (before["spec"], STATUS, {"l": "1"})
    assert [request.method for request in api.requests] == ["GET", "PATCH"]


def test_writing_the_same_note_again_writes_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The second apply of a note sends no write, so it does not wake all watchers of pods."""
    driver.apply(note, soon())
    version = api.pod("default", "app")["metadata"]["resourceVersion"]
    driver.apply(note, soon())
    assert api.pod("default", "app")["metadata"]["resourceVersion"] == version


def test_a_new_sandbox_replaces_the_old_ones_entries(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """Entries are replaced by interface, in place, and a late DEL of the old sandbox takes nothing away."""
    for ifname in ("net1", "net2"):
        driver.apply(of(note, ifname, OLD), soon())
    driver.apply(of(note, "net1"), soon())
    assert noted(api) == [("net1", NEW), ("net2", OLD)]
    driver.apply(of(note, "net2"), soon())
    driver.undo(of(note, "net1", OLD), soon())
    assert noted(api) == [("net1", NEW), ("net2", NEW)]
    assert OLD[:12] not in api.annotations("default", "app")[document.DPDK_ARGS]


def test_del_takes_its_entry_and_the_last_one_everything(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """DEL removes its entry, and with the last entry mapped-dir and dpdk-args. What is not ours stays, and a second DEL
    succeeds."""
    driver.apply(note, soon())
    driver.apply(of(note, "net2"), soon())
    driver.undo(note, soon())
    assert noted(api) == [("net2", NEW)]
    assert "virtio_user0" in api.annotations("default", "app")[document.DPDK_ARGS]
    assert "virtio_user1" not in api.annotations("default", "app")[document.DPDK_ARGS]
    driver.undo(of(note, "net2"), soon())
    driver.undo(of(note, "net2"), soon())
    assert api.annotations("default", "app") == {"user/own": "kept"}
    assert api.pod("default", "app")["status"] == STATUS


def test_a_second_directory_in_one_pod_is_refused(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """All interfaces of a pod share one mapped-dir. Another spelling of this directory is accepted, another directory is
    refused."""
    api.change("default", "app", {"metadata": {"annotations": {document.MAPPED_DIR: "//x/."}}})
    driver.apply(note, soon())
    assert api.annotations("default", "app")[document.MAPPED_DIR] == "/x/"
    with pytest.raises(InvalidConfig, match="one directory"):
        driver.apply(of(note, "net2", mapped_dir="/y/"), soon())
    assert noted(api) == [("net1", NEW)]


@pytest.mark.parametrize("mapped_dir", ["/x=y/", "/a b/", "/a,b/"])
def test_a_directory_that_readers_can_not_read_is_refused(
    driver: PodNoteDriver, api: ApiServer, note: PodNote, mapped_dir: str
) -> None:
    """It is refused before any request to the API server."""
    with pytest.raises(InvalidConfig, match="net1"):
        driver.apply(dataclasses.replace(note, mapped_dir=mapped_dir), soon())
    assert api.requests == []


def test_an_annotation_of_somebody_else_is_not_overwritten(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """A text under our key that we cannot read is an error, and stays."""
    api.change("default", "app", {"metadata": {"annotations": {document.CONFIGURATION_DATA: "mine"}}})
    with pytest.raises(NoteRefused, match="cannot be kept"):
        driver.apply(note, soon())
    driver.undo(note, soon())
    assert api.annotations("default", "app")[document.CONFIGURATION_DATA] == "mine"


def test_an_account_that_may_not_patch_updates_and_keeps_the_status(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """Multus' role: the PUT carries the whole pod as it was read, unknown fields and status included, for ADD and DEL."""
    api.faults.append(Fault("PATCH", status=403))
    before = api.pod("default", "app")
    driver.apply(note, soon())
    after = api.pod("default", "app")
    assert noted(api) == [("net1", NEW)]
    assert (after["status"], after["spec"]) == (STATUS, before["spec"])
    sent = api.requests[-1]
    assert (sent.method, sent.body["status"], sent.body["spec"]) == ("PUT", STATUS, before["spec"])
    assert sent.body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    driver.undo(note, soon())
    assert api.annotations("default", "app") == {"user/own": "kept"}
    assert api.pod("default", "app")["status"] == STATUS


def test_without_permission_to_write_the_missing_verbs_are_named(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """An account with neither patch nor update gets an error that names the missing rights, and nothing is written."""
    api.faults += [Fault("PATCH", status=403), Fault("PUT", status=403)]
    with pytest.raises(NoteRefused, match=r"patch \(or update\) on pods/status"):
        driver.apply(note, soon())
    assert noted(api) == []


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_conflict_is_read_again(driver: PodNoteDriver, api: ApiServer, note: PodNote, method: str) -> None:
    """After each of a few conflicts the pod is read again, and the note is written."""
    if method == "PUT":
        api.faults.append(Fault("PATCH", status=403))
    api.faults.append(Fault(method, status=409, times=3))
    driver.apply(note, soon())
    assert noted(api) == [("net1", NEW)]
    assert api.count("GET") == 4


def test_conflicts_without_end_are_given_up(
    driver: PodNoteDriver, api: ApiServer, note: PodNote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bounded number of tries the error says that the caller may try again, long before the deadline."""
    monkeypatch.setattr(notes, "WRITE_TRIES", 4)
    api.faults.append(Fault("PATCH", status=409))
    with pytest.raises(Unavailable, match="others changed the pod"):
        driver.apply(note, soon(FOR_EVER_S))
    assert api.count("PATCH") == 4


@pytest.mark.parametrize("method", ["GET", "PATCH"])
@pytest.mark.usefixtures("patient")
def test_a_hanging_server_ends_at_the_deadline(driver: PodNoteDriver, api: ApiServer, note: PodNote, method: str) -> None:
    """A server that hangs at the read or at the write ends the call at its deadline."""
    api.faults.append(Fault(method, hang=FOR_EVER_S))
    with pytest.raises(Unavailable):
        driver.apply(note, soon(0.5))


def test_another_pod_of_the_name_gets_no_note(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """A pod that was deleted and made again is another pod: apply fails, undo leaves it alone, and check reports it."""
    driver.apply(note, soon())
    api.change("default", "app", {"metadata": {"uid": "u2"}})
    with pytest.raises(NoteRefused, match="the pod is gone"):
        driver.apply(of(note, "net2"), soon())
    driver.undo(note, soon())
    assert noted(api) == [("net1", NEW)]
    assert "another one of its name" in str(driver.check(note, soon())[0].found)


def test_a_pod_exchanged_between_read_and_write_gets_no_note(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The patch has the UID, so the server itself refuses it for another pod."""
    answer = api.answer

    def exchanged(request: Any) -> dict[str, Any]:
        if request.method == "PATCH" and api.pod("default", "app")["metadata"]["uid"] == "u1":
            api.change("default", "app", {"metadata": {"uid": "u2", "resourceVersion": None}})
        return answer(request)

    api.answer = exchanged  # type: ignore[method-assign]
    with pytest.raises(NoteRefused, match="the pod is gone"):
        driver.apply(note, soon())
    assert noted(api) == []


def test_a_pod_that_is_gone_is_no_obstacle_to_del(
    driver: PodNoteDriver, api: ApiServer, note: PodNote, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a missing pod DEL writes nothing and raises no error."""
    driver.apply(note, soon())
    api.remove_pod("default", "app")
    driver.undo(note, soon())
    assert capsys.readouterr().err == ""
    with pytest.raises(NoteRefused, match="gone"):
        driver.apply(note, soon())


def test_a_pod_on_its_way_out_is_left_alone_by_del(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """DEL writes nothing into a pod that is being deleted: the annotations go with the pod."""
    driver.apply(note, soon())
    api.change("default", "app", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    written = api.count("PATCH")
    driver.undo(note, soon())
    assert api.count("PATCH") == written


@pytest.mark.parametrize(
    "fault",
    [
        Fault(hang=FOR_EVER_S),
        Fault("PATCH", hang=FOR_EVER_S),
        Fault(status=500),
        Fault(status=403),
        Fault("PATCH", status=409),
        Fault(close=True),
    ],
    ids=str,
)
@pytest.mark.usefixtures("patient")
def test_del_tries_once(
    driver: PodNoteDriver,
    api: ApiServer,
    note: PodNote,
    fault: Fault,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the server does, undo returns soon, whatever its deadline is, and writes one line to the log. It tries again only
    after a conflict."""
    driver.apply(note, soon())
    api.requests.clear()
    api.faults.append(fault)
    monkeypatch.setattr(notes, "UNDO_LIMIT_S", 0.3)
    driver.undo(note, soon(FOR_EVER_S))
    assert len(api.requests) <= (2 * notes.WRITE_TRIES if fault.status == HTTPStatus.CONFLICT else 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_del_beside_other_writers(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The entry is removed although others change the pod meanwhile, as the DELs of its other interfaces do."""
    driver.apply(note, soon())
    api.faults.append(Fault("PATCH", status=HTTPStatus.CONFLICT, times=3))
    driver.undo(note, soon())
    assert noted(api) == []


def test_loading_credentials_takes_nothing_of_the_servers_time(
    driver: PodNoteDriver, api: ApiServer, note: PodNote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading credentials may take as long as a request on a busy node. The entry is removed all the same."""
    clock, prepare = Clock(), ApiSession.prepare

    def slow(session: ApiSession, what: str, limit: Deadline) -> None:
        prepare(session, what, limit)
        clock.skip(notes.UNDO_LIMIT_S)

    PodNoteDriver(Clients(KubeconfigBounds((str(tmp_path),)))).apply(note, soon())
    monkeypatch.setattr(instant, "time", clock)
    monkeypatch.setattr(ApiSession, "prepare", slow)
    driver.undo(note, soon())
    assert noted(api) == []


def test_del_without_a_server_raises_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote, tmp_path: Path) -> None:
    """A dead API server or a missing kubeconfig does not prevent a pod from being removed."""
    api.stop()
    driver.undo(note, soon())
    driver.undo(dataclasses.replace(note, kubeconfig=str(tmp_path / "none")), soon())


def test_del_without_the_library_raises_nothing(
    driver: PodNoteDriver, note: PodNote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DEL succeeds although the library cannot be imported, for example without free descriptors."""
    monkeypatch.setitem(sys.modules, "urllib3", None)
    driver.undo(note, soon())
    assert capsys.readouterr().err.count("\n") == 1


def test_check_finds_what_is_missing_or_different(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """CHECK reports each difference as a drift with what was expected and found, nothing without one, and never writes."""
    subject = "annotations of pod default/app for net1"
    assert driver.check(note, soon()) == [Drift(subject, "", "our entry", Absent("none for this interface"))]
    driver.apply(note, soon())
    assert driver.check(note, soon()) == []
    changed = document.render([made("net1", mode="client")])
    api.change("default", "app", {"metadata": {"annotations": {document.CONFIGURATION_DATA: changed, document.MAPPED_DIR: "/y"}}})
    assert driver.check(note, soon()) == [
        Drift(subject, "", "the entry made by ADD", Other("another one")),
        Drift(subject, "", "userspace/mapped-dir /x/", "/y"),
    ]
    api.change("default", "app", {"metadata": {"annotations": {document.CONFIGURATION_DATA: "{"}}})
    assert "not JSON" in str(driver.check(note, soon())[0].found)
    assert api.count("PATCH") == 1


def test_check_of_an_unreachable_server_is_no_drift(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """CHECK reports that the pod could not be read. That is no drift."""
    api.faults.append(Fault(status=503))
    with pytest.raises(Unavailable):
        driver.check(note, soon())


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=403), Fault(close=True)], ids=str)
def test_an_optional_note_only_warns(
    driver: PodNoteDriver, api: ApiServer, note: PodNote, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    """A VM that does not need the note starts without it, and CHECK passes."""
    optional = dataclasses.replace(note, optional=True)
    api.faults.append(fault)
    driver.apply(optional, soon())
    told = capsys.readouterr().err
    assert " level=warning " in told
    assert told.count("\n") == 1
    assert driver.check(optional, soon()) == []
    api.faults.clear()
    assert driver.check(optional, soon()) == []


def test_eight_writers_to_one_pod_lose_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """Concurrent ADDs of one pod all end with their entry in it, while kubelet changes the status; then DELs all end without."""
    steps = [of(note, f"net{number}") for number in range(8)]
    with busy_kubelet(api):
        at_once(partial(driver.apply, step, soon(30)) for step in steps)
    assert sorted(noted(api)) == [(step.ifname, NEW) for step in steps]
    assert api.annotations("default", "app")[document.DPDK_ARGS].count("--vdev") == 8
    assert api.pod("default", "app")["status"]["phase"] == "Pending"
    for step in steps:
        driver.undo(step, soon())
    assert api.annotations("default", "app") == {"user/own": "kept"}


def test_eight_writers_who_may_only_update_lose_nothing(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """With PUT, too, no entry and no status is overwritten by an older one."""
    api.faults.append(Fault("PATCH", status=403))
    steps = [of(note, f"net{number}") for number in range(8)]
    at_once(partial(driver.apply, step, soon(30)) for step in steps)
    assert sorted(noted(api)) == [(step.ifname, NEW) for step in steps]
    assert api.pod("default", "app")["status"] == STATUS


def test_annotations_that_grow_too_long_are_refused_in_words(driver: PodNoteDriver, api: ApiServer, note: PodNote) -> None:
    """The API server accepts 256 KiB of annotations. The error says so."""
    api.change("default", "app", {"metadata": {"annotations": {"user/long": "x" * 262_000}}})
    with pytest.raises(NoteRefused, match="too long"):
        driver.apply(note, soon())


def test_a_note_is_never_there_before(driver: PodNoteDriver, note: PodNote) -> None:
    """A note belongs to one attachment: none counts as there before ADD."""
    assert driver.is_present(note) is False


def test_importing_the_room_does_not_import_the_library() -> None:
    """The client library is loaded neither by a verb that writes no note nor by an agent before its watch begins."""
    code = "import sys, userspace_cni.kube.watch; print(sorted({'kubernetes', 'urllib3', 'yaml', 'logging'} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[3]
    loaded = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"
