"""`lint` on networks as users have them: from the former plugin, its forks, and the programs that they copied from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from userspace_cni.cli.main import userspace_cni

DATA = Path(__file__).parent / "data"


def linted(file: str, *options: str, code: int) -> list[dict[str, Any]]:
    """The findings of a call that ended with this code."""
    result = CliRunner().invoke(userspace_cni, ["lint", str(DATA / file), *options, "--json"])
    assert result.exit_code == code, (result.output, result.exception)
    found: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    return found


def test_a_logical_port_of_ovn() -> None:
    """A network that names a port of OVN is served; one that says a VLAN beside it is an error with that key."""
    assert linted("ovn-port.yaml", code=0) == []
    [only] = linted("ovn-port-with-vlan.yaml", code=1)
    assert (only["severity"], only["key"], only["code"]) == ("error", "host.bridge.vlanId", 2)


def test_policing_keys_of_a_fork() -> None:
    """Each says that no limit is set, and which key would set one."""
    found = linted("policing-rate.yaml", code=1)
    assert [each["key"] for each in found] == ["host.vhost.ingressPolicingRate", "host.vhost.ingressPolicingBurst"]
    assert all("no limit is set; write 'bandwidth'" in each["message"] for each in found)


def test_a_network_of_the_former_plugin_with_its_log() -> None:
    """`logFile`, which its every example had, is a note: exit code 0, so that lint can be a gate, and 1 with --strict."""
    for options, code in (((), 0), (("--strict",), 1)):
        found = linted("log-file.yaml", *options, code=code)
        assert [(each["severity"], each["name"], each["key"]) for each in found] == [("note", "ignored-value", "logFile")]


def test_notes_beside_a_warning_and_none_at_all(tmp_path: Path) -> None:
    """An unknown log level is a note, too; a warning counts beside notes; --strict passes without findings."""
    good = {"cniVersion": "1.0.0", "name": "n", "type": "userspace", "host": {"vhost": {"mode": "client"}}}
    level, colour = good | {"logLevel": "loud"}, good | {"logLevel": "loud", "colour": "red"}
    for config, options, code, severities in (
        (level, (), 0, ["note"]),
        (colour, (), 1, ["warning", "note"]),
        (good, ("--strict",), 0, []),
    ):
        (tmp_path / "net.conf").write_text(json.dumps(config))
        found = linted(str(tmp_path / "net.conf"), *options, code=code)
        assert [each["severity"] for each in found] == severities
