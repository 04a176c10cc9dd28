"""What tests of the API server's room share."""

from __future__ import annotations

import pytest

from tests.lab.switch.switch import FOR_EVER_S
from userspace_cni.kube import credentials, list_watch


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has no limit of its own: what ends one that hangs is its caller's deadline, or nothing within a test's time."""
    for module in (credentials, list_watch):
        monkeypatch.setattr(module, "REQUEST_LIMIT_S", FOR_EVER_S)
