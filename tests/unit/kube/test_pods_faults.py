"""A watch of pods with every fault of an API server and its connection: it recovers, pauses between tries, and loses nothing."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer, Fault
from tests.lab.switch.switch import FOR_EVER_S, wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.kube import credentials, list_watch
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.watch import PodWatch

QUICK = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, fresh_s=30, page=2, confirm_s=0)
BEGUN = 4
"""The requests of the two lists at the beginning of a watch, each in two pages."""
"""A factor, so that a test does not wait for a real node's pauses."""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with three pods on our node."""
    with ApiServer() as started:
        for number in range(3):
            started.add_pod(pod(f"p{number}"))
        yield started


@pytest.fixture
def begin(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., PodWatch]]:
    """Begins a watch of our node, and ends it after the test."""
    begun: list[PodWatch] = []

    def make(times: WatchTimes = QUICK, user: dict[str, Any] | None = None) -> PodWatch:
        begun.append(PodWatch(KubeClient(api.kubeconfig(tmp_path, user)).session, "n1", times))
        begun[-1].start()
        return begun[-1]

    yield make
    for watch in begun:
        watch.stop()


def pod(name: str, node: str = "n1") -> dict[str, Any]:
    """A pod as one gives it to the server."""
    return {"metadata": {"name": name}, "spec": {"nodeName": node}}


def up_to_date(api: ApiServer, watch: PodWatch) -> bool:
    """Whether the watch knows exactly the server's pods and versions."""
    listed = [api.pod(*key) for key in api.store.names()]
    wanted = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in listed if pod["spec"]["nodeName"] == "n1"}
    keys = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in listed]
    known = [watch.get(*key) for key in keys]
    found = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in known if pod}
    return found == wanted and (watch.uids() or frozenset()) == set(wanted)


def is_watching(api: ApiServer, watch: PodWatch) -> bool:
    """Whether a watch is open and has no problem."""
    return api.watches == 1 and not watch.problem and watch.confirmed


FAULTS = [
    Fault(status=401),
    Fault(status=403),
    Fault(status=404),
    Fault(status=410),
    Fault(status=429),
    Fault(status=500),
    Fault(status=503),
    Fault(close=True),
    Fault(cut=0),
    Fault(cut=20),
    Fault(garbage=b"garbage"),
    Fault(garbage=b"[]\n"),
    Fault(garbage=b'{"kind": "PodList", "metadata": {}, "items": 3}\n'),
    Fault(garbage=b'{"type": "ADDED", "object": {"metadata": {}}}\n'),
    Fault(garbage=b"\xff\x00\n" * 100),
]


