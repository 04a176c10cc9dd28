"""What tests of the controller share: a real HTTP API server with our custom resources, and the controller's parts on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.definitions import defined_server
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.watches import Watches
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with our resources, and no object."""
    with defined_server() as started:
        yield started


@pytest.fixture
def session(api: ApiServer, tmp_path: Path) -> Callable[[], ApiSession]:
    """Makes a connection with the server."""
    path = api.kubeconfig(tmp_path)
    return lambda: Clients(KubeconfigBounds.of(Settings()), HERE, path).of("").session


@pytest.fixture
def watching(session: Callable[[], ApiSession]) -> Iterator[Callable[[Callable[[], None]], Watches]]:
    """Makes watches of all that the controller knows, which call the given function, and starts them."""
    made: list[Watches] = []

    def make(on_change: Callable[[], None]) -> Watches:
        made.append(Watches(session(), on_change, WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()
