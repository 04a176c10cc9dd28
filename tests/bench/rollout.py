"""What a new agent on a node costs the pods that are attached there.

`python tests/bench/rollout.py [--json] [--attachments N] [--times N]`, as root, on a cluster of the lab with N attachments, of
which two send and answer frames a hundred times a second. For each rollout: seconds until the DaemonSet says that the node is
done, frames that were lost, and seconds until a pod that is made while the former agent ends is Running and Ready, beside those
of a pod that is made while nothing else happens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.lab.cluster.cluster import RUNNING_S, Cluster, one_cluster
from tests.lab.cluster.pods import attached_pod, network, tap_pod
from tests.lab.cluster.traffic import pings
from tests.lab.switch.switch import wait_until

MADE_S = 600.0
SENDING = ("left", "right")


def prepare(cluster: Cluster, attachments: int) -> None:
    """Make so many attachments; those of SENDING are connected."""
    cluster.join(network("dpdk-net"))
    cluster.apply(*(tap_pod(name, "eth1") for name in SENDING))
    names = [f"app-{number}" for number in range(attachments - len(SENDING))]
    for name in names:
        cluster.apply(attached_pod(name))
    cluster.wait_running(*SENDING, *names, seconds=MADE_S)
    for name in SENDING:
        cluster.wait_connected(name)


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    began = time.monotonic()
    call()
    return round(time.monotonic() - began, 2)


def make_pod(cluster: Cluster) -> float:
    """Seconds from a pod's creation until it is Ready; it is deleted then."""

    def make() -> None:
        cluster.apply(attached_pod("late"))
        cluster.wait_running("late")

    took = timed(make)
    cluster.delete("pod", "late", "--grace-period=1")
    return took


def roll_out(cluster: Cluster) -> dict[str, float]:
    former = cluster.agent_pod()["metadata"]["uid"]

    def ends() -> bool:
        metadata = cluster.agent_pod().get("metadata", {"uid": ""})
        return metadata["uid"] != former or "deletionTimestamp" in metadata

    with pings(cluster, *SENDING) as counted:
        node = timed(cluster.roll_out)
    lost, sent = counted.sent - counted.answered, counted.sent
    former = cluster.agent_pod()["metadata"]["uid"]
    with pings(cluster, *SENDING) as counted:
        cluster.begin_roll_out()
        wait_until(ends, RUNNING_S, "the former agent to end")
        pod = make_pod(cluster)
        cluster.end_roll_out()
    lost, sent = lost + counted.sent - counted.answered, sent + counted.sent
    return {"node": node, "sent": sent, "lost": lost, "pod": pod, "pod without": make_pod(cluster)}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attachments", type=int, default=50)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with one_cluster(0) as cluster:
        cluster.deploy()
        prepare(cluster, options.attachments)
        results = [roll_out(cluster) for _ in range(options.times)]
    if options.json:
        print(json.dumps(results))
        return
    table = Table(title=f"rollout over a node with {options.attachments} attachments")
    for name in ("node s", "frames sent", "lost", "pod in the gap s", "pod otherwise s"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