@pytest.mark.parametrize("verb", ["LIST", "WATCH"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_that_passes_is_outlived(api: ApiServer, begin: Callable[..., PodWatch], verb: str, fault: Fault) -> None:
    """After three faults in a row, at a list or a watch, everything is known, and later changes are followed."""
    api.bookmark_s = 0.1  # there is something to be cut
    api.faults.append(Fault(verb, fault.status, fault.close, times=3, cut=fault.cut, garbage=fault.garbage))
    watch = begin()
    wait_until(lambda: is_watching(api, watch) and not api.faults[0].times and up_to_date(api, watch))
    api.add_pod(pod("later"))
    wait_until(lambda: up_to_date(api, watch))


@pytest.mark.parametrize("verb", ["LIST", "WATCH"])
def test_a_server_that_drips_is_left(
    api: ApiServer, begin: Callable[..., PodWatch], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that comes byte by byte is abandoned, and requested again."""
    monkeypatch.setattr(list_watch, "REQUEST_LIMIT_S", 0.3)
    api.bookmark_s = 0.1
    api.faults.append(Fault(verb, drip=0.1, times=1))
    watch = begin(dataclasses.replace(QUICK, slack_s=0.1))
    wait_until(lambda: is_watching(api, watch) and api.count(verb) > 1 and up_to_date(api, watch))


@pytest.mark.parametrize("verb", ["LIST", "WATCH"])
def test_a_server_that_hangs_is_left(
    api: ApiServer, begin: Callable[..., PodWatch], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch waits for an answer as long as any request does."""
    monkeypatch.setattr(list_watch, "REQUEST_LIMIT_S", 0.3)
    api.faults.append(Fault(verb, hang=FOR_EVER_S, times=1))
    watch = begin()
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))


def test_a_server_that_falls_silent_is_noticed(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """When a server keeps the connection but does not even end the watch at its time, another watch is opened."""
    watch = begin(dataclasses.replace(QUICK, slack_s=0.1))
    wait_until(lambda: is_watching(api, watch))
    api.silent = True
    before = api.count("WATCH")
    wait_until(lambda: api.count("WATCH") > before)
    api.silent = False
    api.add_pod(pod("later"))
    wait_until(lambda: up_to_date(api, watch))
    assert api.count("LIST") == BEGUN


def test_a_watch_that_ends_in_good_order_goes_on_at_once(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """A watch goes on from its version, however often the server ends it. Nothing is listed again or logged."""
    api.watch_s = 0.3
    watch = begin()
    wait_until(lambda: api.count("WATCH") >= 3)
    api.add_pod(pod("later"))
    wait_until(lambda: up_to_date(api, watch))
    assert api.count("LIST") == BEGUN
    assert not watch.problem


def test_a_lost_connection_is_resumed_without_a_list(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """Changes during a lost connection come as events of the next watch."""
    watch = begin()
    for number in range(5):
        wait_until(lambda: is_watching(api, watch))
        api.close_watches()
        api.add_pod(pod(f"later{number}"))
        api.remove_pod("default", f"later{number - 1}" if number else "p0")
        wait_until(lambda: up_to_date(api, watch))
    assert api.count("LIST") == BEGUN


def test_the_version_goes_on_without_changes_of_ours(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """On a quiet node among busy ones, bookmarks update its version, so that it is not forgotten and nothing is listed again."""
    api.watch_s = 0.3
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    for number in range(5):
        api.add_pod(pod(f"other{number}", "n2"))
    now = str(api.store.version)
    wait_until(lambda: now in [request.option("resourceVersion") for request in api.requests if request.verb == "WATCH"])
    api.store.compact()
    api.close_watches()
    api.add_pod(pod("later"))
    wait_until(lambda: up_to_date(api, watch))
    now = str(api.store.version)
    wait_until(lambda: now in [request.option("resourceVersion") for request in api.requests if request.verb == "WATCH"])
    assert api.count("LIST") == BEGUN


def test_a_server_that_was_away_is_found_again(
    api: ApiServer, begin: Callable[..., PodWatch], capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that is stopped and started again causes one warning in all, and every change is known afterwards."""
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    api.stop()
    wait_until(lambda: watch.problem)
    api.add_pod(pod("later"))
    assert watch.get("default", "p0")
    api.start()
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))
    assert capsys.readouterr().err.count("level=warning") == 1


@pytest.mark.parametrize("in_stream", [True, False], ids=["event", "status"])
def test_a_forgotten_version_means_a_new_list(api: ApiServer, begin: Callable[..., PodWatch], in_stream: bool) -> None:
    """After a 410 of either form, pods that went meanwhile are forgotten, although no event ever reported it."""
    api.gone_in_stream = in_stream
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    api.silent = True
    api.add_pod(pod("later"))
    api.remove_pod("default", "p0")
    api.store.compact()
    api.silent = False
    api.close_watches()
    wait_until(lambda: up_to_date(api, watch))
    assert watch.get("default", "p0") is None
    assert api.count("LIST") > BEGUN


def test_a_list_that_is_forgotten_between_its_pages_begins_anew(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """When the server compacts between two pages, the list begins anew: a part never counts as a whole list."""
    answer, compactions = api.answer, itertools.count()

    def compacting(request: Any) -> dict[str, Any]:
        page = answer(request)
        if page["metadata"].get("continue") and next(compactions) < 2:
            api.store.compact()
        return page

    api.answer = compacting  # type: ignore[method-assign]
    watch = begin()
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))
    assert api.count("LIST") == 8


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"{}\n",
        b"3\n",
        b'{"type": "ERROR", "object": {"code": 410}}\n',
        b'{"type": "ERROR", "object": {"code": 500}}\n',
        b'{"type": "ERROR", "object": 3}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "5"}}}\n',
        b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n',
        b'{"type": "UNHEARD", "object": {"metadata": {"namespace": "a", "name": "b", "uid": "c", "resourceVersion": "1"}}}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda line: line[:40].decode(),
)
def test_a_line_that_is_no_event_means_a_new_list(api: ApiServer, begin: Callable[..., PodWatch], line: bytes) -> None:
    """After an invalid line the pods are listed anew: the server may have left out an event."""
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    api.say(line)
    wait_until(lambda: api.count("LIST") == BEGUN + 2 and is_watching(api, watch) and up_to_date(api, watch))


def test_empty_lines_are_nothing(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """Empty lines change nothing: some proxies send them to keep a connection alive."""
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    api.say(b"\n\r\n")
    api.add_pod(pod("later"))
    wait_until(lambda: up_to_date(api, watch))
    assert api.count("LIST") == BEGUN


def test_a_line_without_end_is_given_up(api: ApiServer, begin: Callable[..., PodWatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch keeps a bounded part of an answer: a line without end is abandoned."""
    monkeypatch.setattr(credentials, "ANSWER_LIMIT", 100_000)
    watch = begin()
    wait_until(lambda: is_watching(api, watch))
    before = api.count("WATCH")
    api.say(b"x" * 300_000)
    wait_until(lambda: api.count("WATCH") > before and is_watching(api, watch))


def test_pages_that_are_too_long_get_smaller(
    api: ApiServer, begin: Callable[..., PodWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods with a lot of text do not prevent a list: its pages become smaller."""
    monkeypatch.setattr(credentials, "ANSWER_LIMIT", 100_000)
    for number in range(8):
        api.add_pod({**pod(f"fat{number}"), "metadata": {"name": f"fat{number}", "annotations": {"x": "y" * 40_000}}})
    watch = begin(WatchTimes(back_off=BackOff(0.005, 0.02), page=50, confirm_s=0))
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))
    limits = [int(request.option("limit")) for request in api.requests if request.verb == "LIST"]
    assert limits[0] == 50
    assert limits[-1] < 5


def test_a_rotated_token_is_read_again(api: ApiServer, begin: Callable[..., PodWatch], tmp_path: Path) -> None:
    """The next watch is refused with 401, and made with the token that the file has then."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    watch = begin(user={"tokenFile": str(file)})
    wait_until(lambda: is_watching(api, watch))
    api.token = "rotated"
    file.write_text("rotated")
    api.close_watches()
    api.add_pod(pod("later"))
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))
    assert api.count("LIST") == BEGUN


@pytest.mark.parametrize(
    "fault",
    [Fault(status=403), Fault(status=500), Fault(close=True), Fault("WATCH", garbage=b"x\n"), Fault("WATCH", garbage=b"\n")],
    ids=str,
)
def test_a_server_that_fails_for_ever_is_not_hammered(api: ApiServer, begin: Callable[..., PodWatch], fault: Fault) -> None:
    """Pauses double: eight attempts take at least the shortest pauses, also when each watch ends normally."""
    api.faults.append(fault)
    started = time.monotonic()
    begin(WatchTimes(back_off=BackOff(0.02, 0.16), good_s=60))
    verb = fault.method or "LIST"
    wait_until(lambda: api.count(verb) >= 8)
    assert time.monotonic() - started >= 0.5 * (0.02 + 0.04 + 0.08 + 4 * 0.16)


def test_a_version_that_is_always_forgotten_does_not_hammer(api: ApiServer, begin: Callable[..., PodWatch]) -> None:
    """If each watch is answered 410, there are pauses between the lists."""
    api.faults.append(Fault("WATCH", status=410))
    started = time.monotonic()
    begin(WatchTimes(back_off=BackOff(0.02, 0.16), good_s=60))
    wait_until(lambda: api.count("WATCH") >= 6)
    assert time.monotonic() - started >= 0.5 * (0.02 + 0.04 + 0.08 + 2 * 0.16)


def test_a_missing_permission_is_said_once(
    api: ApiServer, begin: Callable[..., PodWatch], capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names the missing verbs once. Nothing is known, and nothing counts as gone."""
    api.faults.append(Fault(status=403))
    watch = begin()
    wait_until(lambda: api.count("LIST") >= 4)
    assert "list and watch on pods" in watch.problem
    assert capsys.readouterr().err.count("list and watch on pods") == 1
    assert (watch.synced, watch.uids(), watch.alive) == (False, None, True)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "fault", [None, Fault("LIST", hang=FOR_EVER_S), Fault("WATCH", hang=FOR_EVER_S), Fault(status=500)], ids=str
)
def test_stopping_is_prompt_and_quiet(
    api: ApiServer,
    begin: Callable[..., PodWatch],
    fault: Fault | None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During a quiet watch, a hanging request or a long pause, stop returns soon, and the watch sends no more requests."""
    hangs = fault is not None and fault.hang > 0
    if hangs:
        monkeypatch.setattr(list_watch, "STOP_S", 0.1)
    api.faults += [fault] if fault else []
    watch = begin(WatchTimes(back_off=BackOff(FOR_EVER_S, FOR_EVER_S)))
    wait_until(lambda: api.count(fault.method or "LIST") if fault else watch.synced and api.watches)
    capfd.readouterr()
    watch.stop()
    asked = len(api.requests)
    watch.stop()
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err
    assert len(api.requests) == asked
    if not hangs:
        assert not watch.alive


class Storm:
    """Random writes to a server, and random faults on the way to it: lost connections only, or also forgotten versions."""

    def __init__(self, api: ApiServer, seed: int, forgetful: bool) -> None:
        self._api = api
        self._random = random.Random(seed)
        self._forgetful = forgetful
        self._names = itertools.count()

    def rage(self, turns: int) -> None:
        """So many turns, most of them writes."""
        deeds = [self._add, self._change, self._change, self._remove, self._replace, self._lose, self._forget]
        for _ in range(turns):
            self._random.choice(deeds)()
            if self._random.random() < 0.2:
                self._api.wait(0.005)

    def _add(self) -> None:
        self._api.add_pod(pod(f"s{next(self._names)}", self._random.choice(["n1", "n1", "n2"])))

    def _change(self) -> None:
        key = self._random.choice(self._api.store.names())
        self._api.change(*key, {"metadata": {"labels": {"turn": str(self._random.random())}}})

    def _remove(self) -> None:
        if len(self._api.store.names()) > 3:
            self._api.remove_pod(*self._random.choice(self._api.store.names()))

    def _replace(self) -> None:
        _, name = self._random.choice(self._api.store.names())
        self._api.add_pod(pod(name, self._random.choice(["n1", "n2"])))

    def _lose(self) -> None:
        if self._random.random() < 0.5:
            self._api.close_watches()
        else:
            trouble = [Fault(close=True), Fault(status=503), Fault(status=401), Fault(cut=self._random.randrange(3000))]
            self._meet(self._random.choice(trouble), "WATCH")

    def _forget(self) -> None:
        pick = self._random.random() if self._forgetful else 1.0
        if pick < 0.3:
            self._api.store.compact()
        elif pick < 0.5:
            self._api.say(self._random.choice([b"garbage\n", b'{"type": "ERR']))
        elif pick < 0.9:
            self._meet(self._random.choice(FAULTS), self._random.choice(["LIST", "WATCH", ""]))

    def _meet(self, fault: Fault, verb: str) -> None:
        self._api.faults.append(dataclasses.replace(fault, method=verb, times=1))


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_change_is_lost_in_a_storm(api: ApiServer, begin: Callable[..., PodWatch], seed: int, forgetful: bool) -> None:
    """Whatever happens to connections, versions and answers, in the end the watch knows what the server has.

    Lost connections alone never cost a list.
    """
    watch = begin(WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.002, 0.01), good_s=0.2, fresh_s=30, page=2, confirm_s=0))
    wait_until(lambda: is_watching(api, watch))
    storm = Storm(api, seed, forgetful)

    def has_been_one() -> bool:
        storm.rage(100)
        api.faults.clear()  # on a busy machine they come faster than a watch that lists meets them
        wait_until(lambda: is_watching(api, watch))
        return api.count("WATCH") > 10

    storm.rage(500)
    wait_until(has_been_one, what="more than ten watches")
    api.faults.clear()
    wait_until(lambda: is_watching(api, watch) and up_to_date(api, watch))
    assert forgetful == (api.count("LIST") > BEGUN)
