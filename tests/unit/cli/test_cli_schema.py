"""`schema`: what is printed is the schema, whole, and needs no node."""

from __future__ import annotations

import json

from click.testing import CliRunner

from userspace_cni.base.settings_schema import settings_schema
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cni.network_schema import network_schema
from userspace_cni.consumers import CONSUMERS


def test_network() -> None:
    """The schema of networks is printed as JSON, with the consumers that there are."""
    done = CliRunner().invoke(userspace_cni, ["schema", "network"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, network_schema(CONSUMERS))
    assert json.loads(done.stdout)["properties"]["consumer"]["enum"] == ["pod", "kubevirt", "", None]


def test_settings() -> None:
    """The schema of settings is printed as JSON."""
    done = CliRunner().invoke(userspace_cni, ["schema", "settings"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, settings_schema())
