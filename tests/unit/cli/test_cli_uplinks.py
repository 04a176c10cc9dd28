"""The commands about the node's uplinks beside an agent: which spec stays, which is withdrawn, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.node.world import World
from userspace_cni.attachment.specs import Spec, meet
from userspace_cni.attachment.steps import NodeBridge
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.settings import Settings, load
from userspace_cni.cli.agent_client import AgentClient, DeadAgent, NoAgent
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.site import Site
from userspace_cni.network import commanded
from userspace_cni.network.spec_list import COMMANDS, PROVIDER_NETWORK, SETTINGS

FORMER = '[[provider_network]]\nname = "eth1"\ninterface = "eth1"\nmtu = 1400\n'
OTHER = '[[provider_network]]\nname = "eth2"\ninterface = "eth2"\n'


class Served(World):
    """A node in memory, and the answers of its agent."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, resident=True, now=100)
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        self.error: Unavailable | None = None
        self.round_error: Unavailable | None = None
        self.status: dict[str, Any] = {"source": COMMANDS, "said_by": "a command", "problem": ""}
        self.reconciled: Callable[[], None] = lambda: None

    def agent_says(self, *, reconcile: bool = False) -> dict[str, Any]:
        """The agent's status of the provider network eth1."""
        if reconcile and not self.error:
            self.reconciled()
        if error := self.error or (self.round_error if reconcile else None):
            raise error
        ready = not self.status["problem"]
        status = {"kind": PROVIDER_NETWORK, "name": "eth1", "desired": True, "ready": ready, "steps": [], **self.status}
        return {"specs": [status], "concerns": [], "mirrors": {}, "objects": ""}

    def has(self, name: str) -> None:
        """The node has the bridge of a provider network that a command asked for."""
        meet(Spec(PROVIDER_NETWORK, name, COMMANDS, "", lambda _: (NodeBridge(f"br-{name}"),)), self)

    def commands_spec(self) -> tuple[bool, list[str]]:
        """The specs that commands asked for, and whether the list is complete."""
        desired = commanded.read_command_specs(str(self.run_dir))
        return desired.complete, [each.name for each in desired.provider_networks]

    def cli(self, *arguments: str, environ: dict[str, str] | None = None) -> Result:
        state, short = self.directory / "state", self.directory / "short"
        networks = load(environ).provider_networks if environ is not None else ()
        settings = Settings(state_dir=str(state), run_dir=str(self.run_dir), short_dir=str(short), provider_networks=networks)
        return CliRunner().invoke(userspace_cni, arguments, obj=Site(settings, self, apart_s=0.0, environ=environ or {}))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    served = Served(tmp_path)
    monkeypatch.setattr(AgentClient, "network", lambda _, *, reconcile=False: served.agent_says(reconcile=reconcile))
    monkeypatch.setattr("userspace_cni.cli.network.bridging.list_missing_links", lambda *_: [])
    return served


def test_a_refused_spec_gives_way_to_the_former(served: Served) -> None:
    """After a refusal the spec that commands had before is restored, or none."""
    served.status["problem"] = "no such NIC"
    commanded.add(str(served.run_dir), "eth1", FORMER)
    assert served.cli("nic-to-bridge", "eth1").exit_code == 1
    [network] = commanded.read_command_specs(str(served.run_dir)).provider_networks
    assert network.mtu == 1400
    commanded.remove(str(served.run_dir), "eth1")
    assert served.cli("nic-to-bridge", "eth1").exit_code == 1
    assert served.commands_spec() == (True, [])


def test_an_agent_that_was_killed_keeps_nothing_from_being_undone(served: Served) -> None:
    """A dead agent's socket is no obstacle: a command gives back the addresses when agent and switch have died."""
    served.has("eth1")
    served.error = DeadAgent("no process listens there")
    done = served.cli("uplink", "remove", "eth1")
    assert (done.exit_code, served.journal.node_records()) == (0, [])


