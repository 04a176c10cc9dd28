"""The driver's sockets as a kubelet calls them, beside a client that does not end its calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

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


def test_a_client_that_hangs(kubelet_dir: Path) -> None:
    """Calls of which no request comes, more than there are threads, leave threads for another client."""
    sockets = DraSockets(EmptyNode(), str(kubelet_dir), str(kubelet_dir))
    ending = threading.Event()

    def nothing() -> Iterator[bytes]:
        ending.wait(60)
        yield from ()

    assert sockets.serve()
    [path] = (kubelet_dir / "plugins").glob("*/dra-*.sock")
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as hanging:
        calls = [hanging.stream_unary(METHOD).future(nothing(), timeout=60) for _ in range(CALLS_MAX + 1)]
        with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as kubelet:
            call = kubelet.unary_unary(
                METHOD,
                request_serializer=dra_v1.NodePrepareResourcesRequest.SerializeToString,
                response_deserializer=dra_v1.NodePrepareResourcesResponse.FromString,
            )
            answer = call(dra_v1.NodePrepareResourcesRequest(claims=[dra_v1.Claim(uid="u1")]), timeout=30)
            assert list(answer.claims) == ["u1"]
        for each in calls:
            each.cancel()
        ending.set()
    sockets.close()
