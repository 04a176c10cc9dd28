"""Builds of the shim: with the deadlines of the installed one and with short ones, plain and with sanitizers. And of trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.frames.segments_trial import SegmentsTrial, running_trial
from tests.lab.node.agentless import IMPATIENT, PLAIN, SANITIZED, Caller, build, installed

BUILDS = {"plain": PLAIN, "sanitized": SANITIZED}


@pytest.fixture(scope="session")
def built() -> Iterator[Callable[..., str]]:
    """Compiles the shim once per kind of build: `built("plain", impatient=True)` is its path."""
    with TemporaryDirectory(prefix="uc-") as directory:

        @cache
        def make(kind: str, *, impatient: bool = False) -> str:
            options = IMPATIENT if impatient else ()
            return build(Path(directory) / f"{kind}{len(options)}", *BUILDS[kind], *options)

        yield make


@pytest.fixture(params=BUILDS)
def caller(request: pytest.FixtureRequest, built: Callable[..., str], place: Path) -> Caller:
    """A runtime whose shim has the deadlines of the installed one."""
    return Caller(installed(built(request.param), place), place)


@pytest.fixture(params=BUILDS)
def impatient(request: pytest.FixtureRequest, built: Callable[..., str], place: Path) -> Caller:
    """A runtime whose shim gives up within seconds."""
    return Caller(installed(built(request.param, impatient=True), place), place)


@pytest.fixture(scope="session")
def trial() -> Iterator[SegmentsTrial]:
    """The C that merges and cuts frames, with sanitizers."""
    with running_trial() as trial:
        yield trial
