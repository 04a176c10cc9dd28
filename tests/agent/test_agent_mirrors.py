"""The mirrors of the node's own settings: an agent keeps them on their bridges, through its death and without their table."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.agent.living import LiveNode
from tests.cni.spec import succeeded, switch_of
from tests.cni.test_cli_node import decoded
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import CONTAINER
from tests.lab.switch.switch import wait_until

TABLE = '\n[[mirror]]\nname = "m0"\nbridge = "br-test"\noutput = "uc-mirror0"\nselect = "joined"\n'


def test_mirrors_of_the_settings(live: LiveNode, sandbox: str) -> None:
    """They are made when the bridge comes, with the ports that join, stay over kill -9, and go with the table; others' stay.

    A DEL of a chained plugin that was called without an agent does not count as the attachment's own.
    """
    switch, settings = switch_of(live), live.directory / "mirrors.toml"
    live.settings["USERSPACE_CNI_CONFIG"] = str(settings)
    settings.write_text(TABLE)
    network = live.network(mirrors=[{"name": "m0", "to": True}])
    live.start()
    assert switch.rows("Mirror") == []
    wait_until(lambda: list(live.page("/api/v1/network")[1]["mirrors"]) == ["m0 on br-test"], what="it is told that it awaits")
    assert "there is no bridge br-test" in decoded(live, "network", code=1)["mirrors"]["m0 on br-test"]
    succeeded(live.run("ADD", network, sandbox))
    port = f"{CONTAINER[:12]}-net1"
    row = wait_until(lambda: switch.row("Mirror", "m0"), what="the mirror of the bridge that came")
    assert row["output_port"] == switch.port("uc-mirror0")["_uuid"]
    assert row["select_dst_port"] == switch.port(port)["_uuid"]
    wait_until(lambda: live.page("/api/v1/network")[1]["mirrors"] == {}, what="it is told that it holds")
    switch.vsctl("--", "--id=@m", "create", "Mirror", "name=theirs", "--", "add", "Bridge", "br-test", "mirrors", "@m")
    live.kill()
    producer = {"cniVersion": "1.1.0", "name": network["name"], "type": "ovs-mirror-producer", "mirrors": [{"name": "x"}]}
    succeeded(live.run("DEL", producer, sandbox))
    assert len(list(live.spool.iterdir())) >= 1
    live.start()
    assert live.states() == ["ready"]
    assert {each["name"] for each in switch.rows("Mirror")} == {"m0", "theirs"}
    live.end()
    settings.write_text("")
    live.start()
    wait_until(lambda: [each["name"] for each in switch.rows("Mirror")] == ["theirs"], what="the mirror is gone")
    assert switch.ports("br-test") == [port]
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_mirrors_go_with_the_installation(live: LiveNode) -> None:
    """`uninstall` removes a dead agent's mirror with its output; the administrator's bridge stays."""
    switch, settings = switch_of(live), live.directory / "mirrors.toml"
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    live.settings["USERSPACE_CNI_CONFIG"] = str(settings)
    settings.write_text(TABLE)
    live.start()
    wait_until(lambda: switch.row("Mirror", "m0"), what="the mirror")
    live.kill()
    done = run_command(live.environ, "uninstall", f"--bin-dir={Path(live.plugin).parent}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (switch.rows("Mirror"), switch.ports("br-test")) == ([], [])
    switch.vsctl("del-br", "br-test")


def test_mirrors_are_read_again(live: LiveNode, sandbox: str) -> None:
    """On SIGHUP a mirror is made, gets another output, and is removed, while the pod's port stays.

    With a wrong or missing file it stays.
    """
    switch, settings = switch_of(live), live.directory / "mirrors.toml"
    live.settings["USERSPACE_CNI_CONFIG"] = str(settings)
    settings.write_text("")
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    port = f"{CONTAINER[:12]}-net1"

    def outputs() -> list[list[str]]:
        ports = {each["_uuid"]: each["name"] for each in switch.rows("Port")}
        return [[each["name"], ports.get(each["output_port"], "")] for each in switch.rows("Mirror")]

    def write(text: str) -> None:
        settings.write_text(text)
        os.kill(live.pid, signal.SIGHUP)

    write(TABLE)
    wait_until(lambda: outputs() == [["m0", "uc-mirror0"]], what="the mirror")
    write(TABLE.replace("uc-mirror0", "uc-mirror1"))
    wait_until(lambda: outputs() == [["m0", "uc-mirror1"]], what="its other output")
    assert sorted(switch.ports("br-test")) == sorted([port, "uc-mirror1"])
    write(TABLE + "nonsense")
    wait_until(lambda: "cannot be read again" in live.log.read_text(), what="the agent has read")
    settings.unlink()
    os.kill(live.pid, signal.SIGHUP)
    wait_until(lambda: "is away" in live.log.read_text(), what="the agent has looked for the file")
    live.tick()
    assert outputs() == [["m0", "uc-mirror1"]]
    live.kill()
    settings.write_text(TABLE)
    live.start()
    wait_until(lambda: outputs() == [["m0", "uc-mirror0"]], what="what the next agent has read")
    write("")
    wait_until(lambda: switch.rows("Mirror") == [] and switch.ports("br-test") == [port], what="the mirror is gone")
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()


def test_one_of_several_is_put_back(live: LiveNode, sandbox: str) -> None:
    """When one of several mirrors with the same output is removed, it comes back by itself.

    The others stay, also over kill -9.
    """
    switch = switch_of(live)
    live.start()
    result = succeeded(live.run("ADD", live.network(), sandbox))
    consumer = {"cniVersion": "1.1.0", "name": live.network()["name"], "type": "ovs-mirror-consumer", "prevResult": result}
    mirrors = [{"name": name} for name in ("a", "b", "c")]
    succeeded(live.run("ADD", {**consumer, "mirrors": mirrors}, sandbox))
    kept = switch.row("Mirror", "a")["_uuid"]

    def outputs() -> dict[str, str]:
        return {each["name"]: each["output_port"] for each in switch.rows("Mirror")}

    wanted = dict.fromkeys("abc", switch.port(f"{CONTAINER[:12]}-net1")["_uuid"])
    assert outputs() == wanted
    remove_b = ("--", "--id=@m", "get", "Mirror", "b", "--", "remove", "Bridge", "br-test", "mirrors", "@m")
    switch.vsctl(*remove_b)
    wait_until(lambda: outputs() == wanted, what="the mirror is there again")
    live.kill()
    switch.vsctl(*remove_b)
    assert set(outputs()) == {"a", "c"}
    live.start()
    wait_until(lambda: outputs() == wanted, what="the next agent has made it again")
    assert switch.row("Mirror", "a")["_uuid"] == kept
    succeeded(live.run("DEL", live.network(), sandbox))
    assert switch.rows("Mirror") == []
    live.require_clean()
