"""Keys of a terminal, and what they do in `top`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.cli.top.top_columns import COLUMNS, HIDDEN
from userspace_cni.cli.top.top_keys import Keys
from userspace_cni.cli.top.top_rows import SORT_KEYS, RowChoice
from userspace_cni.cli.top.top_state import COLUMN_KEYS, TopState, press

TYPED = (
    (b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1bOF\x1b[1~\x1b[4~", ["up", "down", "pgup", "pgdn", "home", "end", "home", "end"]),
    (b"q<>R?", ["q", "<", ">", "R", "?"]),
    (b"\r\x7f\x0c \x15", ["enter", "backspace", "redraw", " ", "clear"]),
    (b"\x1b[1;5A\x1b[17~\x1b[200~x", ["up", "x"]),
    ("ä€".encode(), ["ä", "€"]),
    (b"\x01\x02q", ["q"]),
    (b"\x1bx", ["escape", "x"]),
)


def pressed(*keys: str) -> TopState:
    """The state after these keys, on a screen with room for ten rows."""
    state = TopState()
    for key in keys:
        state = press(state, key, 10)
    return state


@pytest.mark.parametrize(("data", "keys"), TYPED)
def test_keys_come_whole_or_in_parts(data: bytes, keys: list[str]) -> None:
    """A key is the same whether its sequence comes in one read or byte by byte."""
    assert Keys().feed(data) == keys
    parts = Keys()
    assert [key for byte in data for key in parts.feed(bytes([byte]))] + parts.flush() == keys


def test_escape_alone() -> None:
    """Escape is a key where nothing follows it, and the beginning of one where something does."""
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.begun
    assert keys.flush() == ["escape"]
    assert (keys.begun, keys.flush()) == (False, [])


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes(reads: list[bytes]) -> None:
    """Whatever comes, keys are names or printable characters, and little is kept."""
    keys = Keys()
    for read in reads:
        for key in keys.feed(read):
            assert key.isprintable()
        assert len(keys._kept) < 64


def test_sorting() -> None:
    """Letters, < and > choose what is sorted by and end at either side; R turns it round, and another choice turns it back."""
    assert [pressed(key.key).choice.sort for key in SORT_KEYS] == [key.name for key in SORT_KEYS]
    assert pressed("<").choice.sort == "frames"
    assert pressed(">").choice.sort == "drops"
    assert pressed(*"<<<<<<<<<<").choice.sort == SORT_KEYS[0].name
    assert pressed(*">>>>>>>>>>").choice.sort == SORT_KEYS[-1].name
    assert pressed("R").choice == RowChoice(reverse=True)
    assert pressed("R", "R").choice == RowChoice()
    assert pressed("R", "N").choice == RowChoice("name")
    assert pressed("R", "B").choice == RowChoice(reverse=True)


def test_scrolling() -> None:
    """Arrows go by a row, pages by a page, and no further than the first row."""
    assert pressed("down", "down", "up").offset == 1
    assert pressed("pgdn", "pgdn", "pgup").offset == 10
    assert pressed("up").offset == 0
    assert pressed("pgdn", "home").offset == 0
    assert pressed("end").offset > 1_000_000
    assert pressed("pgdn", "N").offset == 0


def test_a_filter() -> None:
    """f, o and / ask for a text, which Enter applies and Escape does not; = ends it; letters there are letters."""
    for key in "fo/":
        assert pressed(key, *"qR2", "enter").choice.text == "qR2"
    assert pressed("f", *"web", "backspace", "escape").choice.text == ""
    assert pressed("f", *"web", "backspace", "enter").choice.text == "we"
    assert pressed("f", *"web", "enter", "f").typed == "web"
    assert pressed("f", *"web", "clear", "x", "enter").choice.text == "x"
    assert pressed("f", *"web", "enter", "=").choice.text == ""
    assert len(pressed("f", *("x" * 500)).typed) == 80


def test_the_delay() -> None:
    """d asks for seconds; what is no number in its bounds is said, and changes nothing."""
    assert pressed("d", *"2.5", "enter").delay == 2.5
    assert pressed("d", "enter").delay == 1.0
    for wrong in ("0", "0.1", "x", "nan", "inf", "1e9", "-1"):
        state = pressed("d", *wrong, "enter")
        assert state.delay == 1.0
        assert state.message == f"{wrong}: the delay is a number of seconds from 0.2 to 3600"
    assert pressed("d", "0", "enter", "down").message == ""


def test_columns_are_chosen() -> None:
    """Each column but the first has a letter with which c shows and hides it; other keys end that or do nothing."""
    assert set(COLUMN_KEYS.values()) == {column.name for column in COLUMNS[1:]}
    for key, name in COLUMN_KEYS.items():
        assert pressed("c", key).hidden == HIDDEN ^ {name}
        assert pressed("c", key, key, "q") == pressed()
    assert pressed("c", "Z").mode == "columns"


def test_other_keys() -> None:
    """q quits, but not where it ends a page of help; space looks again; k does nothing and says what does."""
    assert pressed("q").quits
    assert not pressed("h", "q").quits
    assert pressed("?").mode == "help"
    assert pressed("h", "x") == pressed()
    assert pressed("h", "down").scrolled == 1
    assert pressed(" ").refreshes
    assert not pressed(" ", "down").refreshes
    assert pressed("redraw").redraws
    assert pressed("n").choice.grouped
    assert "ends no pod" in pressed("k").message
    assert pressed("k").choice == RowChoice()
    assert pressed("y").message == "y: no such key; h lists them"


@given(
    st.lists(st.sampled_from([*"qhfdcnRNBk=<> /x7", "up", "down", "pgup", "pgdn", "home", "end", "enter", "escape", "backspace"]))
)
def test_any_keys(keys: list[str]) -> None:
    """No keys make a state that cannot be: offsets are not negative, and a text that is asked for is not kept elsewhere."""
    states = [TopState()]
    for key in keys:
        states.append(press(states[-1], key, 5))
    for before, after in pairwise(states):
        assert min(after.offset, after.scrolled) >= 0
        assert after.mode in ("delay", "filter") or not after.typed
        assert before.delay == after.delay or before.mode == "delay"
