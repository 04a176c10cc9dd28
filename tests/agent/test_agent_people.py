"""The commands for people beside a running agent agree with it and with the switch, and make it do its work."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.living import LiveNode, container, port_of, serving
from tests.cni.spec import row_of, succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.kube.pods import Pod
from tests.lab.node import agent
from tests.lab.node.inside import killed_at
from tests.lab.node.node import CONTAINER
from tests.lab.switch.switch import FOR_EVER_S, wait_until


def test_they_agree(live: LiveNode, sandbox: str) -> None:
    """list, show, check and status report the same as the agent's page, the records and the switch."""
    live.start(FIRST_S=FOR_EVER_S)
    pod, client, server = Pod(), live.network("1.0.0", ipam=live.host_local(), name="blue"), serving(live, name="red")
    client["host"]["bridge"]["vlanId"] = 100
    live.empty_dir(pod.uid)
    added = succeeded(live.run("ADD", client, sandbox, CNI_ARGS=pod.args))
    succeeded(live.run("ADD", server, sandbox, container(1)))
    listed = decoded(live, "list")
    assert listed == live.page("/api/v1/attachments")[1]
    first, second = sorted(listed, key=lambda each: str(each["network"]))
    assert (first["name"], second["name"]) == ("default/app/net1", f"{container(1)[:12]}/net1")
    assert (first["container"], first["addresses"], first["vlan"]["tag"]) == (CONTAINER, [added["ips"][0]["address"]], 100)
    assert first["socket"]["ovs"] == row_of(live)["options"]["vhost-server-path"]
    assert Path(second["socket"]["host"]).is_socket()
    [shown] = decoded(live, "show", "app")
    assert {key: shown[key] for key in first if key != "steps"} == {key: first[key] for key in first if key != "steps"}
    assert [step["step"] for step in shown["steps"]] == first["steps"]
    assert cli(live, "check").stderr.endswith("2 attachments checked, no differences\n")
    status = decoded(live, "status")
    assert status["agent"]["reachable"]
    assert status["agent"]["ready"]
    assert (status["records"]["ready"], status["unfinished"], status["spool"], status["findings"]) == (2, 0, 0, [])
    switch_of(live).vsctl("--no-wait", "set", "Port", port_of(), "tag=5")
    live.await_done("put-back-port", 1)
    assert cli(live, "check").stderr.endswith("2 attachments checked, no differences\n")
    switch_of(live).vsctl("--no-wait", "set", "Port", port_of(), "tag=5")  # soon again, it is left alone for a while
    assert [drift["found"] for drift in decoded(live, "check", code=1)["drifts"]] == ["5"]
    succeeded(live.run("DEL", client, sandbox))
    succeeded(live.run("DEL", server, sandbox, container(1)))
    assert decoded(live, "list") == live.page("/api/v1/attachments")[1] == []
    live.require_clean()


