"""The kubelet of the tests treats a driver of devices as the real one does: shown with a driver that only counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.lab.dra.dra_kubelet import DraKubelet
from tests.lab.dra.plugin_registry import VERSIONS, KubeletError
from tests.lab.dra.scheduled_claims import Given, Scheduler
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.switch.switch import wait_until
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.dra.protocol import pluginregistration_v1_pb2 as registration
from userspace_cni.linux.closing import Closing

BLUE = Given(["br-blue"])
RED = Given(["br-red"], "other")


class Driver(Closing):
    """One instance of a driver. `statuses`: what it was told of its registration; `fails`: what it answers instead of devices."""

    def __init__(
        self, root: Path, name: str = "a", versions: tuple[str, ...] = ("v1", "v1beta1"), kind: str = "DRAPlugin"
    ) -> None:
        self.statuses: list[tuple[bool, str]] = []
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self.fails = ""
        self.endpoint = str(root / f"{name}-dra.sock")
        self._info = registration.PluginInfo(
            type=kind, name=DRIVER, endpoint=self.endpoint, supported_versions=[f"{each}.DRAPlugin" for each in versions]
        )
        self._servers = [self._served(root / "plugins_registry" / f"{name}-reg.sock", "pluginregistration.Registration")]
        self._servers.append(
            self._served(Path(self.endpoint), *(f"k8s.io.kubelet.pkg.apis.dra.{each}.DRAPlugin" for each in versions))
        )

    def close(self) -> None:
        """End, as a process does that is told to."""
        while self._servers:
            self._servers.pop().stop(0).wait()

    def _served(self, path: Path, *services: str) -> Any:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        handlers = [grpc.method_handlers_generic_handler(each, self._handlers(each.split(".")[-2])) for each in services]
        server = grpc.server(ThreadPoolExecutor(2), handlers=handlers)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def _handlers(self, version: str) -> dict[str, Any]:
        if version == "pluginregistration":
            return {
                "GetInfo": _unary(lambda _: self._info, registration.InfoRequest),
                "NotifyRegistrationStatus": _unary(self._told, registration.RegistrationStatus),
            }
        messages = VERSIONS[version]
        return {
            "NodePrepareResources": _unary(
                lambda request: self._prepare(request, messages), messages.NodePrepareResourcesRequest
            ),
            "NodeUnprepareResources": _unary(
                lambda request: self._unprepare(request, messages), messages.NodeUnprepareResourcesRequest
            ),
        }

    def _told(self, status: Any) -> Any:
        self.statuses.append((status.plugin_registered, status.error))
        return registration.RegistrationStatusResponse()

    def _prepare(self, request: Any, messages: Any) -> Any:
        self.prepared += [each.uid for each in request.claims]
        device = messages.Device(request_names=["net"], pool_name="n1", device_name="br-blue", cdi_device_ids=["v/c=d"])
        answer = messages.NodePrepareResourceResponse(devices=[] if self.fails else [device], error=self.fails)
        return messages.NodePrepareResourcesResponse(claims={each.uid: answer for each in request.claims})

    def _unprepare(self, request: Any, messages: Any) -> Any:
        self.unprepared += [each.uid for each in request.claims]
        answer = messages.NodeUnprepareResourceResponse()
        return messages.NodeUnprepareResourcesResponse(claims={each.uid: answer for each in request.claims})


def _unary(act: Callable[[Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        lambda sent, _: act(sent), request.FromString, lambda made: made.SerializeToString()
    )


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with ApiServer() as api:
        yield Scheduler(api)


@pytest.fixture
def kubelet(tmp_path: Path, scheduler: Scheduler) -> Iterator[DraKubelet]:
    with DraKubelet(tmp_path, tmp_path / "dra_manager_state", scheduler.read) as made:
        yield made


def test_a_claim_is_prepared_once_in_a_kubelets_life(tmp_path: Path, kubelet: DraKubelet, scheduler: Scheduler) -> None:
    """Two pods with one claim are one call, and only the end of the last one has it unprepared; a new kubelet calls again."""
    first, second = Pod("a"), Pod("b")
    uid = scheduler.claim("c", first, BLUE)
    scheduler.reserve("c", first, second)
    with Driver(tmp_path) as driver:
        kubelet.await_driver(DRIVER)
        for pod in (first, second):
            kubelet.admit(pod, "c")
        assert (driver.prepared, kubelet.cdi_devices(second, "net")) == ([uid], ["v/c=d"])
        assert kubelet.cdi_devices(second, "other") == []
        kubelet.restart()
        assert kubelet.cdi_devices(first) == ["v/c=d"]
        kubelet.await_driver(DRIVER)
        kubelet.end(first)
        assert (driver.unprepared, kubelet.remembers()) == ([], [uid])
        kubelet.admit(second, "c")
        assert driver.prepared == [uid, uid]
        scheduler.delete("c")
        kubelet.reconcile()
        assert (driver.unprepared, kubelet.remembers()) == ([uid], [])


def test_all_claims_of_a_pod_are_one_call(tmp_path: Path, kubelet: DraKubelet, scheduler: Scheduler) -> None:
    """A pod with two claims is one call of each kind; while one of them fails nothing is taken for prepared."""
    pod = Pod()
    uids = [scheduler.claim(name, pod, given) for name, given in (("c", BLUE), ("d", RED))]
    with Driver(tmp_path) as driver:
        kubelet.await_driver(DRIVER)
        driver.fails = "no switch"
        with pytest.raises(KubeletError, match=r"NodePrepareResources failed for ResourceClaim .*: no switch"):
            kubelet.prepare(pod, "c", "d")
        driver.fails = ""
        kubelet.admit(pod, "c", "d")
        kubelet.end(pod)
    assert [each.claims for each in kubelet.calls] == [tuple(uids)] * 3


def test_instances_beside_each_other(tmp_path: Path, kubelet: DraKubelet, scheduler: Scheduler) -> None:
    """The instance that registered last is called; when it goes the one before is called again, and without any none is."""
    pod = Pod()
    scheduler.claim("c", pod, BLUE)
    with Driver(tmp_path, "a") as old:
        kubelet.await_driver(DRIVER)
        with Driver(tmp_path, "b", ("v1beta1",)) as new:
            kubelet.await_driver(DRIVER, 2)
            kubelet.admit(pod, "c")
            assert (len(new.prepared), len(old.prepared)) == (1, 0)
        kubelet.end(pod)
        assert [(each.version, each.endpoint) for each in kubelet.calls] == [("v1beta1", new.endpoint), ("v1", old.endpoint)]
        assert new.statuses == old.statuses == [(True, "")]
    wait_until(lambda: not kubelet.registry.instances(DRIVER), what="no instance")
    with pytest.raises(KubeletError, match=f"DRA driver {DRIVER} is not registered"):
        kubelet.prepare(pod, "c")
    assert kubelet.remembers() == []


@pytest.mark.parametrize(
    ("about", "words"),
    [({"versions": ()}, "none of services supported"), ({"kind": "CSIPlugin"}, "no handler registered")],
)
def test_a_plugin_that_is_not_taken(tmp_path: Path, kubelet: DraKubelet, about: dict[str, Any], words: str) -> None:
    """A plugin of another kind, or of versions that the kubelet does not know, is told so, again and again."""
    with Driver(tmp_path, **about) as driver:
        wait_until(lambda: len(driver.statuses) >= 2, what="two refusals")
        assert not driver.statuses[0][0]
        assert words in driver.statuses[0][1]


def test_who_may_use_a_claim(kubelet: DraKubelet, scheduler: Scheduler) -> None:
    """Without a claim, a reservation for the pod or a driver the pod does not start, and the kubelet remembers nothing of it."""
    pod = Pod()
    with pytest.raises(KubeletError, match="fetch ResourceClaim c: not found"):
        kubelet.prepare(pod, "c")
    scheduler.claim("c", Pod("another"), BLUE)
    with pytest.raises(KubeletError, match="is not allowed to use ResourceClaim c"):
        kubelet.prepare(pod, "c")
    scheduler.reserve("c", pod)
    with pytest.raises(KubeletError, match="is not registered"):
        kubelet.prepare(pod, "c")
    assert kubelet.remembers() == []
