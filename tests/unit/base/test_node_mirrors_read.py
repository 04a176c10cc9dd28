"""The tables [[mirror]] of the settings: how they are read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.mirrors import NodeMirror, read_node_mirrors

WHERE = "settings file /c.toml"
FULL = {"name": "all", "bridge": "br0", "output": "mirror0"}


def test_every_key() -> None:
    """All keys are read; every frame is selected unless the table says otherwise."""
    found = read_node_mirrors([FULL, {**FULL, "name": "m0", "output": "mirror1", "select": "joined"}], WHERE)
    assert found == (NodeMirror("all", "br0", "mirror0"), NodeMirror("m0", "br0", "mirror1", "joined"))


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({}, "'mirror' is {}"),
        ([7], "'mirror' is [7]"),
        ([{**FULL, "ouput": "x"}], "number 1: unknown key 'ouput'"),
        ([{"name": "all", "bridge": "br0"}], "'output' is None"),
        ([{**FULL, "name": "-x"}], "'name' is '-x'"),
        ([{**FULL, "bridge": "b" * 16}], "'bridge' is 'bbbb"),
        ([{**FULL, "output": "a/b"}], "'output' is 'a/b'"),
        ([{**FULL, "select": "some"}], "'select' is 'some'"),
        ([{**FULL, "select": ["all"]}], "'select' is ['all']"),
        ([FULL, {**FULL, "output": "mirror1"}], "number 1: a later one has its name and bridge"),
        ([FULL, {**FULL, "name": "other"}], "or its output"),
    ],
    ids=str,
)
def test_what_is_refused(tables: Any, named: str) -> None:
    """The error names the file, the table by its number, the key and its value."""
    with pytest.raises(InvalidConfig) as refused:
        read_node_mirrors(tables, WHERE)
    assert WHERE in str(refused.value)
    assert named in str(refused.value)
