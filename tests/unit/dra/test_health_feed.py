"""The health of devices as a kubelet hears it: over a real connection, in each version of the service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.dra import health_feed
from userspace_cni.dra.health_feed import SERVICES, HealthFeed
from userspace_cni.dra.protocol import health_v1_pb2 as v1
from userspace_cni.dra.protocol import health_v1alpha1_pb2 as v1alpha1

ANSWERS = {"v1": v1, "v1beta1": v1, "v1alpha1": v1alpha1}


class WatchingKubelet:
    """A kubelet's connection to a driver that has only this feed."""

    def __init__(self, path: Path) -> None:
        self.feed = HealthFeed("n1")
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(tuple(self.feed.handlers()))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()
        self._channel = grpc.insecure_channel(f"unix:{path}")

    def watch(self, service: str) -> Any:
        messages = ANSWERS[service.partition(".")[0]]
        call = self._channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        return call(messages.NodeWatchResourcesRequest(), timeout=60)

    def stop(self) -> None:
        self.feed.close()
        self._channel.close()
        self._server.stop(0).wait(60)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[WatchingKubelet]:
    kubelet = WatchingKubelet(tmp_path / "dra.sock")
    yield kubelet
    kubelet.stop()


def told(answer: Any) -> dict[str, int]:
    assert {each.device.pool_name for each in answer.devices} == {"n1"}
    assert all(each.last_updated_time > 0 for each in answer.devices)
    return {each.device.device_name: each.health for each in answer.devices}


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_kubelet_hears(kubelet: WatchingKubelet, service: str) -> None:
    """All devices when it begins to watch, and all again with each change."""
    kubelet.feed.tell({"br0": True, "br1": True})
    stream = kubelet.watch(service)
    assert told(next(stream)) == {"br0": v1.HEALTHY, "br1": v1.HEALTHY}
    kubelet.feed.tell({"br0": False})
    answer = next(stream)
    assert told(answer) == {"br0": v1.UNHEALTHY}
    if service != "v1alpha1.DRAResourceHealth":
        assert "ovs-vswitchd" in answer.devices[0].message
    stream.cancel()


def test_it_is_said_again(kubelet: WatchingKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any change, too: a kubelet forgets what it has not heard for a while."""
    monkeypatch.setattr(health_feed, "AGAIN_S", 0.01)
    kubelet.feed.tell({"br0": True})
    stream = kubelet.watch("v1.DRAResourceHealth")
    assert [told(next(stream)) for _ in range(3)] == [{"br0": v1.HEALTHY}] * 3
    stream.cancel()


def test_nothing_is_said_of_the_unknown(kubelet: WatchingKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the bridges are known a kubelet is sent nothing; the stream ends with the agent."""
    monkeypatch.setattr(health_feed, "AGAIN_S", 0.01)
    stream = kubelet.watch("v1.DRAResourceHealth")
    kubelet.feed.close()
    assert list(stream) == []


def test_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a few are refused: each keeps a thread of those that serve calls about claims. One that ends makes room."""
    monkeypatch.setattr(health_feed, "STREAMS_MAX", 2)
    kubelet = WatchingKubelet(tmp_path / "dra.sock")
    kubelet.feed.tell({"br0": True})
    first, second = (kubelet.watch(service) for service in SERVICES[:2])
    assert told(next(first)) == told(next(second)) == {"br0": v1.HEALTHY}
    with pytest.raises(grpc.RpcError, match="2 streams of health are open"):
        next(kubelet.watch(SERVICES[0]))
    first.cancel()

    def taken() -> bool:
        stream = kubelet.watch(SERVICES[2])
        try:
            return told(next(stream)) == {"br0": v1.HEALTHY}
        except grpc.RpcError:
            return False

    wait_until(taken, what="room for another stream")
    kubelet.stop()
