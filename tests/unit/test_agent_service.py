"""The agent as a whole, without a switch: what is asked of it for people and scrapers takes nothing from the verbs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.front import SECONDS, answer_on
from tests.lab.switch import wait_until
from tests.unit.test_agent_pages import CROWD, METRICS
from userspace_cni import protocol
from userspace_cni.agent import pages
from userspace_cni.agent.service import Agent
from userspace_cni.settings import Settings

NETWORK = b'{"cniVersion":"1.1.0","name":"net","type":"userspace"}'
STATUS = protocol.request_bytes("/api/v1/status", {}, NETWORK)
PAGES = [("GET", "/metrics"), ("GET", "/readyz"), ("GET", "/api/v1/attachments"), ("POST", "/api/v1/reconcile")]


class Served:
    """An agent whose socket is served, and whose keeper is not started."""

    def __init__(self, directory: Path) -> None:
        settings = Settings(
            ovsdb=f"unix:{directory}/none", ovs_rundir=str(directory), state_dir=f"{directory}/state", run_dir=f"{directory}/run"
        )
        self.agent = Agent(settings, {})
        self.path = settings.agent_socket

    def send(self, raw: bytes) -> socket.socket:
        """A connection on which `raw` was sent."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        client.connect(self.path)
        client.sendall(raw)
        return client


@pytest.fixture
def served() -> Iterator[Served]:
    """One that listens."""
    with TemporaryDirectory(prefix="uc-") as directory:
        served = Served(Path(directory))
        served.agent.server.start()
        try:
            yield served
        finally:
            served.agent.pool.close()
            served.agent.server.close()


@pytest.mark.parametrize(("method", "target"), PAGES)
def test_a_page_that_hangs_takes_nothing_from_the_verbs(served: Served, method: str, target: str) -> None:
    """While a page can not be made, and three hundred wait for it, no thread of the verbs is taken, and STATUS is answered."""
    go = threading.Event()
    begun = threading.Event()
    made = []
    page = served.agent.pages[method, target]
    make = page._make

    def slowly() -> pages.Told:
        made.append(1)
        begun.set()
        go.wait(SECONDS)
        return pages.Told(200, b"made") if method == "POST" else make()

    page._make = slowly
    asked = protocol.request_bytes(target, {}, method=method)
    with ExitStack() as stack:
        stack.callback(go.set)
        crowd = [stack.enter_context(served.send(asked))]
        assert begun.wait(SECONDS)
        crowd += [stack.enter_context(served.send(asked)) for _ in range(CROWD)]
        wait_until(lambda: served.agent.server.connections == CROWD + 1, SECONDS, "all connections")
        assert (served.agent.pool.busy, served.agent.pool.queued, served.agent.pool.threads) == (0, 0, 0)
        with stack.enter_context(served.send(STATUS)) as client:
            assert b'"code":50' in answer_on(client).body
        assert made == [1]
        go.set()
        assert {answer_on(client).status for client in crowd} <= {200, 503}
    assert len(made) == 2


def test_every_other_page_is_refused(served: Served) -> None:
    """What is not served is refused with 404 by the thread that read it."""
    for raw in (b"GET /nothing HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"HEAD /metrics HTTP/1.1\r\n\r\n"):
        with served.send(raw) as client:
            assert answer_on(client).status == 404
    with served.send(METRICS) as client:
        assert b"userspace_cni_build_info" in answer_on(client).body
    assert served.agent.pool.threads == 0
