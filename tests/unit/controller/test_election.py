"""One of several controllers leads: by a Lease of a real HTTP API server, with real threads and processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.switch.switch import wait_until
from userspace_cni.controller.election import NAME, Election, LeaseTimes
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.object_requests import Objects

QUICK = LeaseTimes(lease_s=1, renew_s=0.6, retry_s=0.1, again_s=0.1)
CANDIDATE = """
import sys, threading
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.election import Election, LeaseTimes
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.object_requests import Objects
session = Clients(KubeconfigBounds.of(Settings()), HERE, sys.argv[1]).of("").session
times = LeaseTimes(lease_s=1, renew_s=0.6, retry_s=0.1)
election = Election(Objects(session), "system", times, lambda: print("leads", flush=True))
election.start()
threading.Event().wait()
"""


@pytest.fixture
def candidate(session: Callable[[], ApiSession]) -> Iterator[Callable[[], Election]]:
    """Makes a candidate with a connection of its own, and starts it."""
    made: list[Election] = []

    def make(namespace: str = "system") -> Election:
        election = Election(Objects(session()), namespace, QUICK)
        election.start()
        made.append(election)
        return election

    yield make
    for each in made:
        each.stop()


def lease(api: ApiServer) -> dict[str, Any]:
    spec: dict[str, Any] = api.objects("leases.coordination.k8s.io").get("system", NAME)["spec"]
    return spec


def test_one_of_two_leads(api: ApiServer, candidate: Callable[[], Election]) -> None:
    """The first takes the Lease and renews it; the second waits, and does not write."""
    first = candidate()
    wait_until(lambda: first.leading)
    second = candidate()
    begun = lease(api)["renewTime"]
    wait_until(lambda: lease(api)["renewTime"] > begun and not second.problem)
    assert (lease(api)["holderIdentity"], second.leading) == (first.identity, False)
    assert {request.body["spec"]["holderIdentity"] for request in api.requests if request.method != "GET"} == {first.identity}


def test_a_leader_that_stops_gives_the_lease_back(api: ApiServer, candidate: Callable[[], Election]) -> None:
    """After SIGTERM of the leader another one leads at its next look, and the change is counted."""
    first, second = candidate(), candidate()
    wait_until(lambda: first.leading or second.leading)
    leader, other = (first, second) if first.leading else (second, first)
    leader.stop()
    assert not leader.leading
    wait_until(lambda: other.leading)
    assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"]) == (other.identity, 1)


def test_a_killed_leader_is_replaced(api: ApiServer, candidate: Callable[[], Election], tmp_path: Path) -> None:
    """A leader that died by SIGKILL has not given the Lease back: another one takes it when it was not renewed for its time."""
    command = [sys.executable, "-c", CANDIDATE, api.kubeconfig(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "leads\n"
        held = lease(api)
        other = candidate()
        wait_until(lambda: not other.problem)
        assert not other.leading
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: other.leading)
    assert lease(api)["holderIdentity"] != held["holderIdentity"]


def test_a_leader_that_cannot_renew_leads_no_longer(api: ApiServer, candidate: Callable[[], Election]) -> None:
    """A leader behind a partition stops before another one may take the Lease, and comes back when no other did."""
    leader = candidate()
    wait_until(lambda: leader.leading)
    api.faults.append(Fault(status=503))
    wait_until(lambda: not leader.leading and leader.problem)
    api.faults.clear()
    wait_until(lambda: leader.leading and not leader.problem)
    assert lease(api)["holderIdentity"] == leader.identity


def test_a_lapse_within_one_request_is_told(session: Callable[[], ApiSession]) -> None:
    """A leader whose renewal succeeded, but too late, is told to act again, because it dropped requests meanwhile."""
    told: list[None] = []
    late: list[None] = []

    class Slow(Objects):
        """The first renewal is answered when the former one has run out."""

        def replace(self, *args: Any, **options: Any) -> dict[str, Any]:
            if not late:
                late.append(None)
                wait_until(lambda: not election.leading)
            return super().replace(*args, **options)

    times = LeaseTimes(lease_s=10, renew_s=1.5, retry_s=1.2)
    election = Election(Slow(session()), "system", times, on_change=lambda: told.append(None))
    election.start()
    wait_until(lambda: late and election.leading)
    wait_until(lambda: len(told) == 2)
    election.stop()


def test_a_leader_is_never_doubled(api: ApiServer, candidate: Callable[[], Election]) -> None:
    """While the Lease goes to and fro between three, two never lead at the same time."""
    candidates = [candidate() for _ in range(3)]
    doubled = threading.Event()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            if sum(each.leading for each in candidates) > 1:
                doubled.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(2):
        wait_until(lambda: any(each.leading for each in candidates))
        holder = lease(api)["holderIdentity"]
        # renewals fail until the holder has to stop, and then the first one takes the Lease
        fault = Fault(method="PUT", status=503)
        api.faults.append(fault)
        wait_until(lambda: not any(each.leading for each in candidates))
        api.faults.remove(fault)
        assert lease(api)["holderIdentity"] == holder
    done.set()
    watcher.join()
    assert not doubled.is_set()


def test_the_times_of_other_clocks_count_for_nothing(api: ApiServer, candidate: Callable[..., Election]) -> None:
    """A Lease with times long ago, or in the future, is taken once it was seen unchanged for its duration."""
    candidates = []
    for year in ("1999", "2999"):
        stamp = f"{year}-01-01T00:00:00.000000Z"
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 1, "renewTime": stamp, "acquireTime": stamp}
        api.add({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}, f"of-{year}")
        candidates.append(candidate(f"of-{year}"))
    wait_until(lambda: not any(each.problem for each in candidates))
    assert not any(each.leading for each in candidates)
    wait_until(lambda: all(each.leading for each in candidates))


FAULTS = {"forbidden": Fault(status=403), "garbage": Fault(garbage=b"[]"), "hang": Fault(hang=60, times=1)}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_trouble_is_told_and_over_when_it_is_over(
    api: ApiServer, candidate: Callable[[], Election], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the Lease cannot be had there is a problem and no leader; afterwards there is a leader and no problem."""
    monkeypatch.setattr("userspace_cni.kube.object_requests.REQUEST_LIMIT_S", 0.5)
    api.faults.append(fault)
    election = candidate()
    wait_until(lambda: api.requests and election.problem != "the Lease was not read yet")
    assert election.problem
    assert not election.leading
    api.faults.clear()
    wait_until(lambda: election.leading)
