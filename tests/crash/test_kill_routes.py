"""An agent's notes of routes are kept for the next one: through SIGKILL at each moment of the write, and on a full disk."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.node.disks import fill, small_disk
from tests.lab.node.forked import died
from tests.lab.switch.switch import wait_until
from userspace_cni.base import repeats
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.settings import load
from userspace_cni.host.files import whole_files as files
from userspace_cni.node.belongings import KNOWN_ROUTES
from userspace_cni.node.local_node import LocalNode
from userspace_cni.routes import routes_service
from userspace_cni.routes.routes_service import NodeRoutes

FORMER, NEXT = "172.16.0.0/16", "172.17.0.0/16"
CALLS = ("open", "fchmod", "write", "close", "rename")
"""The calls that write a file, in their order."""
MOST = 20
WARNING = "what is known of routes cannot be kept"


class Keeping:
    """A node without a cluster below `directory`: all that is known comes from its file of routes."""

    def __init__(self, directory: Path) -> None:
        self.state, self.file = directory / "state", directory / "routes" / "cr-config.json"
        self.file.parent.mkdir()
        own = {"STATE_DIR": self.state, "RUN_DIR": directory / "run", "ROUTES": "true", "ROUTES_FILE": self.file}
        none = {"CNI_CACHE_DIR": directory / "none", "CRI_SOCKET": ""}
        self.environ = {f"USERSPACE_CNI_{name}": str(value) for name, value in {**own, **none}.items()}

    def spec(self, *destinations: str) -> None:
        """Write the file, which asks for routes to these."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([{"route": each, "dev": "eth1"} for each in destinations]))
        new.rename(self.file)

    @property
    def kept(self) -> list[str]:
        """The destinations that are kept; the file has to be complete."""
        [thing] = json.loads((self.state / KNOWN_ROUTES).read_text())["from_file"]
        return [each["dst"] for each in thing["spec"]["route"]]

    @property
    def files(self) -> set[str]:
        """The files about routes in the state directory."""
        return {each.name for each in self.state.iterdir() if KNOWN_ROUTES in each.name}

    @contextmanager
    def agent(self) -> Iterator[NodeRoutes]:
        """The part of an agent that keeps routes, in this process."""
        with closing(LocalNode(load(self.environ), {}, resident=True)) as local:
            made = NodeRoutes(local.installation, local.store, local.pods.tell, lambda _: None)
            made.start()
            try:
                yield made
            finally:
                made.stop()

    def run(self, destination: str) -> None:
        """Run an agent until it has kept what the file has by then."""
        self.spec(destination)
        with self.agent():
            wait_until(
                lambda: (self.state / KNOWN_ROUTES).exists() and self.kept == [destination], what=f"{destination} to be kept"
            )

    def killed(self, number: int, *, in_half: bool = False) -> bool:
        """Make an agent die before its call `number` of those that write the file, unless it makes fewer; whether it died."""
        return died(_die, self.environ, number, in_half)


def _die(environ: dict[str, str], number: int, in_half: bool) -> None:
    left, writer = number, 0
    replace_file = files.replace_file

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal left
            if threading.get_ident() != writer:
                return real(*given, **named)
            if left == 0:
                if in_half and name == "write":
                    real(given[0], bytes(given[1])[: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*given, **named)

        return call

    written = False

    def armed(*given: Any) -> None:
        nonlocal written, writer
        writer = threading.get_ident()
        own = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, counted(name))
        try:
            replace_file(*given)
        finally:
            for name, real in own.items():
                setattr(os, name, real)
        written = True

    vars(routes_service)["replace_file"] = armed
    with closing(LocalNode(load(environ), {}, resident=True)) as local:
        made = NodeRoutes(local.installation, local.store, local.pods.tell, lambda _: None)
        made.start()
        wait_until(lambda: written, what="the file to be written")
        made.stop()


@pytest.fixture
def keeping(tmp_path: Path) -> Keeping:
    """A node whose former agent has kept its notes."""
    made = Keeping(tmp_path)
    made.state.mkdir(mode=0o700)
    made.run(FORMER)
    return made


def goes_on(keeping: Keeping, destination: str) -> None:
    """The next agent begins with the kept notes while its own source cannot be read."""
    keeping.file.write_text("[{")
    with keeping.agent() as agent:
        told = wait_until(lambda: (found := agent.describe())["problems"].get("file") and found["routes"] and found)
        assert [each["name"] for each in told["routes"]] == ["cr-config"]
        assert keeping.kept == [destination]


def test_killed_before_each_call_of_the_write(keeping: Keeping) -> None:
    """The file is the complete former one until it is the complete new one.

    At most one temporary file is left, which the next write removes.
    """
    number = 0
    keeping.spec(NEXT)
    while keeping.killed(number):
        assert keeping.kept == [FORMER], f"before call {number}"
        assert keeping.files <= {KNOWN_ROUTES, f".{KNOWN_ROUTES}.tmp"}
        number += 1
        assert number < MOST
    assert number == len(CALLS)
    assert (keeping.kept, keeping.files) == ([NEXT], {KNOWN_ROUTES})


def test_killed_amid_the_write(keeping: Keeping) -> None:
    """Half of a file exists only under its temporary name: the next agent uses the former file, and writes the new one."""
    keeping.spec(NEXT)
    for _ in range(2):
        assert keeping.killed(CALLS.index("write"), in_half=True)
        half = (keeping.state / f".{KNOWN_ROUTES}.tmp").read_text()
        assert half.startswith("{")
        with pytest.raises(ValueError, match=r"."):
            json.loads(half)
        assert (keeping.kept, keeping.files) == ([FORMER], {KNOWN_ROUTES, f".{KNOWN_ROUTES}.tmp"})
    goes_on(keeping, FORMER)
    keeping.run(NEXT)
    assert keeping.files == {KNOWN_ROUTES}


def test_a_full_disk(keeping: Keeping, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The former file stays, with nothing beside it, and once there is room the new one is kept without a further cause.

    Each time that the disk is full there is one warning, however many rounds there are: the second time, right after the first,
    not at once.
    """
    monkeypatch.setattr(routes_service, "KEEP_S", 0.0)
    monkeypatch.setattr(routes_service, "KEEP_AGAIN_S", 0.1)
    monkeypatch.setattr(repeats, "PAUSE_MIN_S", 2.0)
    with small_disk(keeping.state) as filler:
        keeping.run(FORMER)
        with keeping.agent() as agent:
            for _ in range(2):
                written, deadline = "", Deadline.after(60)
                fill(filler, 0)
                capfd.readouterr()
                keeping.spec(NEXT)
                while WARNING not in written:
                    agent.look(deadline)
                    written += capfd.readouterr().err
                for _ in range(5):
                    agent.look(deadline)
                assert (written + capfd.readouterr().err).count(WARNING) == 1
                assert (keeping.kept, keeping.files) == ([FORMER], {KNOWN_ROUTES})
                filler.unlink()
                wait_until(lambda: keeping.kept == [NEXT], what="it to be kept")
                keeping.spec(FORMER)
                wait_until(lambda: keeping.kept == [FORMER], what="it to be kept")
