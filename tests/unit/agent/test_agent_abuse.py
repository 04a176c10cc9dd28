"""Whatever some peers do on the agent's socket, a well-behaved one is served meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.node.front import ADD, HEALTH, SECONDS, Front, answer_on
from tests.lab.switch.switch import wait_until
from userspace_cni.agent import agent_server as server_module
from userspace_cni.agent.agent_server import PeerLimits
from userspace_cni.agent.exchange import Exchange
from userspace_cni.cni import protocol

NOBODY = 65534
STRANGER = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
print(client.recv(65536).decode())
"""


@pytest.fixture
def front() -> Iterator[Front]:
    """A server with time limits that no test reaches."""
    with Front(PeerLimits(request_s=600, taken_s=600)) as started:
        yield started


@contextlib.contextmanager
def descriptors(soft: int) -> Iterator[None]:
    """Within this block the process may have so many descriptors; -1 for as many as it may ask for."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft < 0 else soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def refused(reply: protocol.Reply, status: int, code: int) -> bool:
    """Whether the answer is this refusal, with a CNI error as its body."""
    return reply.status == status and b'"code":%d,' % code in reply.body


def test_a_thousand_idle_connections(front: Front) -> None:
    """They are held, and cost others nothing."""
    with descriptors(-1), ExitStack() as crowd:
        for _ in range(1000):
            crowd.enter_context(front.connect())
        front.wait_for(1000)
        assert front.well()
    front.wait_for(0)


def test_a_byte_at_a_time(front: Front) -> None:
    """Slow writers' requests are assembled in the end, and all other callers are served between their bytes."""
    with ExitStack() as crowd:
        slow = [crowd.enter_context(front.connect()) for _ in range(5)]
        for place in range(len(ADD)):
            for client in slow:
                client.sendall(ADD[place : place + 1])
            if place % 20 == 0:
                assert front.well()
        for _ in slow:
            exchange = front.next()
            assert exchange.answer(200, exchange.body)
        assert [answer_on(client).status for client in slow] == [200] * 5


@pytest.mark.parametrize(
    "sent", [b"", b"P", ADD[:-1], ADD[: ADD.index(protocol.HEAD_END) + 4]], ids=["nothing", "one", "most", "head"]
)
def test_an_incomplete_request_has_its_time(sent: bytes) -> None:
    """A request that is incomplete after its time is refused with 408 and closed."""
    with Front(PeerLimits(request_s=0.2)) as hasty, hasty.send(sent) as client:
        assert refused(answer_on(client), 408, 11)
        hasty.wait_for(0)
        assert hasty.well()


def test_time_runs_from_the_first_byte(front: Front) -> None:
    """A peer that keeps sending gets no more time by it."""
    with Front(PeerLimits(request_s=0.2)) as hasty, hasty.connect() as client:

        def fed_until_closed() -> bool:
            try:
                client.sendall(b"G")
            except OSError:
                return True
            return False

        wait_until(fed_until_closed, SECONDS)
        assert hasty.well()


@pytest.mark.parametrize(
    "raw",
    [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"{}\r\n\r\n", b"GET / HTTP/9\r\n\r\n", ADD + b"more"],
    ids=["empty", "tls", "json", "version", "more"],
)
def test_garbage_is_refused(front: Front, raw: bytes) -> None:
    """What is no request of the protocol is answered with 400 and a CNI error, and closed."""
    assert refused(front.ask(raw), 400, 111)
    front.wait_for(0)
    assert front.well()


def test_noise(front: Front) -> None:
    """Random bytes, however many, end no thread and leave no connection."""
    dice = random.Random(8)
    for _ in range(200):
        with front.connect() as client, contextlib.suppress(OSError):
            client.sendall(dice.randbytes(dice.randrange(1, 5000)) + dice.choice([b"", protocol.HEAD_END]))
    front.wait_for(0)
    assert front.well()


def test_a_head_over_the_limit(front: Front) -> None:
    """A head that does not end is refused when it is too long; a caller that goes on sending can still read why."""
    assert refused(front.ask(b"POST /api/v1/add HTTP/1.1\r\nCni-Args: " + b"a" * protocol.HEAD_MAX), 431, 4)
    assert front.well()


def test_a_body_over_the_limit(front: Front) -> None:
    """A body that is announced as too long is refused before it is sent, and a peer that sends it all the same can read why."""
    with front.send(b"POST /api/v1/add HTTP/1.1\r\nContent-Length: 4194305\r\n\r\n") as client:
        assert refused(answer_on(client), 413, 5)
    raw = b"POST /api/v1/add HTTP/1.1\r\nContent-Length: 4194305\r\n\r\n" + b"b" * 4194305
    with front.connect() as client:
        client.sendall(raw)
        assert refused(answer_on(client), 413, 5)
    assert front.well()


