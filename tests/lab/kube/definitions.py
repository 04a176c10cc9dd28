"""The custom resources of deploy/cluster, for the API server of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.kube.apiserver import ApiServer

DEFINITIONS: Final = Path(__file__).resolve().parents[3] / "deploy" / "cluster" / "base" / "definitions"


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, as they are deployed."""
    return [yaml.safe_load(path.read_text()) for path in sorted(DEFINITIONS.glob("*.yaml"))]


def define_all(api: ApiServer) -> None:
    """Have the server serve them."""
    for each in definitions():
        api.define(each)
