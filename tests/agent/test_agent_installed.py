"""`status` and the installed plugin: an agent that does not answer is a failure only if that plugin needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agent.living import LiveNode
from tests.cni.test_cli_node import cli, decoded


def findings(node: LiveNode, code: int = 1, **environ: str) -> list[str]:
    told: dict[str, Any] = decoded(node, "status", code=code, **environ)
    return list(told["findings"])


def test_an_agent_that_the_binary_needs(live: LiveNode) -> None:
    """With the static binary installed and no agent, status says what to do and ends with 1."""
    [finding] = findings(live)
    assert finding.startswith(f"agent: none on this node (no socket {live.socket})")
    assert f"{live.plugin} hands each call to it" in finding
    assert "userspace-cni agent" in finding
    assert "finding" in cli(live, "status", code=1).stdout
    live.start()
    told = decoded(live, "status")
    assert (told["findings"], told["agent"]["needed"]) == ([], True)
    [plugin] = told["plugins"]
    assert (plugin["path"], plugin["kind"]) == (live.plugin, "binary")
    assert (plugin["socket"], plugin["state_dir"]) == (live.socket, str(live.state))
    live.kill()
    [finding] = findings(live)
    assert "no process listens there" in finding
    assert "hands each call to it" in finding


def test_a_plugin_in_process(live: LiveNode) -> None:
    """With the plugin in-process installed, or none, a missing agent is reported and no failure."""
    for directory, said in ((Path(live.standalone).parent, "runs as a process"), (live.directory / "empty", "none in")):
        assert findings(live, code=0, CNI_PATH=str(directory)) == []
        shown = {line.split()[0]: line for line in cli(live, "status", CNI_PATH=str(directory)).stdout.splitlines()}
        assert "none on this node" in shown["agent"]
        assert said in shown["plugin"]
        assert str(directory) in shown["plugin"]


def test_a_binary_for_another_agent(live: LiveNode, other: LiveNode) -> None:
    """A binary that was installed for other settings is reported with both sides, though both agents are well."""
    live.start()
    other.start()
    [finding] = findings(live, CNI_PATH=str(other.bin))
    assert finding.startswith(f"plugin: {other.plugin} hands calls to the agent at {other.socket}")
    assert all(each in finding for each in (str(other.state), live.socket, str(live.state), "userspace-cni install --bin-dir"))
    assert findings(live, CNI_PATH=f"{live.bin}:{other.bin}") == [finding]
    assert decoded(live, "status", "--bin-dir", str(live.bin), CNI_PATH=str(other.bin))["findings"] == []


def test_a_binary_for_the_same_by_another_name(live: LiveNode) -> None:
    """Links in the settings' paths are followed: another path to the same directory is no difference."""
    link = live.directory / "link"
    link.symlink_to(live.directory)
    live.start()
    names = {"USERSPACE_CNI_STATE_DIR": f"{link}/state", "USERSPACE_CNI_RUN_DIR": f"{link}/run"}
    assert findings(live, code=0, **names) == []


def test_a_binary_that_cannot_be_executed(live: LiveNode) -> None:
    """A binary that the runtime could not start is a finding, which says what to do."""
    elsewhere = live.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "userspace").write_bytes(Path(live.plugin).read_bytes())
    live.start()
    [finding] = findings(live, CNI_PATH=str(elsewhere))
    assert f"cannot be executed (mode 0644): chmod 755 {elsewhere}/userspace" in finding
    (elsewhere / "userspace").chmod(0o755)
    assert findings(live, code=0, CNI_PATH=str(elsewhere)) == []


def test_files_that_are_no_plugin_of_ours(live: LiveNode) -> None:
    """Another program of the name, and an unreadable or unknown file, are reported without a conclusion."""
    elsewhere = live.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "userspace").write_bytes(b"\x7fELF" + bytes(100))
    assert decoded(live, "status", CNI_PATH=str(elsewhere))["plugins"][0]["kind"] == "other"
    (elsewhere / "userspace").unlink()
    (elsewhere / "userspace").mkdir()
    assert decoded(live, "status", CNI_PATH=str(elsewhere))["plugins"][0]["kind"] == "other"
    binary = Path(live.plugin).read_bytes()
    (elsewhere / "userspace").rmdir()
    (elsewhere / "userspace").write_bytes(binary.replace(b"shim/settings/2", b"shim/settings/1"))
    [finding] = findings(live, CNI_PATH=str(elsewhere))
    assert "of another version" in finding
    assert "userspace-cni install" in finding
