"""Which worker of the server serves what, how an error becomes a status, and how long the server waits for a source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kubevirt import definition
from kubevirt.definition import Call, Definer, DefinitionFailed
from kubevirt.domain import Policy
from kubevirt.protocol import info_pb2
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.sidecar_server import CALLBACKS_MAX, SidecarServer
from kubevirt.socket_search import SidecarPlaces
from tests.lab.guests.hooks import INFO_S, Callback, HookError, call, dialled, encoded, vmi

VMI = encoded(vmi(net1="vhostuser"))


class Scripted(Definer):
    """Answers a call with what `script` makes of it."""

    def __init__(self, script: object) -> None:
        super().__init__("vhostuser", SidecarPlaces(), Policy())
        object.__setattr__(self, "script", script)

    def define(self, call: Call) -> bytes:
        answer: bytes = self.script(call)  # type: ignore[attr-defined]
        return answer


@contextmanager
def serving(script: object, ended: threading.Event | None = None) -> Iterator[Callback]:
    """A server in this process, and the way to ask it."""
    with TemporaryDirectory(prefix="uk-") as directory:
        path = Path(directory) / "s"
        server = SidecarServer(Scripted(script), (ended or threading.Event()).set)
        server.listen(path)
        server.start()
        try:
            yield Callback(path, "v1alpha3", None)
        finally:
            server.stop()


def test_info_while_all_callbacks_wait() -> None:
    """With every place for callbacks taken, Info and Shutdown are answered, and
    one more callback waits or is refused with the reason.
    """
    taken, over, ended = threading.Semaphore(0), threading.Event(), threading.Event()

    def wait(_: Call) -> bytes:
        taken.release()
        over.wait(600)
        return b"late"

    with serving(wait, ended) as callback, ThreadPoolExecutor(CALLBACKS_MAX + 1) as threads:
        waiting = [threads.submit(callback.on_define_domain, "x", VMI) for _ in range(CALLBACKS_MAX)]
        assert all(taken.acquire(timeout=60) for _ in waiting)
        with pytest.raises(HookError) as refused:
            callback.on_define_domain("x", VMI, 4)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        next_one = threads.submit(callback.on_define_domain, "x", VMI)
        with dialled(callback.path) as channel:
            assert call(channel, info_pb2, "Info.Info", info_pb2.InfoParams(), INFO_S).versions
        callback.ask("Shutdown")
        assert ended.wait(60)
        over.set()
        assert {done.result(60) for done in waiting} == {b"late"}
        assert next_one.result(60) == b"late"


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (BadInput("m", "r"), "INVALID_ARGUMENT"),
        (DefinitionRefused("private-memory", "m", "r"), "FAILED_PRECONDITION"),
        (KubevirtError("mtu-mismatch", "m", "r"), "FAILED_PRECONDITION"),
        (KeyError("x"), "INTERNAL"),
    ],
)
def test_status_of_an_error(cause: Exception, code: str) -> None:
    """Each kind of error has a status of its own, with the text, cut to what headers can carry."""

    def fail(_: Call) -> bytes:
        raise DefinitionFailed("VM a/b: „ü“ " + "ü" * 10_000, cause)

    with serving(fail) as callback, pytest.raises(HookError) as refused:
        callback.on_define_domain("x", VMI)
    assert refused.value.code == code
    assert refused.value.details.startswith("VM a/b: „ü“ üü")


def test_the_callers_deadline_arrives() -> None:
    """The handler knows the caller's remaining time, and a caller without a deadline works, too."""
    calls: list[Call] = []

    def keep(call: Call) -> bytes:
        calls.append(call)
        return b""

    with serving(keep) as callback:
        callback.on_define_domain("x", VMI, 60)
        callback.on_define_domain("x", VMI, None)
    assert calls[0].seconds is not None
    assert 40 < calls[0].seconds < 61
    assert calls[1].seconds is None or calls[1].seconds > 3600
    assert (calls[0].hook, calls[0].ours) == ("v1alpha3.OnDefineDomain", True)


@pytest.mark.parametrize(("seconds", "waited"), [(60.0, 48.0), (30.0, 24.0), (5.0, 4.0), (None, 48.0), (3600.0, 48.0)])
def test_sources_get_most_of_the_time(monkeypatch: pytest.MonkeyPatch, seconds: float | None, waited: float) -> None:
    """The server waits for sources for four fifths of the caller's time, and never longer than virt-launcher's minute allows."""
    told: list[float] = []

    def resolve(*arguments: object) -> dict[str, object]:
        told.append(float(str(arguments[3])))
        raise DefinitionRefused("no-source", "nothing yet", "wait")

    monkeypatch.setattr(definition, "resolve", resolve)
    with pytest.raises(DefinitionFailed):
        Definer("vhostuser", SidecarPlaces(), Policy()).define(Call("x", b"<domain/>", VMI, seconds))
    assert told == [waited]


def test_a_fault_of_our_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault is reported with the VM, its traceback is one line of the log, and the next call is served."""

    def fault(*_: object) -> str:
        raise ZeroDivisionError("of our own")

    definer = Definer("vhostuser", SidecarPlaces(podinfo="/nonexistent"), Policy())
    asked = Call("x", b"<domain><devices/></domain>", VMI)
    with monkeypatch.context() as patched:
        patched.setattr(definition, "mutate", fault)
        for _ in range(2):
            with pytest.raises(
                DefinitionFailed, match=r"VM default/vm1, networks net1: a fault in the sidecar.*ZeroDivisionError: of our own"
            ):
                definer.define(asked)
    lines = [line for line in capsys.readouterr().err.splitlines() if "level=error" in line]
    assert len(lines) == 2
    assert "Traceback" in lines[0]
    with pytest.raises(DefinitionFailed) as failed:
        definer.define(Call("x", b"<domain>", VMI))
    assert isinstance(failed.value.cause, BadInput)
