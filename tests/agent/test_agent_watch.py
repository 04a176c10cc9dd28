"""The agent's reports about itself: whether it works, whether it could attach a pod, and its numbers."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.cni.spec import (
    finish,
    held,
    ipam,
    paused_ovsdb,
    paused_vswitchd,
    read_only,
    refused,
    scripted,
    start,
    succeeded,
    switch_of,
    tree,
)
from tests.lab.node.agent import get, value_of
from tests.lab.node.inside import killed_at
from tests.lab.switch.switch import FOR_EVER_S, wait_until

SECONDS = "userspace_cni_verb_seconds"


def problems(live: LiveNode, probe: str) -> list[str]:
    """The probe's complaints; its status has to say whether there are any."""
    status, page = live.page(f"/{probe}")
    assert status == (503 if page["problems"] else 200)
    found: list[str] = page["problems"]
    return found


def test_stuck_verb(live: LiveNode, sandbox: str) -> None:
    """A verb that runs longer than any deadline fails healthz, by its name and container, until it ends; others are served."""
    delegate = scripted(live)
    live.start(AGENT_S=0.2)
    assert problems(live, "healthz") == problems(live, "readyz") == []
    with held(delegate, "ADD", answer={}) as running:
        process = start(live, live.variables("ADD", sandbox), json.dumps(live.network(ipam=ipam(delegate))).encode())
        running()
        wait_until(lambda: problems(live, "healthz"), what="healthz to fail")
        [problem] = problems(live, "healthz")
        assert problem.startswith("ADD of container c0ffee0123456789")
        assert live.metric("workers_stuck") == 1
        assert problems(live, "readyz")
        succeeded(live.run("ADD", live.network(), sandbox, container(1)))
        succeeded(live.run("DEL", live.network(), sandbox, container(1)))
    assert finish(process, "ADD").status == 1
    wait_until(lambda: problems(live, "healthz") == [], what="healthz")
    assert live.metric("workers_stuck") == 0
    live.await_clean()


def test_stuck_reconciliation(live: LiveNode, sandbox: str) -> None:
    """A pass that does not come to its end fails healthz, until it does."""
    delegate = scripted(live)
    network = json.dumps(live.network(ipam=ipam(delegate))).encode()
    with held(delegate, "DEL") as running:
        assert killed_at(live.variables("ADD", sandbox), network, "after lease")
        live.start(PASS_S=0.2)
        running()
        wait_until(lambda: problems(live, "healthz"), what="healthz to fail")
        assert problems(live, "healthz") == ["reconciliation has not ended for 0 s"]
    wait_until(lambda: problems(live, "healthz") == [], what="healthz")
    live.await_clean()


def test_switch_hangs(live: LiveNode, sandbox: str) -> None:
    """While ovs-vswitchd is stopped STATUS answers at once, soon with 51, and readyz says why; neither writes anything."""
    switch = switch_of(live)
    live.settings["USERSPACE_CNI_DEADLINE_S"] = str(FOR_EVER_S)  # who waits for the switch does not come back
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    answers = []
    with paused_vswitchd(switch):
        before = (switch.dir / "conf.db").stat().st_size, tree(live.state), tree(live.short)
        answers.append(live.run("STATUS", live.network()))
        wait_until(lambda: problems(live, "readyz"), what="readyz to fail")
        assert "ovs-vswitchd is silent" in problems(live, "readyz")[0]
        answers.append(live.run("STATUS", live.network()))
        refused(answers[-1], 51, "ovs-vswitchd is silent")
        assert problems(live, "healthz") == []
        assert ((switch.dir / "conf.db").stat().st_size, tree(live.state), tree(live.short)) == before
    wait_until(lambda: problems(live, "readyz") == [], what="readyz")
    succeeded(live.run("STATUS", live.network()))
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


def test_ovsdb_hangs(live: LiveNode, sandbox: str) -> None:
    """While ovsdb-server is stopped STATUS and the probes answer at once; everything works again when it continues."""
    live.settings["USERSPACE_CNI_DEADLINE_S"] = str(FOR_EVER_S)  # who waits for the switch does not come back
    live.start()
    with paused_ovsdb(switch_of(live)):
        assert live.run("STATUS", live.network()).status in (0, 1)
        assert problems(live, "healthz") == []
        problems(live, "readyz")
        live.page("/api/v1/attachments")
        assert value_of(get(live.socket, "/metrics")[1].decode(), "userspace_cni_build_info") == 1
    wait_until(lambda: live.run("STATUS", live.network()).status == 0, what="STATUS")
    succeeded(live.run("ADD", live.network(), sandbox))
    succeeded(live.run("DEL", live.network(), sandbox))
    live.await_clean()


