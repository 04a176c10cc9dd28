"""The JSON Schema of settings agrees with `load`: examples and valid values pass, invalid values are refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.unit.base.test_settings import BAD_ITEMS, BAD_VALUES, DEFAULTS, OTHER_VALUES
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE
from userspace_cni.base.settings_schema import settings_schema

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = settings_schema()
JUDGE = Draft202012Validator(SCHEMA)
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
CANNOT_SAY = {
    ("metrics_listen", "localhost:0"),
    ("metrics_listen", "localhost:65536"),
    ("otlp_endpoint", "http://collector:0"),
    ("otlp_endpoint", "http://collector:66000"),
    ("otlp_endpoint", "http://collector..:4318"),
    ("otlp_endpoint", f"http://{'a' * 64}:4318"),
    ("otlp_endpoint", "http://[127.0.0.1]:4318"),
    ("ovsdb", "tcp:192.0.2.1:65536"),
}
"""Numbers within a text."""


def as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def documented() -> list[Any]:
    """The settings files of the documentation, and the one that a cluster gets."""
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) for _ in BLOCK.findall(page.read_text())]
    blocks = [block for page in dict.fromkeys(pages) for block in BLOCK.findall(page.read_text())]
    cluster = (ROOT / "deploy" / "cluster" / "base" / "config.toml").read_text()
    return [pytest.param(text, id=text[:40]) for text in (*blocks, cluster)]


def test_it_is_a_schema() -> None:
    """It is valid by the dialect's own schema."""
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", documented())
def test_documented_files(text: str) -> None:
    """Each settings file of the documentation is as the schema says."""
    assert [error.message for error in JUDGE.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize("key", DEFAULTS)
def test_good_values(key: str) -> None:
    """The default and another valid value of each key pass, and the schema has the default."""
    default, other = as_json(DEFAULTS[key]), as_json(OTHER_VALUES.get(key, DEFAULTS[key]))
    assert JUDGE.is_valid({key: other}), other
    shown = SCHEMA["properties"][key]
    assert JUDGE.is_valid({key: default}) == ("default" in shown) == (key != "shared_dirs"), "no empty list can be written there"
    assert shown.get("default", default) == default


@pytest.mark.parametrize(("key", "value", "reason"), [*BAD_VALUES, *BAD_ITEMS])
def test_bad_values(key: str, value: str, reason: str) -> None:
    """What `load` refuses is refused, where a schema can express it."""
    default = DEFAULTS[key]
    number = isinstance(default, int | float)
    given: Any = float(value) if number else [value] if isinstance(default, tuple) else value
    beyond = (key, value) in CANNOT_SAY or value == "nan"  # JSON has no such number
    assert JUDGE.is_valid({key: given}) == beyond, reason


@pytest.mark.parametrize(
    "raw",
    [
        {"logLevel": "debug"},
        {"log_level": 3},
        {"spool_max": 1.5},
        {"shared_dirs": "/a"},
        {"rules": []},
        {"rule": [{"namespaces": ["*"], "bridge": ["br0"]}]},
        {"mirror": [{"name": "m", "bridge": "br0", "output": "o", "select": "some"}]},
        {"provider_network": [{"interface": "eth1"}]},
        {"gateway": {"bridge": "br0"}},
        {"route_protocol": 149},
    ],
)
def test_what_it_refuses(raw: dict[str, Any]) -> None:
    """Unknown keys, wrong types, and tables that lack a key."""
    assert not JUDGE.is_valid(raw)


def test_every_setting_has_a_line_of_help() -> None:
    """The schema has each setting and each table of the file."""
    assert SCHEMA["properties"].keys() == {*TABLE, *TABLES_OF_FILE}
    for key, (_, setting) in TABLE.items():
        assert SCHEMA["properties"][key]["description"] == setting.help
        assert "\n" not in setting.help
