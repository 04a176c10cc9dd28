"""What the library exports: each name is there, is documented, and costs nothing before it is used."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import signatures
from userspace_cni import fastpath

PROGRAM = """
from userspace_cni.fastpath import BackEnd, BackEndListener, Burst, FastPathError, FrontEnd, FrontEndListener
from userspace_cni.fastpath import QueuePair, VhostPort


def answer(port: VhostPort, burst: Burst) -> int:
    frames: list[bytes] = port.receive(timeout_s=1.0)
    pair: QueuePair = port.pairs[0]
    return port.send(frames) + pair.send(burst, pair.receive(burst))


def serve(path: str) -> None:
    try:
        with FrontEndListener(path) as listener, listener.accept(timeout_s=1.0) as port:
            reveal_type(port)
            answer(port, Burst())
        with FrontEnd.connect(path) as front, BackEndListener(path) as waiting, waiting.accept() as back:
            back.wait_started()
            print(answer(front, Burst()), answer(back, Burst()))
    except FastPathError as error:
        reveal_type(error.look_at)
"""


def test_every_name_is_there_and_documented() -> None:
    """Each name of `__all__` can be imported, and it and its public methods say what they are for."""
    silent = []
    for name in fastpath.__all__:
        thing = getattr(fastpath, name)
        members = (
            {
                f"{name}.{each}": value
                for each, value in vars(thing).items()
                if not each.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
            }
            if inspect.isclass(thing)
            else {}
        )
        own = {name: thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__}
        docs = own | {each: inspect.getdoc(getattr(thing, each.partition(".")[2])) for each in members}
        silent += [each for each, text in docs.items() if not text or text.startswith(f"{name}(")]
    assert silent == []
    assert set(fastpath.__all__) <= set(dir(fastpath))


def test_a_name_that_is_not_there() -> None:
    """It raises what Python raises for any module, and says where the names are."""
    with pytest.raises(AttributeError, match=r"no attribute 'VhostListener'; its names are in __all__$"):
        getattr(fastpath, "VhostListener")  # noqa: B009 - mypy would refuse it


def test_the_import_loads_nothing() -> None:
    """The package alone loads no module of its own, and an error's name no C: it is loaded with the first name that needs it."""
    code = (
        "import sys; import userspace_cni.fastpath as f;"
        "own = lambda: {m for m in sys.modules if m.startswith(f.__name__ + '.')};"
        "assert not own(), own();"
        "f.FastPathError; f.read_hugepages; f.SocketAccess; assert f.__name__ + '._native' not in own();"
        "f.FrontEnd; assert f.__name__ + '._native' in own()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_users_program_has_types(tmp_path: Path) -> None:
    """mypy, strict, knows the types of a program that imports from the top alone."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(fastpath.__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path),
        "--follow-imports=silent",
    ]
    done = subprocess.run([*command, str(program)], cwd=tmp_path, env={"MYPYPATH": str(root)}, capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'Revealed type is "userspace_cni.fastpath.vhost.front_end.FrontEnd"' in done.stdout
    assert re.search('Revealed type is "(builtins.)?str"', done.stdout)


def test_the_page_of_names_is_current() -> None:
    """docs/fastpath-reference.md has the signatures and docstrings of the code."""
    assert signatures.PAGE.read_text(encoding="utf-8") == signatures.render(), "run: python -m tests.lab.signatures"