def test_what_commands_asked_for_is_not_forgotten(served: Served) -> None:
    """After the run directory was emptied, neither a new spec nor a removal takes away what the node has."""
    for name in ("eth1", "eth2"):
        served.has(name)
    served.status = {"source": COMMANDS, "said_by": "", "problem": ""}
    assert served.cli("uplink", "remove", "eth1").exit_code == 0
    assert served.commands_spec() == (False, [])
    served.status["said_by"] = "a command"
    assert served.cli("nic-to-bridge", "eth1").exit_code == 0
    assert served.commands_spec() == (False, ["eth1"])


def test_an_agent_that_is_late_keeps_the_spec(served: Served) -> None:
    """The agent may still be working: exit code 3, and the spec stays."""
    served.round_error = Unavailable("no answer within 60 s")
    result = served.cli("nic-to-bridge", "eth1")
    assert (result.exit_code, "its spec stays" in result.stderr) == (3, True)
    assert served.commands_spec() == (True, ["eth1"])


def test_a_spec_of_others_is_no_success(served: Served) -> None:
    """A source that takes precedence over the command is named, and the command's spec is withdrawn."""
    served.status |= {"source": SETTINGS, "said_by": "settings file /x"}
    result = served.cli("nic-to-bridge", "eth1", "--move-addresses=primary")
    assert (result.exit_code, "is desired by settings file /x" in result.stderr) == (1, True)
    assert served.commands_spec() == (True, [])


