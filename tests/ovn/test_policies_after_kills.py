"""Two controllers keep policies, and the one that acts is killed amid changes: with a real northbound database, without OVN."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.switch.switch import wait_until
from tests.ovn.test_kept_logical_ports import api, northbound, noted  # noqa: F401 - fixtures
from tests.ovn.test_kept_policies import POLICIES, addresses, groups, labelled, policy, put, transactions

COMMAND = (sys.executable, "-m", "userspace_cni", "ovn", "watch")
WEB, CLIENT = {"app": "web"}, {"app": "client"}
COUNT = 8
BORN = 40
"""Ports that are to be made before a kill, and after it."""
Watch = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def watch(api: ApiServer, northbound: NorthboundDatabase, tmp_path: Path) -> Iterator[Watch]:  # noqa: F811
    """Starts a controller, and kills it at the end."""
    made: list[subprocess.Popen[bytes]] = []
    settings = {
        "USERSPACE_CNI_OVN_NB": northbound.remote("unix"),
        "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path),
        "USERSPACE_CNI_CONTROLLER_NAMESPACE": "system",
    }

    def start() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(COMMAND, env=os.environ | settings))
        return made[-1]

    yield start
    for each in made:
        each.kill()
        each.wait(60)


def change_on(api: ApiServer, over: threading.Event) -> None:  # noqa: F811
    """Have pods and policies come and go until it is over; then none is left of them."""
    others = [
        policy(f"p{number}", podSelector={"matchLabels": WEB}, ingress=[{"from": [_peer(number)]}]) for number in range(COUNT)
    ]
    while not over.is_set():
        for number, each in enumerate(others):
            put(api, each)
            api.add_pod(labelled(f"row{number}", WEB if number % 2 else CLIENT))
            over.wait(0.05)
        for number in range(COUNT):
            api.objects(POLICIES).remove("default", f"p{number}")
            api.remove_pod("default", f"row{number}")
            over.wait(0.02)


def _peer(number: int) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"app": f"absent{number}"}}}


def births(northbound: NorthboundDatabase) -> list[tuple[str, str, Mapping[str, Any]]]:  # noqa: F811
    """Row and name of each logical port of a pod that was made, with the transaction."""
    found, known = [], set[str]()
    for each in transactions(northbound):
        for row, columns in each.get("Logical_Switch_Port", {}).items():
            if row not in known and columns and str(columns.get("name", "")).startswith("default_row"):
                known.add(row)
                found.append((row, columns["name"], each))
    return found


def test_a_controller_that_is_killed_amid_changes(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    watch: Watch,
) -> None:
    """The other one goes on: each port was made isolated, and in the end the rows are those of what there is."""
    put(api, policy("closed", podSelector={"matchLabels": WEB}, ingress=[{"from": [{"podSelector": {"matchLabels": CLIENT}}]}]))
    first = watch()
    over = threading.Event()
    changing = threading.Thread(target=change_on, args=(api, over))
    changing.start()
    try:
        wait_until(lambda: len(births(northbound)) > BORN, what="ports of the first")
        watch()
        before = len(births(northbound))
        wait_until(lambda: len(births(northbound)) > before + BORN, what="ports while there are two")
        first.kill()
        first.wait(60)
        before = len(births(northbound))
        wait_until(lambda: len(births(northbound)) > before + BORN, seconds=120, what="ports of the second")
    finally:
        over.set()
        changing.join()
    for name, labels in (("web", WEB), ("client", CLIENT)):
        api.add_pod(labelled(name, labels))
    wait_until(lambda: noted(api, "web") and noted(api, "client"), what="the last pods")
    wanted = {"default/closed": {"default_web"}, "default ingress": {"default_web"}, "None None": set[str]()}
    wait_until(lambda: groups(northbound) == wanted, what="the rows of one policy")
    wait_until(lambda: addresses(northbound) == [{noted(api, "client").partition("/")[0]}], what="its peer")
    isolated = [(row, each) for row, name, each in births(northbound) if int(name.removeprefix("default_row")) % 2]
    assert len(isolated) > BORN
    for row, each in isolated:
        joined = [group for group in each.get("Port_Group", {}).values() if group and row in str(group.get("ports", ""))]
        assert len(joined) >= 2, each
