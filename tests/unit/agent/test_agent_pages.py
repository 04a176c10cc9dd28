"""Pages take no thread from the verbs, and a page that many ask for is made about as often as for one."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.lab.node.front import SECONDS, Front, answer_on
from tests.lab.switch.switch import wait_until
from userspace_cni.agent.agent_server import PeerLimits
from userspace_cni.agent.served_pages import PageContent, ServedPage
from userspace_cni.base.errors import NotServing
from userspace_cni.cni import protocol

METRICS = protocol.request_bytes("/metrics", {}, method="GET")
CROWD = 300


class Slow:
    """The making of a page: it waits for `go`, and makings are counted."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.made = 0
        self.begun = threading.Event()

    def make(self) -> PageContent:
        self.made += 1
        self.begun.set()
        self.go.wait(SECONDS)
        return PageContent(200, b"%d" % self.made, "text/plain")


@contextmanager
def serving(make: Callable[[], PageContent], waiting: int = 1024) -> Iterator[Front]:
    """A front that answers everything but /healthz with such a page."""
    with Front(PeerLimits(request_s=600, taken_s=600)) as front:
        page = ServedPage("/metrics", make, waiting)
        front.script = page.ask
        yield front


def test_a_crowd_shares_what_is_made() -> None:
    """Three hundred who ask while a page is being made delay no other request, and one more making answers all of them."""
    slow = Slow()
    with serving(slow.make) as front, ExitStack() as stack:
        stack.callback(slow.go.set)
        first = stack.enter_context(front.send(METRICS))
        assert slow.begun.wait(SECONDS)
        crowd = [stack.enter_context(front.send(METRICS)) for _ in range(CROWD)]
        front.wait_for(CROWD + 1)
        assert front.well()
        assert slow.made == 1
        slow.go.set()
        assert answer_on(first).body == b"1"
        assert {answer_on(peer).body for peer in crowd} == {b"2"}
    assert slow.made == 2


def test_no_answer_is_of_before_its_request() -> None:
    """A request during a making waits for the next one; a request after it gets a new one."""
    slow = Slow()
    with serving(slow.make) as front:
        with front.send(METRICS) as first, front.send(METRICS) as second:
            assert slow.begun.wait(SECONDS)
            front.wait_for(2)
            slow.go.set()
            assert int(answer_on(first).body) <= int(answer_on(second).body)
        assert int(front.ask(METRICS).body) == slow.made


def test_those_who_wait_are_bounded() -> None:
    """When too many wait, further ones are told at once to come later."""
    slow = Slow()
    with serving(slow.make, waiting=2) as front, ExitStack() as stack:
        stack.callback(slow.go.set)
        stack.enter_context(front.send(METRICS))
        assert slow.begun.wait(SECONDS)
        for number in (2, 3):
            stack.enter_context(front.send(METRICS))
            front.wait_for(number)
        refused = front.ask(METRICS)
        assert (refused.status, b'"code":11' in refused.body) == (503, True)


@pytest.mark.parametrize(("error", "code"), [(NotServing("no switch"), b'"code":50'), (ValueError("x"), b'"code":999')])
def test_a_page_that_fails_is_answered(error: Exception, code: bytes) -> None:
    """Those who waited get the error, and the page is made for the next one."""
    errors: list[Exception] = [error]

    def make() -> PageContent:
        if errors:
            raise errors.pop()
        return PageContent(200, b"made")

    with serving(make) as front:
        failed = front.ask(METRICS)
        assert (failed.status, code in failed.body) == (500, True)
        assert front.ask(METRICS).body == b"made"


def test_no_thread_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has no thread for a page the answer is "try again later", and the next request may succeed."""

    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with serving(lambda: PageContent(200, b"made")) as front:
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", none)
            refused = front.ask(METRICS)
        assert (refused.status, b'"code":11' in refused.body) == (503, True)
        assert front.ask(METRICS).body == b"made"


def test_one_that_hangs_is_seen() -> None:
    """The time for which a page has been in the making is known meanwhile; no thread stays when no request waits."""
    slow = Slow()
    page = ServedPage("/metrics", slow.make)
    with Front() as front:
        front.script = page.ask
        assert page.seconds == 0
        before = threading.active_count()
        with front.send(METRICS) as peer:
            assert slow.begun.wait(SECONDS)
            assert page.seconds > 0
            slow.go.set()
            assert answer_on(peer).body == b"1"
        wait_until(lambda: page.seconds == 0 and threading.active_count() <= before, SECONDS, "the page's thread to end")
