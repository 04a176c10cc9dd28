"""Requests reach the verbs complete, answers reach the caller, and the server knows which answers did not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.lab.node.front import ADD, HEALTH, SECONDS, Front, answer_on
from tests.lab.switch.switch import wait_until
from userspace_cni.agent import agent_server as serving
from userspace_cni.agent.agent_server import PeerLimits
from userspace_cni.agent.exchange import Exchange, refusing
from userspace_cni.agent.listener import peer_of
from userspace_cni.base.errors import Unavailable
from userspace_cni.cni import protocol

BIG = b"x" * (4 * 1024 * 1024)
"""More bytes than any socket buffer holds."""


@pytest.fixture
def front() -> Iterator[Front]:
    """A server with time limits that no test reaches."""
    with Front(PeerLimits(request_s=600, taken_s=600)) as started:
        yield started


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A server that gives a peer no time to read its answer, and looks often."""
    monkeypatch.setattr(serving, "_TICK_S", 0.05)
    with Front(PeerLimits(taken_s=0.1, unread_s=0.2)) as started:
        yield started


def lost(front: Front, exchange: Exchange) -> bool:
    """Whether the loss of this answer, and of no other, was reported within the time."""
    wait_until(lambda: front.lost, SECONDS)
    front.wait_for(0)
    return front.lost == [exchange]


def answered(front: Front, exchange: Exchange, body: bytes = b"{}") -> None:
    """Answer as a worker does, on a thread that is not the server's."""
    worker = threading.Thread(target=exchange.answer, args=(200, body))
    worker.start()
    worker.join(SECONDS)


def test_a_request_is_handed_on_whole(front: Front) -> None:
    """Verb, variables and stdin are complete when the verb is called, and the answer is the verb's."""
    with front.send(ADD) as client:
        exchange = front.next()
        assert (exchange.method, exchange.target, exchange.verb) == ("POST", "/api/v1/add", "ADD")
        assert protocol.environment(exchange.head)["CNI_IFNAME"] == "net1"
        assert exchange.headers["cni-containerid"] == "c0ffee"
        assert exchange.body == b'{"cniVersion":"1.1.0"}'
        answered(front, exchange, b"result")
        reply = answer_on(client)
    assert (reply.status, reply.body) == (200, b"result")
    front.wait_for(0)
    assert front.lost == []


def test_a_request_in_pieces_is_put_together(front: Front) -> None:
    """The stream may be cut anywhere, even within the end of the head."""
    raw = protocol.request_bytes("/api/v1/add", {"CNI_ARGS": "A=b"}, b"s" * 200_000)
    end = raw.index(protocol.HEAD_END)
    with front.connect() as client:
        for piece in (raw[:7], raw[7 : end + 2], raw[end + 2 : end + 3], raw[end + 3 : end + 10], raw[end + 10 :]):
            client.sendall(piece)
            assert front.well()
        exchange = front.next()
        assert exchange.body == b"s" * 200_000
        answered(front, exchange)
        assert answer_on(client).status == 200


def test_many_requests_run_at_once(front: Front) -> None:
    """Each caller gets its own answer, in whatever order they are answered."""
    clients = [front.send(protocol.request_bytes("/api/v1/add", {}, b"%d" % number)) for number in range(50)]
    exchanges = [front.next() for _ in clients]
    for exchange in reversed(exchanges):
        answered(front, exchange, b"answer to " + exchange.body)
    for number, client in enumerate(clients):
        with client:
            assert answer_on(client).body == b"answer to %d" % number


def test_a_big_answer_reaches_a_slow_reader(front: Front) -> None:
    """What does not fit the socket's buffer follows while the peer reads, and others are served in between."""
    with front.send() as client:
        exchange = front.next()
        answered(front, exchange, BIG)
        assert front.well()
        assert answer_on(client).body == BIG
    front.wait_for(0)
    assert front.lost == []


