"""What people read on stderr: one line per event, `level=… msg="…"` and the facts that place it.

Stdlib logging costs a short-lived process 8 ms and its handlers may write to stdout, which belongs to the runtime.
The threshold and the context are bound per call of a verb (a context variable), not per process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from userspace_cni.errors import shortened

LEVELS: Final = {"panic": 0, "error": 1, "warning": 2, "info": 3, "debug": 4, "verbose": 5}
"""The names that `logLevel` may have, from the quietest."""
_HEARD_MAX: Final = 100

_threshold: ContextVar[int] = ContextVar("threshold", default=LEVELS["info"])
_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)
_context: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("context", default=())


@contextmanager
def bound(level: str, **facts: str) -> Iterator[None]:
    """Within this block, log at `level` (a key of LEVELS) and above, and add `facts` to each line."""
    threshold = _threshold.set(LEVELS[level])
    context = _context.set(_context.get() + tuple((key, value) for key, value in facts.items() if value))
    try:
        yield
    finally:
        _context.reset(context)
        _threshold.reset(threshold)


@contextmanager
def overheard() -> Iterator[list[str]]:
    """Within this block, what is said as a warning, within the threshold, is also put into the list that it gives: for a caller
    whose stderr is another one. Without level and context, each once, and no more than a hundred."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def say(level: str, message: str, **facts: object) -> None:
    """Write one line to stderr when `level` is within the threshold. Never fails: a log must not decide a verb."""
    if LEVELS[level] > _threshold.get():
        return
    pairs = {"msg": message, **dict(_context.get()), **facts}
    text = _pairs(pairs)
    heard = _heard.get()
    if heard is not None and level == "warning":
        told = shortened(message) + (f"; {_pairs(facts)}" if facts else "")
        if len(heard) < _HEARD_MAX and told not in heard:
            heard.append(told)
    try:
        sys.stderr.write(f"level={level} {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def _pairs(facts: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(shortened(str(value)))}" for key, value in facts.items())


def _quoted(value: str) -> str:
    plain = value.isascii() and value.isprintable() and value and not set(value) & set(' "=\\')
    return value if plain else json.dumps(value)
