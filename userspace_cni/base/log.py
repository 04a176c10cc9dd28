"""The log on stderr: one line per event, `time=… level=… msg="…"` and the facts of the call it belongs to, or the same as JSON.

Stdlib logging costs a short-lived process 8 ms, and its handlers may write to stdout, which belongs to the runtime.
The threshold and the facts are bound per call of a verb (context variables); a line's form is set per process. Values may be a
pod's or a tenant's: none of them may end a line or begin a field.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Protocol

from userspace_cni.base.errors import shorten
from userspace_cni.base.host_paths import as_host_names

LEVELS: Final = {"panic": 0, "error": 1, "warning": 2, "info": 3, "debug": 4, "verbose": 5}
"""The names that `logLevel` may have, from the quietest."""
FORMATS: Final = ("text", "json")
SUBJECT: Final = ("pod", "network", "container", "interface")
"""The facts that say which attachment a line is about; `pod` is NAMESPACE/NAME."""
_ORDER: Final = ("verb", *SUBJECT)

_WARNINGS_MAX: Final = 100
_COUNTED_MAX: Final = 1024
"""Characters of a value in a line that may come again: it may be a tenant's, who can have it written for ever."""


class Counting(Protocol):
    """Knows which lines are repeats; `base.repeats.Repeats`."""

    def count_left_out(self, bound: Mapping[str, str], message: str, facts: Mapping[str, object]) -> int | None:
        """How many such lines were left out before this one, which must be written; None for one that is left out, too."""
        ...


_threshold: ContextVar[int | None] = ContextVar("threshold", default=None)
_context: ContextVar[Mapping[str, str]] = ContextVar("context", default=MappingProxyType({}))
_warnings: ContextVar[list[str] | None] = ContextVar("warnings", default=None)
_counting: ContextVar[Counting | None] = ContextVar("counting", default=None)


class _Process:
    """The threshold and the form of this process's lines where none is bound."""

    threshold = LEVELS["info"]
    as_json = os.environ.get("USERSPACE_CNI_LOG_FORMAT") == "json"  # until the settings are read


def begin(level: str, form: str) -> None:
    """Set this process's form of lines (one of FORMATS), and the `level` that holds where no other is bound."""
    _Process.threshold, _Process.as_json = LEVELS[level], form == "json"


@contextmanager
def bind(level: str = "", **facts: str) -> Iterator[None]:
    """Within this block, log at `level` (a key of LEVELS; "" keeps the one that is bound) and above; add `facts` to each line."""
    threshold = _threshold.set(LEVELS[level] if level else _threshold.get())
    context = _context.set({**_context.get(), **_not_empty(facts)}) if facts else None
    try:
        yield
    finally:
        if context:
            _context.reset(context)
        _threshold.reset(threshold)


@contextmanager
def about(subject: Mapping[str, str]) -> Iterator[None]:
    """Within this block lines are about this attachment (keys of SUBJECT), not about the one that is bound outside.

    Its warnings are not collected: the caller asked about the other attachment.
    """
    others = {key: value for key, value in _context.get().items() if key not in SUBJECT}
    context, warnings = _context.set({**others, **_not_empty(subject)}), _warnings.set(None)
    try:
        yield
    finally:
        _warnings.reset(warnings)
        _context.reset(context)


