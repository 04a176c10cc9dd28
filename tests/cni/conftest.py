"""What black-box tests share beside a node and a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.apiserver import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server without pods."""
    with ApiServer() as started:
        yield started


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the specification asks of a plugin, it asks of a process and of an agent behind the shim alike."""
    if "node" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2].startswith(
        ("test_spec_", "test_recordings")
    ):
        metafunc.parametrize("node", ["process", "agent"], indirect=True)