def test_the_first_answer_holds(front: Front) -> None:
    """A second answer is refused, so that a late one does no harm."""
    with front.send() as client:
        exchange = front.next()
        assert exchange.answer(500, b"first")
        assert not exchange.answer(200, b"second")
        assert answer_on(client).body == b"first"


def test_a_refusal_is_an_error_of_the_plugin(front: Front) -> None:
    """A request that cannot be served gets its own status and a CNI error."""
    with front.send() as client:
        front.next().refuse(Unavailable("too much to do", "try again later"))
        reply = answer_on(client)
    assert reply.status == 503
    assert b'"code":11' in reply.body


def test_a_fault_in_serving_is_answered(front: Front) -> None:
    """A bug in the called code fails only its own request, with code 999."""

    def fail(exchange: Exchange) -> None:
        raise KeyError("bug")

    front.script = fail
    reply = front.ask(ADD)
    assert (reply.status, b'"code":999' in reply.body) == (500, True)
    assert front.well()


def test_an_error_on_a_worker_is_the_answer(front: Front) -> None:
    """A job that fails with an error of ours, or a bug, is answered with that."""

    def refuse(exchange: Exchange) -> None:
        raise Unavailable("the records cannot be read")

    def fail(exchange: Exchange) -> None:
        raise KeyError("bug")

    for serve, status, code in ((refuse, 503, b'"code":11,'), (fail, 500, b'"code":999,')):
        with front.send() as client:
            exchange = front.next()
            with refusing(exchange):
                serve(exchange)
            reply = answer_on(client)
            assert (reply.status, code in reply.body) == (status, True)


def test_half_a_close_is_no_hang_up(front: Front) -> None:
    """A client that closes its sending side after the request gets its answer, which counts as received."""
    with front.send() as client:
        client.shutdown(socket.SHUT_WR)
        exchange = front.next()
        assert front.well()
        assert not exchange.hung_up
        answered(front, exchange)
        assert answer_on(client).status == 200
    front.wait_for(0)
    assert front.lost == []


def test_a_peer_that_hung_up_before_the_answer_has_lost_it(front: Front) -> None:
    """The verb runs to its end, can see that its caller has gone, and its answer is reported as lost."""
    front.send().close()
    exchange = front.next()
    wait_until(lambda: exchange.hung_up, SECONDS)
    front.wait_for(0)
    assert front.lost == []
    answered(front, exchange)
    assert lost(front, exchange)
    assert exchange.status == 200


def test_a_peer_that_closed_unnoticed_has_lost_the_answer(front: Front) -> None:
    """When writing fails with EPIPE before the server has noticed the close, the answer is lost, too."""
    closed = threading.Event()
    seen = []

    def answer_late(exchange: Exchange) -> None:
        closed.wait(SECONDS)
        seen.append(exchange)
        exchange.answer(200, b"{}")

    front.script = answer_late
    front.send().close()
    closed.set()
    wait_until(lambda: seen, SECONDS)
    assert lost(front, seen[0])


def test_a_peer_that_does_not_read_has_lost_the_answer_when_it_closes(front: Front) -> None:
    """An answer that was written completely and never read is lost: the peer's close resets the connection."""
    client = front.send()
    exchange = front.next()
    answered(front, exchange)
    assert front.well()
    assert front.lost == []
    client.close()
    assert lost(front, exchange)


def test_a_peer_that_reads_a_part_has_lost_the_answer(front: Front) -> None:
    """An answer with one byte unread is lost."""
    with front.send() as client:
        exchange = front.next()
        answered(front, exchange)
        client.recv(10)
    assert lost(front, exchange)


def test_a_peer_that_leaves_amid_a_big_answer_has_lost_it(front: Front) -> None:
    """So is an answer of which a part is not sent yet when the peer closes."""
    with front.send() as client:
        exchange = front.next()
        answered(front, exchange, BIG)
        assert len(client.recv(65536)) > 0
    assert lost(front, exchange)


