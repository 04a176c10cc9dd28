"""The files of deploy/dashboards: written by their program, with fields and types that Grafana has, links that lead somewhere."""

from __future__ import annotations

import importlib
import json
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.dashboards.make_dashboards import written
from tests.lab.commands import runnable
from tests.lab.dashboards import DASHBOARDS, DIRECTORY, alerts, panels
from tests.lab.pages import headings

ROOT = DIRECTORY.parents[1]
SEVERITIES = {"critical", "warning"}
COMMAND = re.compile(r"`userspace-cni ([a-z][a-z -]*)")


def test_the_files_are_what_the_program_writes() -> None:
    """Who changes a panel or a rule runs make_dashboards again."""
    made = dict(written())
    assert {path.name for path in DASHBOARDS} == {name for name in made if name.endswith(".json")}
    for name, text in made.items():
        assert (DIRECTORY / name).read_text() == text, f"{name} differs: .venv/bin/python -m deploy.dashboards.make_dashboards"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_knows_every_field(path: Path) -> None:
    """What Grafana's types read of a dashboard and write again is the same, and each value has the type of its field."""
    stored = json.loads(path.read_text())
    read = Dashboard.from_json(stored)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == stored
    assert list(mistyped(read, path.stem)) == []
    numbers = [panel["id"] for panel in panels(path)]
    assert len(set(numbers)) == len(numbers)


def test_a_wrong_dashboard_is_noticed() -> None:
    """A field that Grafana has not is lost on the way, and a value of another type is named."""
    stored = json.loads(DASHBOARDS[0].read_text())
    assert json.loads(json.dumps(Dashboard.from_json({**stored, "refreshed": "1m"}), cls=JSONEncoder)) == stored
    [panel, *_] = [each for each in stored["panels"] if each["type"] == "stat"]
    panel["fieldConfig"]["defaults"]["unit"] = 5
    panel["gridPos"]["w"] = "wide"
    named = [each.partition(": ")[0].partition("].")[2] for each in mistyped(Dashboard.from_json(stored), "it")]
    assert sorted(named) == ["field_config.defaults.unit", "grid_pos.w"]


def mistyped(value: object, where: str) -> Iterator[str]:
    """The fields of a model of Grafana, and of those in it, whose value has another type than the model says."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from mistyped(each, f"{where}[{number}]")
        return
    if not type(value).__module__.startswith("grafana_foundation_sdk") or isinstance(value, Enum):
        return
    names = vars(importlib.import_module(type(value).__module__)) | {"typing": typing}
    for name, hint in typing.get_type_hints(type(value), names).items():
        held = getattr(value, name)
        if not fits(held, hint):
            yield f"{where}.{name}: {held!r} is no {hint}"
        yield from mistyped(held, f"{where}.{name}")


def fits(value: object, hint: Any) -> bool:
    """Whether a value has the type that a hint names; a number may be whole."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, arguments[1]) for each in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in {each.value for each in hint} or isinstance(value, hint)
    return hint is object or hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def test_every_panel_says_what_it_shows() -> None:
    """Each has a title, a text and the data source that is chosen; a dashboard leads to the other one, which exists."""
    names = {json.loads(path.read_text())["uid"] for path in DASHBOARDS}
    for path in DASHBOARDS:
        for panel in panels(path):
            assert panel["title"]
            assert isinstance(panel["options"], dict)
            assert panel["description"].endswith(".")
            assert {each["datasource"]["uid"] for each in panel["targets"]} == {"${datasource}"}
        stored = json.loads(path.read_text())
        assert {stored["uid"]} | {link["url"].removeprefix("/d/") for link in stored["links"]} == names


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_happened_and_where_to_look(alert: dict[str, Any]) -> None:
    """It has a severity, a summary, a command that exists, and a section of a page about it."""
    told = alert["annotations"]
    assert set(told) == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in SEVERITIES
    assert "\n" not in told["summary"]
    assert "`" in told["description"], "no command to look with"
    for words in COMMAND.findall(told["description"]):
        assert any(words.strip() == known or words.startswith(f"{known} ") for known in runnable()), words
    page, _, anchor = told["runbook_url"].partition("#")
    assert anchor in headings(ROOT / page), told["runbook_url"]


def test_alerts_have_names_of_their_own() -> None:
    """No name comes twice, and all begin with the project's."""
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("UserspaceCni") for name in names)


def test_the_page_has_every_alert() -> None:
    """docs/metrics.md has a row for each, with its severity."""
    rows = re.findall(r"^\| `(UserspaceCni\w+)` \| (\w+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    assert rows == [(alert["alert"], alert["labels"]["severity"]) for alert in alerts()]


def test_kustomize_is_given_the_dashboards() -> None:
    """The ConfigMap has every dashboard and the label that the sidecar looks for; the rules are an object of the operator."""
    stored = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
    [made] = stored["configMapGenerator"]
    assert set(made["files"]) == {path.name for path in DASHBOARDS}
    assert made["options"]["labels"]["grafana_dashboard"] == "1"
    rule = yaml.safe_load((DIRECTORY / "prometheus-rule.yaml").read_text())
    assert (rule["kind"], rule["spec"]) == ("PrometheusRule", yaml.safe_load((DIRECTORY / "rules.yml").read_text()))