def test_a_directory_that_takes_nothing(live: LiveNode, sandbox: str) -> None:
    """While records cannot be written STATUS is 50 and readyz names the directory; ADD fails, and works again afterwards."""
    live.state.mkdir(mode=0o700)
    live.start()
    wait_until(lambda: problems(live, "readyz") == [], what="a switch that answers")
    with read_only(live.state):
        [problem] = problems(live, "readyz")
        assert f"directory {live.state}" in problem
        refused(live.run("STATUS", live.network()), 50, str(live.state))
        refused(live.run("ADD", live.network(), sandbox), 109, str(live.state))
        assert problems(live, "healthz") == []
    assert problems(live, "readyz") == []
    succeeded(live.run("ADD", live.network(), sandbox))
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


def test_numbers(live: LiveNode, sandbox: str) -> None:
    """Each call is counted by verb, stage and outcome; there are also ports, spool, transactions and actions.

    TCP serves them, too.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
    live.settings["USERSPACE_CNI_METRICS_LISTEN"] = listen
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    succeeded(live.run("ADD", network, sandbox))
    succeeded(live.run("ADD", serving(live), sandbox, container(1)))
    refused(live.run("ADD", network, sandbox), 101)
    refused(live.run("ADD", {**network, "host": {"engine": "vpp"}}, sandbox, container(2)), 2)
    refused(live.run("ADD", network, "/proc/none", container(2)), 4)
    for _ in range(2):
        succeeded(live.run("DEL", network, sandbox))
    live.await_served(ADD=5, DEL=2)
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=60) as answer:
        told = answer.read().decode()
    calls = {
        (verb, outcome): value_of(told, f"{SECONDS}_count", verb=verb, stage="total", outcome=outcome)
        for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS")
        for outcome in ("ok", "input", "step", "bug", "unavailable", "delegate")
    }
    expected = {("ADD", "ok"): 2, ("ADD", "input"): 2, ("ADD", "step"): 1, ("DEL", "ok"): 2}
    assert {key: count for key, count in calls.items() if count} == expected
    stages = {
        stage: value_of(told, f"{SECONDS}_sum", verb="ADD", stage=stage, outcome="ok")
        for stage in ("lock", "ipam", "plan", "ovs", "pod", "record")
    }
    assert all(stages.values()), stages
    assert sum(stages.values()) <= value_of(told, f"{SECONDS}_sum", verb="ADD", stage="total", outcome="ok")
    state = {"bridge": "br-test", "kind": "dpdkvhostuser"}
    assert value_of(told, "userspace_cni_ports", **state, link_state="down") == value_of(told, "userspace_cni_ports") == 1
    port = {"bridge": "br-test", "port": port_of(container(1))}
    assert (
        value_of(told, "userspace_cni_vhost_connected", **port) == value_of(told, "userspace_cni_vhost_negotiated", **port) == 0
    )
    assert value_of(told, "userspace_cni_ovsdb_group_size_count") >= 3
    assert value_of(told, "userspace_cni_ovsdb_reconnects_total") == value_of(told, "userspace_cni_spool_entries") == 0
    assert value_of(told, "userspace_cni_build_info") == 1
    assert value_of(told, "process_resident_memory_bytes") > 0
    switch_of(live).vsctl("--no-wait", "del-port", port_of(container(1)))
    live.tick()
    live.await_done("again-port", 1)
    succeeded(live.run("DEL", serving(live), sandbox, container(1)))
    assert live.metric("ports") == 0
    live.require_clean()


def test_spool_is_counted(live: LiveNode, sandbox: str) -> None:
    """DELs that wait because their container is busy are counted as the spool's length."""
    delegate = scripted(live)
    live.start()
    with held(delegate, "ADD", answer={}) as running:
        process = start(live, live.variables("ADD", sandbox), json.dumps(live.network(ipam=ipam(delegate))).encode())
        running()
        live.kill()
        succeeded(live.run("DEL", live.network(), sandbox))
        finish(process, "ADD")
        live.start()
        live.tick()
        assert live.metric("spool_entries") == 1
    live.await_clean()
    assert live.metric("spool_entries") == 0


def test_metrics_port_that_is_taken(live: LiveNode) -> None:
    """An agent that cannot listen for metrics says so and does not start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        live.settings["USERSPACE_CNI_METRICS_LISTEN"] = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AssertionError, match=r"listening on .*setting metrics_listen"):
            live.start()
    assert not Path(live.socket).exists()