@contextmanager
def limit_repeats(counting: Counting) -> Iterator[None]:
    """Within this block, leave lines out that are repeats, and cut long values: for work that is done again and again.

    A line that is written after others were left out says how many, as `repeated`.
    """
    token = _counting.set(counting)
    try:
        yield
    finally:
        _counting.reset(token)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Within this block, also put warnings within the threshold into the list that it gives, for a caller with another stderr.

    Without level and bound facts, each once, and no more than a hundred.
    """
    warnings: list[str] = []
    token = _warnings.set(warnings)
    try:
        yield warnings
    finally:
        _warnings.reset(token)


def learn(**facts: str) -> None:
    """Add `facts` to each line from now on, until the innermost block that binds facts ends."""
    known = {**_context.get(), **_not_empty(facts)}
    _context.set({key: known[key] for key in _ORDER if key in known} | known)


def say(level: str, message: str, **facts: object) -> bool:
    """Write one line to stderr when `level` is within the threshold. Never fails: a log must not make a verb fail.

    Facts that are "" are left out. False for a line that was left out because it is a repeat: who says a thing only when it
    begins has not said it then, and says it again.
    """
    if not _wants(level):
        return True
    if level == "warning":
        _collect(message, facts)
    counting = _counting.get()
    if counting is not None and LEVELS[level] <= LEVELS["info"]:  # who asks for more wants all of it
        repeated = counting.count_left_out(_context.get(), message, facts)
        if repeated is None:
            return False
        message = shorten(message, _COUNTED_MAX)
        facts = {key: _cut(value) for key, value in facts.items()} | ({"repeated": repeated} if repeated else {})
    fields = {"time": _now(), "level": level, "msg": message, **_context.get(), **facts}
    line = _as_json(fields) if _Process.as_json else _as_text(fields)
    with suppress(
        OSError, ValueError, AttributeError, RuntimeError
    ):  # the last: in the handler of a signal that came during a line
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    return True


class timed:  # noqa: N801 -- used as a function
    """The block is a step of a call: when it has ended well, it is a line at `debug`, with its milliseconds as `ms`.

    A fact may be a function, which is called for the line alone: where nothing is written, nothing is computed.
    """

    __slots__ = ("_began", "_facts", "_message")

    def __init__(self, message: str, **facts: object) -> None:
        self._message = message
        self._facts = facts

    def __enter__(self) -> None:
        self._began = time.perf_counter() if _wants("debug") else 0.0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._began and kind is None:
            facts = {key: value() if callable(value) else value for key, value in self._facts.items()}
            say("debug", self._message, **facts, ms=f"{(time.perf_counter() - self._began) * 1000:.1f}")


def _wants(level: str) -> bool:
    threshold = _threshold.get()
    return LEVELS[level] <= (_Process.threshold if threshold is None else threshold)


def _collect(message: str, facts: Mapping[str, object]) -> None:
    warnings = _warnings.get()
    if warnings is None or len(warnings) >= _WARNINGS_MAX:
        return
    hint = str(facts.get("hint") or "")
    others = _as_text({key: value for key, value in facts.items() if key != "hint"})
    # a hint is a sentence: as a fact it would be quoted within the line that the caller writes
    warning = "; ".join(filter(None, (shorten(as_host_names(message)), others, shorten(as_host_names(hint)))))
    if warning not in warnings:
        warnings.append(warning)


def _cut(value: object) -> object:
    return value if isinstance(value, (bool, int)) else shorten(str(value), _COUNTED_MAX)


def _not_empty(facts: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in facts.items() if value}


def _now() -> str:
    """UTC with milliseconds (RFC 3339)."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}Z"


def _as_text(facts: Mapping[str, object]) -> str:
    texts = ((key, as_host_names(str(value))) for key, value in facts.items())
    return " ".join(f"{key}={_quoted(shorten(text))}" for key, text in texts if text)


def _as_json(facts: Mapping[str, object]) -> str:
    values = ((key, value if isinstance(value, (bool, int)) else _text(str(value))) for key, value in facts.items())
    fields: dict[str, Any] = {key: value for key, value in values if value != ""}
    return json.dumps(fields)


def _text(value: str) -> str:
    """The value with undecodable bytes spelled out: other readers of JSON refuse a lone surrogate."""
    return shorten(as_host_names(value)).encode("utf-8", "backslashreplace").decode("utf-8")


def _quoted(value: str) -> str:
    plain = value.isascii() and value.isprintable() and value and not set(value) & set(' "=\\')
    return value if plain else json.dumps(value)
