"""`settings`: the settings in force with their sources, and all that is wrong in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from userspace_cni.base import settings as reading
from userspace_cni.base.setting_sources import line_of
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, Settings
from userspace_cni.base.whereabouts import PREFIX
from userspace_cni.cli.main import userspace_cni

NODES = """# of this node
log_level = "debug"

 "tick_s" = 10
[[rule]]
namespaces = ["tenant"]
bridges = ["br0"]

[[rule]]
namespaces = ["*"]
bridges = ["*"]
"""
CLUSTERS = 'log_level = "error"\nkubelet_dir = "/data/kubelet"\nshared_dirs = ["/a", "/b"]\n'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a cluster's and a node's settings, which are in force, and no variable."""
    for name in [each for each in os.environ if each.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(reading, "CLUSTER_FILE", str(tmp_path / "cluster.toml"))
    monkeypatch.setattr(reading, "CONFIG_FILE", str(tmp_path / "node.toml"))
    (tmp_path / "cluster.toml").write_text(CLUSTERS)
    (tmp_path / "node.toml").write_text(NODES)
    return tmp_path


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(userspace_cni, ["settings", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def shown(*words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    return {each["key"]: each for each in json.loads(call("show", *words, "--json", code=code).stdout)["settings"]}


def test_each_setting_has_its_source(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable comes before the node's file, that before the cluster's, and that before the default; each with its place."""
    monkeypatch.setenv("USERSPACE_CNI_RUN_DIR", "/run/other")
    monkeypatch.setenv("NODE_NAME", "n1")
    found = shown()
    assert list(found) == [*TABLE, *TABLES_OF_FILE]
    sources = {key: (each["value"], each["source"], each["name"], each["line"]) for key, each in found.items()}
    of_node, of_cluster = str(node / "node.toml"), str(node / "cluster.toml")
    assert {key: sources.pop(key) for key, each in found.items() if each["source"] != "default"} == {
        "log_level": ("debug", "file", of_node, 2),
        "tick_s": (10.0, "file", of_node, 4),
        "rule": (
            [{"namespaces": ["tenant"], "bridges": ["br0"]}, {"namespaces": ["*"], "bridges": ["*"]}], "file", of_node, 5,
        ),
        "kubelet_dir": ("/data/kubelet", "file", of_cluster, 2),
        "shared_dirs": (["/a", "/b"], "file", of_cluster, 3),
        "run_dir": ("/run/other", "environment", "USERSPACE_CNI_RUN_DIR", 0),
        "node_name": ("n1", "environment", "NODE_NAME", 0),
    }  # fmt: skip
    plain = Settings()
    for key, (value, *_) in sources.items():
        assert key in TABLES_OF_FILE or value == json.loads(json.dumps(getattr(plain, key))) == found[key]["default"]


def test_for_people(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each setting, as it is written in a file, with the place; only those that are not the defaults, if asked."""
    monkeypatch.setenv("USERSPACE_CNI_RUN_DIR", "/run/other")
    lines = [line.split() for line in call("show", "--changed").stdout.splitlines()]
    assert lines[0] == ["SETTING", "VALUE", "SOURCE"]
    assert ["log_level", '"debug"', f"{node}/node.toml:2"] in lines
    assert ["run_dir", '"/run/other"', "$USERSPACE_CNI_RUN_DIR"] in lines
    assert ["rule", "2", "tables", f"{node}/node.toml:5"] in lines
    assert len(lines) == 1 + 6
    assert [line.split()[-1] for line in call("show", "state_dir").stdout.splitlines()[1:]] == ["default"]
    (node / "node.toml").unlink()
    (node / "cluster.toml").unlink()
    monkeypatch.delenv("USERSPACE_CNI_RUN_DIR")
    assert "all settings have their defaults" in call("show", "--changed").stderr


def test_a_named_file_alone(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that USERSPACE_CNI_CONFIG names is read instead of both."""
    named = node / "named.toml"
    named.write_text("tick_s = 3\n")
    monkeypatch.setenv("USERSPACE_CNI_CONFIG", str(named))
    told = json.loads(call("show", "--changed", "--json").stdout)
    assert (told["files"], [each["key"] for each in told["settings"]]) == ([str(named)], ["tick_s"])


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("USERSPACE_CNI_STATEDIR", "USERSPACE_CNI_STATE_DIR"),
        ("USERSPACE_CNI_LOG_LEVL", "USERSPACE_CNI_LOG_LEVEL"),
        ("USERSPACE_CNI_CONFG", "USERSPACE_CNI_CONFIG"),
        ("USERSPACE_CNI_SERVICE_HOST", ""),
        ("USERSPACE_CNI_PORT", ""),
        ("USERSPACE_CNI_PORT_9100_TCP_PROTO", ""),
        ("USERSPACE_CNI_METRICS_SERVICE_PORT_HTTP", ""),
        ("USERSPACE_CNI_OF_ANOTHER_PROGRAM", ""),
    ],
)
def test_misspelt_variables(node: Path, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str) -> None:
    """A variable without effect that is like one of ours is a finding; those of Kubernetes and of others are not."""
    monkeypatch.setenv(variable, "1")
    done = call("show", "tick_s", code=1 if meant else 0)
    assert (f"{variable} has no effect; did you mean '{meant}'?" in done.stderr) == bool(meant)
    assert bool(json.loads(call("show", "--json", code=done.exit_code).stdout)["problems"]) == bool(meant)


@pytest.mark.parametrize(("key", "meant"), [("stat_dir", "state_dir"), ("logLevel", "log_level"), ("rules", "rule")])
def test_an_unknown_setting(node: Path, key: str, meant: str) -> None:
    """Asked for, or in a file, it is answered with the one that is meant, and with 2."""
    assert f"did you mean '{meant}'?" in call("show", key, code=2).stderr
    (node / "node.toml").write_text(f"{key} = 1\n")
    assert f"did you mean '{meant}'?" in call("show", code=2).stderr


def test_check_names_all_that_is_wrong(node: Path) -> None:
    """Each fault has its line: unknown keys, wrong types and values, and keys of tables."""
    bad = node / "bad.toml"
    bad.write_text('log_levl = "debug"\ntick_s = "10"\nmtu = 5\n\n[[rule]]\nnamespace = ["*"]\n')
    lines = call("check", str(bad), str(node / "node.toml"), code=1).stdout.splitlines()
    assert [line.removeprefix(f"{bad}:").split(":")[0] for line in lines] == ["1", "2", "3", "5"]
    assert lines[0].endswith("unknown key 'log_levl' = 'debug'; did you mean 'log_level'?")
    assert "did you mean 'namespaces'?" in lines[3]
    told = json.loads(call("check", str(bad), "--json", code=1).stdout)
    assert (told["checked"], [each["line"] for each in told["faults"]]) == (1, [1, 2, 3, 5])
    assert call("check", str(node / "node.toml"), str(node / "cluster.toml")).stderr.endswith("checked 2 files: 0 faults\n")


def test_check_of_what_is_no_file_of_settings(node: Path) -> None:
    """What is no TOML is one fault; a file that is not there is a usage error."""
    bad = node / "bad.toml"
    bad.write_text("[[[")
    [fault] = json.loads(call("check", str(bad), "--json", code=1).stdout)["faults"]
    assert "is not TOML" in fault["error"]
    assert "does not exist" in call("check", str(node / "none.toml"), code=2).stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1", 1),
        ("b = 2\n\n a= 1", 3),
        ("'a' = 1", 1),
        ("[t]\na = 1", 0),
        ("[[a]]\nx = 1", 1),
        ("[a]\n", 1),
        ("x = 1\n[a.b]\n", 2),
        ("aa = 1", 0),
        ("[b]\n[[a]]", 2),
        ("", 0),
    ],
)
def test_lines(text: str, line: int) -> None:
    """A key is found before any table, a table anywhere."""
    assert line_of("a", text) == line
