"""`userspace-cni controller` as a process: it needs an account, answers probes and scrapers, and releases its Lease."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node, ours, spec, state
from tests.lab.kube.definitions import defined_server
from tests.lab.switch.switch import wait_until
from userspace_cni.controller.election import NAME

COMMAND = [sys.executable, "-m", "userspace_cni", "controller"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Process:
    """A controller with a kubeconfig, and its two ports."""

    def __init__(self, kubeconfig: str) -> None:
        self.health, self.metrics = free_port(), free_port()
        environ = {
            "USERSPACE_CNI_KUBECONFIG": kubeconfig,
            "USERSPACE_CNI_CONTROLLER_NAMESPACE": "system",
            "USERSPACE_CNI_HEALTH_LISTEN": f"127.0.0.1:{self.health}",
            "USERSPACE_CNI_METRICS_LISTEN": f"127.0.0.1:{self.metrics}",
        }
        self.process = subprocess.Popen(COMMAND, env=os.environ | environ, stderr=subprocess.PIPE, text=True)

    def page(self, port: int, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """The value of a series without labels; -1 while there is none."""
        lines = self.page(self.metrics, "/metrics")[1].splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"userspace_cni_{name} ")), -1.0)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with our resources, and no object."""
    with defined_server() as started:
        yield started


@pytest.fixture
def controller(api: ApiServer, tmp_path: Path) -> Iterator[Callable[[], Process]]:
    path = api.kubeconfig(tmp_path)
    started: list[Process] = []

    def make() -> Process:
        started.append(Process(path))
        return started[-1]

    yield make
    for each in started:
        with suppress(ProcessLookupError):
            each.process.kill()
        each.process.communicate()


def test_two_controllers_from_start_to_end(api: ApiServer, controller: Callable[[], Process]) -> None:
    """One leads, writes and is ready, the other is ready; at SIGTERM the leader releases the Lease and ends with 0."""
    api.add(ours("ProviderNetwork", "net1", defaultInterface="eth1"))
    api.add(node("a"))
    api.add(state("a", [spec()]))
    first = controller()
    networks = api.objects("provider-networks.userspace-cni.io")
    wait_until(
        lambda: networks.get("", "net1").get("status", {}).get("ready"), what="two lists of everything, and the first round"
    )
    assert (first.metric("controller_leader"), first.metric("controller_nodestates")) == (1, 1)
    status, body = first.page(first.health, "/readyz")
    assert (status, json.loads(body)["problems"]) == (200, [])
    second = controller()
    wait_until(lambda: second.page(second.health, "/readyz")[0] == 200)
    assert second.metric("controller_leader") == 0
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) == 0
    lease = api.objects("leases.coordination.k8s.io").get("system", NAME)["spec"]
    assert lease["holderIdentity"] == "" or lease["leaseTransitions"] == 1  # given back, or taken already
    writes = [request for request in api.requests if request.method != "GET" and "leases" not in request.path]
    assert len(writes) == 1


def test_a_controller_without_its_server_is_alive_and_not_ready(api: ApiServer, controller: Callable[[], Process]) -> None:
    """/healthz succeeds, because a restart would not help; /readyz says what is missing."""
    api.faults.append(Fault(status=403))
    process = controller()
    wait_until(lambda: "403" in process.page(process.health, "/readyz")[1])
    assert process.page(process.health, "/healthz")[0] == 200


def test_a_controller_without_an_account_says_so() -> None:
    """It ends at once, and names the setting."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("KUBERNETES_", "USERSPACE_CNI_"))}
    done = subprocess.run(COMMAND, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no account of the API server; the setting kubeconfig" in done.stderr
