"""How messages name the host's files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from userspace_cni.base.errors import StepFailed
from userspace_cni.base.host_paths import as_host_names, see_host_at
from userspace_cni.base.log import say


@pytest.fixture
def contained() -> Iterator[None]:
    """This process sees the host at /host."""
    see_host_at("/host/")
    yield
    see_host_at("/")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/host/run/x.sock", "/run/x.sock"),
        ("OVSDB at unix:/host/run/db.sock: no", "OVSDB at unix:/run/db.sock: no"),
        (
            "[Errno 2] No such file or directory: '/host/run/a' -> '/host/b'",
            "[Errno 2] No such file or directory: '/run/a' -> '/b'",
        ),
        ("mounted at /host, read-only", "mounted at /host, read-only"),
        ("/hosts/a and /srv/host/a and a.b/host/c", "/hosts/a and /srv/host/a and a.b/host/c"),
        ("/host//run", "//run"),
    ],
)
def test_names(contained: None, text: str, named: str) -> None:
    """The prefix is replaced where a path of the host follows it, and nowhere else."""
    assert as_host_names(text) == named


def test_on_the_host_itself() -> None:
    """On the host nothing is changed."""
    assert as_host_names("/host/run/x") == "/host/run/x"


def test_errors_and_lines(contained: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Both parts of an error, its text, and message and facts of a log line have the host's paths; numbers stay numbers."""
    error = StepFailed("opening /host/a: no", "see /host/b")
    assert (error.message, error.details, str(error), error.args) == (
        "opening /a: no",
        "see /b",
        "opening /a: no; see /b",
        ("opening /a: no",),
    )
    say("warning", "at /host/c", error=OSError(2, "No", "/host/d"), count=3)
    assert 'msg="at /c" error="[Errno 2] No: \'/d\'" count=3' in capfd.readouterr().err