def test_a_flood_after_a_refusal_is_cut(front: Front) -> None:
    """A caller that goes on sending after a refusal is disconnected after as much as the largest request."""
    with front.connect() as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(b"\r\n\r\n" + b"f" * 64 * 1024 * 1024)
    front.wait_for(0)
    assert front.well()


def test_a_truncated_body(front: Front) -> None:
    """A request that ends before its body does is refused, and runs nothing."""
    with front.send(ADD[:-3]) as client:
        client.shutdown(socket.SHUT_WR)
        assert refused(answer_on(client), 400, 111)
    front.send(ADD[:-3]).close()
    front.wait_for(0)
    assert front.held.empty()
    assert front.lost == []


def test_peers_that_never_read(front: Front) -> None:
    """A hundred big answers that are not taken delay no other caller, on a worker's thread or on the server's own."""
    with ExitStack() as crowd:
        for _ in range(100):
            crowd.enter_context(front.send())
            front.next().answer(200, b"x" * 1024 * 1024)
        front.script = answer_at_once
        crowd.enter_context(front.send())
        assert front.well()


def test_room_is_made_for_who_comes() -> None:
    """At the limit the oldest connection without a whole request is closed, with a reason; one that is being served stays."""
    with Front(PeerLimits(connections=5)) as small, ExitStack() as crowd:
        served = crowd.enter_context(small.send())
        exchange = small.next()
        idle = [crowd.enter_context(small.connect()) for _ in range(4)]
        small.wait_for(5)
        assert small.well()
        assert refused(answer_on(idle[0]), 503, 11)
        exchange.answer(200, b"{}")
        assert answer_on(served).status == 200


def test_no_room_among_those_that_are_served() -> None:
    """When every connection is being served, the next one is refused at once."""
    with Front(PeerLimits(connections=2)) as small, small.send(), small.send(), small.connect() as late:
        small.next(), small.next()
        assert refused(answer_on(late), 503, 11)


def test_answered_connections_make_room() -> None:
    """A connection whose answer was sent is closed for a new one, and its answer does not count as lost."""
    with Front(PeerLimits(connections=1)) as small, small.send() as client:
        small.next().answer(200, b"{}")
        assert small.well()
        assert answer_on(client).status == 200
        assert small.lost == []


def test_unfinished_requests_are_bounded_together() -> None:
    """Large bodies that are nearly complete are limited in sum: the oldest is refused."""
    nearly = protocol.request_bytes("/api/v1/add", {}, b"b" * 200_000)[:-1]
    with Front(PeerLimits(held=1_000_000)) as small, ExitStack() as crowd:
        clients = [crowd.enter_context(small.send(nearly)) for _ in range(6)]
        assert refused(answer_on(clients[0]), 503, 11)
        assert small.well()
        for client in clients[1:]:
            client.sendall(b"b")
            small.next().answer(200, b"{}")
            assert answer_on(client).status == 200
        assert small.server._held == 0


def test_out_of_descriptors_an_idle_connection_makes_room(front: Front) -> None:
    """EMFILE closes the oldest connection that is not served, and the one that waits is taken."""
    with front.connect() as idle:
        front.wait_for(1)
        with socket.socket(socket.AF_UNIX) as client, descriptors(lowest_free()):
            client.settimeout(SECONDS)
            client.connect(front.path)
            client.sendall(HEALTH)
            assert answer_on(client).body == b"well\n"
        assert refused(answer_on(idle), 503, 11)


def test_out_of_descriptors_with_nobody_to_close(front: Front) -> None:
    """A peer that cannot be accepted waits in the kernel's queue, while the server does not spin, and is served later."""
    with front.send() as served, socket.socket(socket.AF_UNIX) as client:
        exchange = front.next()
        with descriptors(lowest_free()):
            client.settimeout(SECONDS)
            client.connect(front.path)
            client.sendall(HEALTH)
            wait_until(lambda: front.server._paused_until != float("inf"), SECONDS)
        assert answer_on(client).body == b"well\n"
        exchange.answer(200, b"{}")
        assert answer_on(served).status == 200


def answer_at_once(exchange: Exchange) -> None:
    """A big answer, written by the server's own thread."""
    exchange.answer(200, b"x" * 1024 * 1024)


def lowest_free() -> int:
    """A limit below which the process gets no further descriptor."""
    with Path("/dev/null").open() as probe:
        return probe.fileno()


def test_another_user_is_refused(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user other than root and the agent's own gets 403, even where the file system would allow the connect."""
    if os.geteuid() == 0:
        Path(front.path).parent.chmod(0o755)
        Path(front.path).chmod(0o666)
        argv = [str(Path(sys.executable).resolve()), "-I", "-c", STRANGER, front.path]
        user = NOBODY
        told = subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=True).stdout
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(server_module, "peer_of", lambda sock: (1, user, user))
        with front.connect() as client:
            told = client.recv(65536).decode()
        monkeypatch.undo()
    assert told.startswith("HTTP/1.1 403 ")
    assert f"user {user}" in told
    assert front.well()