def test_networks_of_the_cluster_are_not_replaced(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first table in the node's own file, which would undo those of all nodes, is refused; a further one is not."""
    cluster, own = tmp_path / "cluster.toml", tmp_path / "own.toml"
    monkeypatch.setattr("userspace_cni.base.settings.CLUSTER_FILE", str(cluster))
    monkeypatch.setattr("userspace_cni.base.settings.CONFIG_FILE", str(own))
    served.status |= {"source": SETTINGS}
    cluster.write_text(OTHER)
    own.write_text("tick_s = 5.0\n")
    result = served.cli("nic-to-bridge", "eth1", "--persist", environ={})
    assert (result.exit_code, f"are in {cluster}" in result.stderr) == (1, True)
    assert own.read_text() == "tick_s = 5.0\n"
    own.write_text(OTHER)
    assert served.cli("nic-to-bridge", "eth1", "--persist", environ={}).exit_code == 0
    assert own.read_text().count("[[provider_network]]") == 2


def test_a_persistent_spec_is_taken_back(served: Served, tmp_path: Path) -> None:
    """The settings file is restored; a new one is left empty, because an agent concludes nothing from a missing file."""
    own = tmp_path / "own.toml"
    own.write_text(OTHER)
    environ = {"USERSPACE_CNI_CONFIG": str(own)}
    served.status |= {"source": SETTINGS, "problem": "no such NIC"}
    assert served.cli("nic-to-bridge", "eth1", "--persist", environ=environ).exit_code == 1
    assert own.read_text() == OTHER
    own.write_text("")
    assert served.cli("nic-to-bridge", "eth1", "--persist", environ=environ).exit_code == 1
    assert own.read_text() == ""


def test_a_dry_run_of_a_removal_refuses_as_the_real_one(served: Served) -> None:
    """A missing network, and one that settings ask for, is refused; an existing one is printed and stays."""
    served.status = {"source": COMMANDS, "said_by": "", "problem": ""}
    assert served.cli("uplink", "remove", "eth1", "--dry-run").exit_code == 1
    served.has("eth1")
    result = served.cli("uplink", "remove", "eth1", "--dry-run")
    assert (result.exit_code, "undo bridge br-eth1" in result.stdout) == (0, True)
    served.status = {"source": SETTINGS, "said_by": "settings file /x", "problem": ""}
    result = served.cli("uplink", "remove", "eth1", "--dry-run")
    assert (result.exit_code, "would make it again" in result.stderr) == (1, True)
    assert len(served.journal.node_records()) == 1


def test_a_removal_that_the_agent_crosses(served: Served) -> None:
    """A late agent does not matter for a removal; an agent that made the network again meanwhile does."""
    served.status = {"source": COMMANDS, "said_by": "", "problem": ""}
    served.has("eth1")
    served.round_error = Unavailable("no answer within 60 s")
    assert served.cli("uplink", "remove", "eth1").exit_code == 0
    assert served.journal.node_records() == []
    served.has("eth1")
    served.reconciled = lambda: served.has("eth1")
    result = served.cli("uplink", "remove", "eth1")
    assert (result.exit_code, "once more" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [(NoAgent("no such socket"), "no agent keeps them"), (Unavailable("no answer within 2 s"), "no answer within 2 s")],
)
def test_status_without_the_agents_word(served: Served, error: Unavailable, said: str) -> None:
    """A late agent and a missing one are distinguished."""
    served.has("eth1")
    served.error = error
    shown = served.cli("status").stdout
    [line] = [line for line in shown.splitlines() if line.startswith("network")]
    assert "1 of 1 that are desired hold, by the records: " in line
    assert said in line
    assert ("no agent" in line) == isinstance(error, NoAgent)


def test_a_persistent_spec_takes_the_place_of_the_commands(served: Served, tmp_path: Path) -> None:
    """A spec until the next boot and the one written into the settings become one."""
    own = tmp_path / "own.toml"
    own.write_text("tick_s = 5.0\n")
    assert served.cli("nic-to-bridge", "eth1").exit_code == 0
    assert served.commands_spec()[1] == ["eth1"]
    served.status |= {"source": SETTINGS}
    assert served.cli("nic-to-bridge", "eth1", "--persist", environ={"USERSPACE_CNI_CONFIG": str(own)}).exit_code == 0
    assert served.commands_spec()[1] == []


def test_settings_that_are_away_are_not_written_anew(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file would be complete and undo what the former asked for; only with that network in it is it written."""
    own = tmp_path / "own.toml"
    monkeypatch.setattr("userspace_cni.base.settings.CLUSTER_FILE", str(tmp_path / "cluster.toml"))
    monkeypatch.setattr("userspace_cni.base.settings.CONFIG_FILE", str(own))
    served.status |= {"source": SETTINGS}
    meet(Spec(PROVIDER_NETWORK, "eth2", SETTINGS, "", lambda _: (NodeBridge("br-eth2"),)), served)
    result = served.cli("nic-to-bridge", "eth1", "--persist", environ={})
    assert (result.exit_code, "has eth2 of settings that are away" in result.stderr) == (1, True)
    assert not own.exists()
    meet(Spec(PROVIDER_NETWORK, "eth2", SETTINGS, "", lambda _: ()), served)
    assert served.cli("nic-to-bridge", "eth1", "--persist", environ={}).exit_code == 0


def test_reads_with_settings_that_are_wrong(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With invalid settings the agent, which keeps what it read before, is asked, and both are reported.

    Without an agent there is only the settings' error.
    """
    own = tmp_path / "own.toml"
    own.write_text("[[provider_network\n")
    monkeypatch.setenv("USERSPACE_CNI_CONFIG", str(own))
    for command in (["network"], ["uplink", "status"], ["network", "--json"]):
        result = CliRunner().invoke(userspace_cni, command)
        assert (result.exit_code, "eth1" in result.stdout, "is not TOML" in result.output) == (2, True, True)
    served.error = NoAgent("no such socket")
    result = CliRunner().invoke(userspace_cni, ["network"])
    assert (result.exit_code, result.stdout, "is not TOML" in result.stderr) == (2, "", True)


def test_what_cannot_be_ends_alike_with_an_agent_and_without(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impossible spec is no fault of the settings: exit code 1 in both cases."""
    served.status |= {"source": SETTINGS, "problem": "NIC eth1 has addresses"}
    assert served.cli("uplink", "add", "eth1").exit_code == 1

    def refuse(*_: object) -> tuple[NodeBridge, ...]:
        raise InvalidConfig("NIC eth1 has addresses")

    served.error = NoAgent("no such socket")
    spec = Spec(PROVIDER_NETWORK, "eth1", SETTINGS, "", refuse)
    monkeypatch.setattr("userspace_cni.cli.network.uplink_commands.of_settings", lambda *_: spec)
    result = served.cli("uplink", "add", "eth1")
    assert (result.exit_code, "NIC eth1 has addresses" in result.stderr) == (1, True)