def test_the_page_while_the_daemon_is_dead(live: LiveNode, sandbox: str) -> None:
    """Page, list, metrics and status say that ovs-vswitchd is dead, and do not repeat its last states."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    assert decoded(live, "status")["applications"] == {"connected": 0, "waiting": 1, "broken": 0}
    wait_until(lambda: live.metric("ports", kind="dpdkvhostuserclient", link_state="down"), what="the port's link is down")
    assert [each["vswitchd"] for each in live.page("/api/v1/attachments")[1]] == ["alive"]
    switch_of(live).kill_vswitchd()
    try:
        [told] = live.page("/api/v1/attachments")[1]
        assert (told["vswitchd"], told["link_state"], told["vhost"]["state"]) == ("dead", "unknown", "unknown")
        assert decoded(live, "list", code=1) == [told]
        status = decoded(live, "status", code=1)
        assert (status["applications"], status["switch"]["vswitchd"]) == (None, "dead")
        assert "unknown, because ovs-vswitchd is dead" in cli(live, "status", code=1).stdout
        wait_until(lambda: live.metric("ports", kind="dpdkvhostuserclient", link_state="unknown"), what="the metrics say so")
        assert "userspace_cni_vhost_connected{" not in agent.get(live.socket, "/metrics")[1].decode()
    finally:
        switch_of(live).restart_vswitchd()
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


def test_gc_has_the_agent_do_it(live: LiveNode, sandbox: str) -> None:
    """When gc returns, the agent has undone what a dead ADD left, and made a lost port again, long before its next tick."""
    live.settings["USERSPACE_CNI_TICK_S"] = "10000"
    live.start()
    live.tick()
    succeeded(live.run("ADD", live.network(), sandbox, container(1)))
    assert killed_at(live.variables("ADD", sandbox), json.dumps(live.network()).encode(), "after port")
    [found] = decoded(live, "gc", "--dry-run", code=1)["found"]
    assert (found["container"], found["state"]) == (CONTAINER, "applying")
    assert len(live.states()) == 2
    done = decoded(live, "gc")
    assert (done["by"], done["actions"], done["remaining"]) == ("the agent", {"removed-unfinished": 1}, [])
    assert switch_of(live).ports("br-test") == [port_of(container(1))]
    live.await_done("removed-unfinished", 1)
    switch_of(live).vsctl("--no-wait", "del-port", port_of(container(1)))
    live.await_done("again-port", 1)  # the agent hears of it before gc can ask
    assert decoded(live, "gc")["found"] == []
    assert switch_of(live).ports("br-test") == [port_of(container(1))]
    succeeded(live.run("DEL", live.network(), sandbox, container(1)))
    live.require_clean()


def test_gc_without_an_agent(live: LiveNode, sandbox: str) -> None:
    """When no agent answers, gc shows and carries out spooled DELs itself."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    live.kill()
    succeeded(live.run("DEL", live.network(), sandbox))
    [found] = decoded(live, "gc", "--dry-run", code=1)["found"]
    assert (found["container"], found["problem"]) == (CONTAINER, "spooled-del")
    assert decoded(live, "status", code=1)["spool"] == 1
    done = decoded(live, "gc")
    assert (done["by"], done["remaining"]) == ("this process", [])
    live.require_clean()


def test_probes(live: LiveNode) -> None:
    """The exit code is 0 when all is well, 1 with the reasons, and 3 without an agent, whichever way that ended."""
    cli(live, "agent", "probe", "healthz", code=3)
    live.start()
    for probe in ("healthz", "readyz"):
        assert cli(live, "agent", "probe", probe).stdout == ""
    switch_of(live).stop_ovsdb()
    try:
        wait_until(lambda: live.page("/readyz")[0] != 200, what="the agent to see it")
        assert "OVSDB" in cli(live, "agent", "probe", "readyz", code=1).stdout
        assert decoded(live, "agent", "probe", "healthz") == {"problems": []}
        assert "OVSDB" in decoded(live, "status", code=1)["agent"]["problems"][0]
    finally:
        switch_of(live).restart_ovsdb()
    live.kill()
    cli(live, "agent", "probe", "readyz", code=3)
    assert decoded(live, "status", code=1)["agent"]["absent"] is False


def test_two_looks_take_one_command(live: LiveNode, sandbox: str) -> None:
    """gc waits for the second look and makes the agent remove what is dead, without a tick."""
    live.settings["USERSPACE_CNI_TICK_S"] = "600"
    live.start()
    gone = Path(sandbox).with_name("cni-gone")
    succeeded(live.run("ADD", live.network(), sandbox))
    record = next((live.state / "attachments").iterdir())
    text = record.read_text()
    edited = live.state / "edited"
    edited.write_text(text.replace(sandbox, str(gone)))
    edited.replace(record)  # a file that is written in place is seen within a minute
    done = decoded(live, "gc")
    assert (done["actions"].get("removed-sandbox-gone", 0), done["remaining"]) == (1, [])
    live.require_clean()