def test_a_peer_that_can_not_read_any_more_has_lost_the_answer(front: Front) -> None:
    """After SHUT_RD writing fails though the connection exists, and the answer is lost."""
    with front.send() as client:
        exchange = front.next()
        client.shutdown(socket.SHUT_RD)
        answered(front, exchange)
        assert lost(front, exchange)


def test_an_answer_that_can_not_be_sent_in_time_is_lost(brisk: Front) -> None:
    """A large answer that the peer does not read is lost; the connection ends and others are served."""
    with brisk.send() as client:
        exchange = brisk.next()
        answered(brisk, exchange, BIG)
        assert brisk.well()
        assert lost(brisk, exchange)
        assert len(client.recv(100)) == 100


def test_doubt_keeps(brisk: Front) -> None:
    """A peer with the whole answer in its buffer may still read it: its connection ends, and no loss is reported."""
    with brisk.send() as client:
        answered(brisk, brisk.next())
        brisk.wait_for(0)
        assert brisk.lost == []
        assert answer_on(client).status == 200


def test_doubt_that_is_resolved(front: Front) -> None:
    """When a peer closes without reading, even long afterwards, the loss is reported."""
    with Front(PeerLimits(taken_s=0.05, unread_s=600)) as patient:
        client = patient.send()
        exchange = patient.next()
        answered(patient, exchange)
        wait_until(patient.server._doubted.first, SECONDS)
        client.close()
        assert lost(patient, exchange)


def test_a_peer_that_read_and_stays_is_let_go(brisk: Front) -> None:
    """An answer that was read is received; the server does not wait for the peer to close."""
    with brisk.send() as client:
        answered(brisk, brisk.next())
        assert answer_on(client).status == 200
        brisk.wait_for(0)
        assert client.recv(1) == b""
    assert brisk.lost == []


def test_a_fault_in_acting_on_a_loss_costs_nobody_else(front: Front) -> None:
    """A bug in the callback for a loss ends neither the server's thread nor the worker's."""

    def fail(exchange: Exchange) -> None:
        raise KeyError("bug")

    front.server._on_lost = fail
    client = front.send()
    answered(front, front.next())
    client.close()
    front.wait_for(0)
    assert front.well()


def test_the_callers_identity_is_the_kernels_word(front: Front) -> None:
    """Process and user of the caller come from the kernel."""
    import os

    with front.send():
        assert peer_of(front.next().socket) == (os.getpid(), os.geteuid(), os.getegid())


def test_stopping_lets_running_requests_end(front: Front) -> None:
    """After SIGTERM no new caller finds the socket, and a caller that is being served gets the answer."""
    with front.send() as client:
        exchange = front.next()
        front.server.stop_accepting()
        with pytest.raises(FileNotFoundError):
            front.connect()
        answered(front, exchange)
        assert answer_on(client).status == 200
    front.server.stop_accepting()


def test_stopping_serves_who_has_connected_already(front: Front) -> None:
    """A request that waits in the kernel's queue when the stop comes is not reset."""
    busy, go_on = threading.Event(), threading.Event()

    def keep_busy(exchange: Exchange) -> None:
        busy.set()
        go_on.wait(SECONDS)
        exchange.answer(200, b"{}")

    front.script = keep_busy
    with front.send() as first:
        assert busy.wait(SECONDS)
        with front.send(HEALTH) as second:
            stopping = threading.Thread(target=front.server.stop_accepting)
            stopping.start()
            go_on.set()
            stopping.join(SECONDS)
            assert answer_on(first).status == 200
            assert answer_on(second).body == b"well\n"


def test_closing_ends_what_is_not_answered(front: Front) -> None:
    """At the final close a caller sees its connection end, and answering it is refused."""
    with front.send() as client:
        exchange = front.next()
        front.server.stop()
        assert client.recv(1) == b""
        assert not exchange.answer(200, b"{}")
    assert not front.server.alive
