"""When the thread that reconciles routes works and waits, and how often it asks a runtime that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.lab.runtimes.cached import BOX, cached
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.host.pod_net.pod_routes import PodNamespace
from userspace_cni.host.runtimes.cni_cache import Sandbox
from userspace_cni.node.local_node import LocalNode
from userspace_cni.routes import places
from userspace_cni.routes.passes import Passes
from userspace_cni.routes.places import AGAIN, LocatedSandbox, NamespaceSources
from userspace_cni.routes.routes_keeper import RouteKeeper


class Rounds(RouteKeeper):
    """This many rounds, in the caller's thread. `waits`: for how many seconds it would wait before each round and after the
    last."""

    def __init__(self, rounds: int, sources: Any, learn: Callable[[], bool], next_due: float = 0.0) -> None:
        self.visits: list[tuple[bool, set[str]]] = []
        passes = SimpleNamespace(next_due=next_due, overdue=False, list_wanted=tuple, visit=self._visited)
        super().__init__(cast(Passes, passes), sources, learn, lambda: None)
        self._left = 0
        self.waits: list[float] = []
        self.again(rounds)

    def again(self, rounds: int) -> None:
        self._left = rounds
        self._work()

    def _visited(self, _: object, sandboxes: Collection[str], *, everything: bool) -> int:
        self.visits.append((everything, set(sandboxes)))
        return 0

    def _await_due(self, wait_s: float | None) -> bool:
        self.waits.append(max(0.0, wait_s or 0.0))
        self._left -= 1
        return self._left >= 0

    def _rest(self, seconds: float) -> bool:
        return seconds >= 0


def sources(**problems: str) -> Any:
    return SimpleNamespace(locate=lambda _: [], problems=problems, again_s=7.0)


def test_without_what_it_needs_it_waits_until_it_is_asked() -> None:
    """The thread does not try again and again while it cannot look at pods, even if one is due."""
    _, *others = Rounds(3, sources(), lambda: False).waits
    assert min(others) > 1e6
    assert Rounds(3, sources(), lambda: True).waits == [0.0] * 4


def test_what_could_not_be_looked_at_yet_is_looked_at_later() -> None:
    """A requested look waits for the first round that can look, and is done once."""
    known = iter([False, True, True])
    rounds = Rounds(0, sources(), lambda: next(known))
    rounds.ask_all()
    rounds.again(1)
    assert not rounds.look_at("box", 0.0)
    rounds.again(2)
    assert rounds.visits == [(True, {"box"}), (False, set())]


def test_a_source_that_cannot_be_read_is_read_again() -> None:
    """A failed source is read again, also when nothing else changes and no pod is due."""
    later = time.monotonic() + 600
    assert Rounds(1, sources(cri="no answer"), lambda: True, later).waits[1] == pytest.approx(7, abs=1)
    assert Rounds(1, sources(), lambda: True, later).waits[1] > 500


class Silent:
    """A runtime that does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def sandboxes(self, wanted: object = None) -> list[Sandbox]:
        self.asked += 1
        raise Unavailable("no answer within 2 s", str(wanted))


def namespaces(settings: Settings, runtime: Silent | None = None) -> NamespaceSources:
    node = LocalNode(settings, {}, resident=True)
    return NamespaceSources(node.installation, node.store, runtime)


def test_a_runtime_that_does_not_answer_is_asked_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request delays a round, and changes of Routes, by seconds. The problem is reported all the time."""
    now = 1000.0
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now))
    (tmp_path / "cri.sock").touch()
    settings = Settings(cri_socket=f"{tmp_path}/cri.sock", state_dir=str(tmp_path), cni_cache_dir=str(tmp_path))
    runtime = Silent()
    found = namespaces(settings, runtime)
    asked_at = []
    for second in range(200):
        now = 1000.0 + second
        before = runtime.asked
        assert found.locate() == []
        assert "no answer" in found.problems["cri"]
        asked_at += [second] * (runtime.asked > before)
        assert AGAIN.first_s <= found.again_s <= AGAIN.most_s
    assert asked_at == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_a_runtime_that_cannot_be_looked_for(tmp_path: Path) -> None:
    """A missing socket means that there is no runtime. A path that cannot be followed may lead to one, which is asked."""
    (tmp_path / "loop.sock").symlink_to("loop.sock")
    for name, asked in (("none.sock", 0), ("loop.sock", 1)):
        settings = Settings(cri_socket=f"{tmp_path}/{name}", state_dir=str(tmp_path), cni_cache_dir=str(tmp_path))
        runtime = Silent()
        found = namespaces(settings, runtime)
        assert (found.locate(), runtime.asked, list(found.problems)) == ([], asked, ["cri"] * asked)


def test_a_source_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer of a failed source stays in use beside the others: no sandbox comes and goes between rounds."""
    (tmp_path / "ns").touch()
    for interface in ("eth1", "eth0"):
        cached(tmp_path, f"{tmp_path}/ns").rename(tmp_path / "results" / f"net-{BOX}-{interface}")
    found = namespaces(Settings(state_dir=str(tmp_path), cni_cache_dir=str(tmp_path)))
    record = LocatedSandbox(PodNamespace(BOX, f"{tmp_path}/ns"), "default", "web-0", "u-web-0", "records", (("net1", 7),))
    told = {"records": [record]}

    def records(_: NamespaceSources) -> Iterator[LocatedSandbox]:
        if "records" not in told:
            raise Unavailable("the disk does not answer", "")
        return iter(told["records"])

    monkeypatch.setattr(NamespaceSources, "_of_records", records)
    [before] = found.locate()
    assert (before.source, len(before.interfaces)) == ("records", 3)
    former = told.pop("records")
    for _ in range(3):
        assert found.locate() == [before]
        assert list(found.problems) == ["records"]
    told["records"] = former
    assert (found.locate(), found.problems) == ([before], {})
