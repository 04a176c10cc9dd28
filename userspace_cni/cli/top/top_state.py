"""What keys do in `top`: the state of the screen before and after each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from userspace_cni.cli.top.top_columns import COLUMNS, HIDDEN
from userspace_cni.cli.top.top_rows import SORT_KEYS, RowChoice, next_sort

DELAY_MIN: Final = 0.2
DELAY_MAX: Final = 3600.0
_TEXT_MAX: Final = 80
_FAR: Final = 1 << 30
_SORTS: Final = {key.key: key.name for key in SORT_KEYS}
_CHOICES: Final[dict[str, Callable[[RowChoice], RowChoice]]] = {
    "=": lambda choice: replace(choice, text=""),
    "R": lambda choice: replace(choice, reverse=not choice.reverse),
    "n": lambda choice: replace(choice, grouped=not choice.grouped),
}
_LETTERS: Final = "abdefgijklmnoprstuvwxyz"
"""The keys of columns where they are chosen: those that do something else there are missing."""
COLUMN_KEYS: Final = {letter: column.name for letter, column in zip(_LETTERS, COLUMNS[1:], strict=False)}
Mode = Literal["rows", "help", "columns", "delay", "filter"]
HARMLESS: Final = "top only looks: it ends no pod and changes nothing. kubectl delete pod does."


@dataclass(frozen=True)
class TopState:
    """What the keys have made of the screen. `offset`: the first row shown; `scrolled`: the first line of help and columns.
    `typed`: the answer so far, where one is asked for. `message`: what the latest key says. `quits`, `refreshes`, `redraws`:
    what is to be done now."""

    choice: RowChoice = field(default_factory=RowChoice)
    hidden: frozenset[str] = HIDDEN
    delay: float = 1.0
    offset: int = 0
    scrolled: int = 0
    mode: Mode = "rows"
    typed: str = ""
    message: str = ""
    quits: bool = False
    refreshes: bool = False
    redraws: bool = False


def press(state: TopState, key: str, page: int) -> TopState:
    """The state after a key. `page`: how many rows the screen has room for."""
    state = replace(state, message="", refreshes=False, redraws=False)
    if key == "redraw":
        return replace(state, redraws=True)
    if state.mode in ("delay", "filter"):
        return _type(state, key)
    moves = {"up": -1, "down": 1, "pgup": -page, "pgdn": page, "home": -_FAR, "end": _FAR}
    if state.mode in ("columns", "help"):
        if key in moves:
            return replace(state, scrolled=max(0, state.scrolled + moves[key]))
        return _choose_column(state, key) if state.mode == "columns" else replace(state, mode="rows")
    if key in moves:
        return replace(state, offset=max(0, state.offset + moves[key]))
    return _press(state, key)


def _press(state: TopState, key: str) -> TopState:
    if key in _SORTS:
        return _sort(state, _SORTS[key])
    if key in _CHOICES:
        return replace(state, choice=_CHOICES[key](state.choice), offset=0)
    match key:
        case "q":
            return replace(state, quits=True)
        case " " | "enter":
            return replace(state, refreshes=True)
        case "h" | "?":
            return replace(state, mode="help", scrolled=0)
        case "d" | "s":
            return replace(state, mode="delay", typed="")
        case "o" | "f" | "/":
            return replace(state, mode="filter", typed=state.choice.text)
        case "c":
            return replace(state, mode="columns", scrolled=0)
        case "<" | ">":
            return _sort(state, next_sort(state.choice.sort, 1 if key == ">" else -1))
        case "k" | "r":
            return replace(state, message=HARMLESS)
    return replace(state, message=f"{key}: no such key; h lists them")


def _sort(state: TopState, name: str) -> TopState:
    reverse = state.choice.reverse if name == state.choice.sort else False
    return replace(state, choice=replace(state.choice, sort=name, reverse=reverse), offset=0)


def _type(state: TopState, key: str) -> TopState:
    if key == "enter":
        return _answered(state)
    if key in ("escape", "up", "down"):
        return replace(state, mode="rows", typed="")
    if key == "backspace":
        return replace(state, typed=state.typed[:-1])
    if key == "clear":
        return replace(state, typed="")
    return replace(state, typed=(state.typed + key)[:_TEXT_MAX]) if len(key) == 1 else state


def _answered(state: TopState) -> TopState:
    typed, after = state.typed.strip(), replace(state, mode="rows", typed="")
    if state.mode == "filter":
        return replace(after, choice=replace(state.choice, text=typed), offset=0)
    if not typed:
        return after
    try:
        return replace(after, delay=parse_delay(typed))
    except ValueError as error:
        return replace(after, message=str(error))


def parse_delay(text: str) -> float:
    """Seconds between two refreshes. ValueError says which there can be."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not DELAY_MIN <= seconds <= DELAY_MAX:
        raise ValueError(f"{text}: the delay is a number of seconds from {DELAY_MIN} to {DELAY_MAX:.0f}")
    return seconds


def _choose_column(state: TopState, key: str) -> TopState:
    if key in COLUMN_KEYS:
        return replace(state, hidden=state.hidden ^ {COLUMN_KEYS[key]})
    return replace(state, mode="rows") if key in ("c", "q", "h", "enter", "escape", " ") else state
