"""What people read on stderr: one line per event, `time=… level=… msg="…"` and the facts that place it, or the same as JSON.

Stdlib logging costs a short-lived process 8 ms and its handlers may write to stdout, which belongs to the runtime.
The threshold and the facts are bound per call of a verb (context variables); the form of a line is the process's. Values are a
pod's or a tenant's as often as ours: none of them ever ends a line, begins a field or is taken for one of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from userspace_cni.base.errors import shortened

LEVELS: Final = {"panic": 0, "error": 1, "warning": 2, "info": 3, "debug": 4, "verbose": 5}
"""The names that `logLevel` may have, from the quietest."""
FORMATS: Final = ("text", "json")
SUBJECT: Final = ("pod", "network", "container", "interface")
"""The facts that say which attachment a line is about; `pod` is NAMESPACE/NAME."""
_ORDER: Final = ("verb", *SUBJECT)

_HEARD_MAX: Final = 100

_threshold: ContextVar[int | None] = ContextVar("threshold", default=None)
_context: ContextVar[Mapping[str, str]] = ContextVar("context", default=MappingProxyType({}))
_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


class _Process:
    """What holds for lines of this process for which nothing is bound."""

    threshold = LEVELS["info"]
    as_json = os.environ.get("USERSPACE_CNI_LOG_FORMAT") == "json"  # until the settings are read


def begin(level: str, form: str) -> None:
    """From now on this process logs in that form (one of FORMATS), and where no other level is bound at this one and above."""
    _Process.threshold, _Process.as_json = LEVELS[level], form == "json"


@contextmanager
def bound(level: str = "", **facts: str) -> Iterator[None]:
    """Within this block, log at `level` (a key of LEVELS; "" for no other) and above, and add `facts` to each line."""
    threshold = _threshold.set(LEVELS[level] if level else _threshold.get())
    context = _context.set({**_context.get(), **_told(facts)}) if facts else None
    try:
        yield
    finally:
        if context:
            _context.reset(context)
        _threshold.reset(threshold)


@contextmanager
def about(subject: Mapping[str, str]) -> Iterator[None]:
    """Within this block lines are about this attachment (keys of SUBJECT), and about no other that is bound outside.

    They are not for the caller for that other one, and are not overheard.
    """
    others = {key: value for key, value in _context.get().items() if key not in SUBJECT}
    context, heard = _context.set({**others, **_told(subject)}), _heard.set(None)
    try:
        yield
    finally:
        _heard.reset(heard)
        _context.reset(context)


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


def learn(**facts: str) -> None:
    """From now on add `facts` to each line of the innermost block that binds any, and to what that calls."""
    known = {**_context.get(), **_told(facts)}
    _context.set({key: known[key] for key in _ORDER if key in known} | known)


def say(level: str, message: str, **facts: object) -> None:
    """Write one line to stderr when `level` is within the threshold. Never fails: a log must not decide a verb.

    Facts that are "" are left out.
    """
    bound_threshold = _threshold.get()
    if LEVELS[level] > (_Process.threshold if bound_threshold is None else bound_threshold):
        return
    _hear(level, message, facts)
    told = {"time": _now(), "level": level, "msg": message, **_context.get(), **facts}
    line = _as_json(told) if _Process.as_json else _as_text(told)
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def _hear(level: str, message: str, facts: Mapping[str, object]) -> None:
    heard = _heard.get()
    if heard is None or level != "warning" or len(heard) >= _HEARD_MAX:
        return
    told = shortened(message) + (f"; {_as_text(facts)}" if facts else "")
    if told not in heard:
        heard.append(told)


def _told(facts: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in facts.items() if value}


def _now() -> str:
    """UTC with milliseconds (RFC 3339)."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}Z"


def _as_text(told: Mapping[str, object]) -> str:
    texts = ((key, str(value)) for key, value in told.items())
    return " ".join(f"{key}={_quoted(shortened(text))}" for key, text in texts if text)


def _as_json(told: Mapping[str, object]) -> str:
    values = ((key, value if isinstance(value, (bool, int)) else _text(str(value))) for key, value in told.items())
    fields: dict[str, Any] = {key: value for key, value in values if value != ""}
    return json.dumps(fields)


def _text(value: str) -> str:
    """The value with bytes that are no text spelled out: a lone surrogate is JSON to us, and an error to other readers."""
    return shortened(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _quoted(value: str) -> str:
    plain = value.isascii() and value.isprintable() and value and not set(value) & set(' "=\\')
    return value if plain else json.dumps(value)
