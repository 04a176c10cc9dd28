"""The driver's sockets as a kubelet calls them, beside a client that does not end its calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.base.errors import UserspaceError
from userspace_cni.dra.dra_node import ClaimRef, Prepared
from userspace_cni.dra.dra_sockets import CALLS_MAX, DraSockets
from userspace_cni.dra.protocol import dra_v1_pb2 as dra_v1

METHOD = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"


class EmptyNode:
    """A node on which every claim is prepared, without devices."""

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        return {each.uid: Prepared() for each in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, UserspaceError | None]:
        return {each.uid: None for each in claims}


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    """A kubelet's directory with a short path: one of a socket has 107 bytes."""
    with TemporaryDirectory(prefix="uc-") as made:
        (Path(made) / "plugins_registry").mkdir()
        yield Path(made)


@pytest.fixture
def sockets(kubelet_dir: Path) -> Iterator[DraSockets]:
    served = DraSockets(EmptyNode(), str(kubelet_dir), str(kubelet_dir))
    assert served.serve()
    yield served
    served.close()


@contextmanager
def channel(kubelet_dir: Path) -> Iterator[grpc.Channel]:
    """A connection of its own."""
    [path] = (kubelet_dir / "plugins").glob("*/dra-*.sock")
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as made:
        yield made


@contextmanager
def hanging(kubelet_dir: Path) -> Iterator[None]:
    """A client with more calls than there are threads, none of which sends its request."""
    ending = threading.Event()

    def nothing() -> Iterator[bytes]:
        ending.wait(60)
        yield from ()

    with channel(kubelet_dir) as connection:
        calls = [connection.stream_unary(METHOD).future(nothing(), timeout=60) for _ in range(CALLS_MAX + 1)]
        try:
            yield
        finally:
            for each in calls:
                each.cancel()
            ending.set()


def prepare(connection: grpc.Channel) -> list[str]:
    """The UIDs of the answer to a call about u1."""
    call = connection.unary_unary(
        METHOD,
        request_serializer=dra_v1.NodePrepareResourcesRequest.SerializeToString,
        response_deserializer=dra_v1.NodePrepareResourcesResponse.FromString,
    )
    return list(call(dra_v1.NodePrepareResourcesRequest(claims=[dra_v1.Claim(uid="u1")]), timeout=30).claims)


def insist(connection: grpc.Channel) -> list[str]:
    """As `prepare`, again where a busy machine let the call look like one that hangs."""
    while True:
        try:
            return prepare(connection)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise


@pytest.mark.usefixtures("sockets")
def test_a_client_that_hangs(kubelet_dir: Path) -> None:
    """Calls of which no request comes, more than there are threads, leave threads for another client."""
    with hanging(kubelet_dir), channel(kubelet_dir) as kubelet:
        assert prepare(kubelet) == ["u1"]


def test_several_clients_that_hang(kubelet_dir: Path, sockets: DraSockets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls whose requests do not come are ended after a while, so that others are answered also when these had all threads."""
    monkeypatch.setattr("userspace_cni.dra.dra_sockets.REQUEST_S", 0.5)
    with ExitStack() as clients, channel(kubelet_dir) as kubelet, ThreadPoolExecutor(1) as threads:
        for _ in range(3):
            clients.enter_context(hanging(kubelet_dir))
        wait_until(lambda: sockets.waiting >= CALLS_MAX, what="all threads to wait for requests")
        answer = threads.submit(insist, kubelet)

        def answered() -> bool:
            sockets.end_late()
            return answer.done()

        wait_until(answered, what="the kubelet's call to be answered")
        assert answer.result() == ["u1"]
