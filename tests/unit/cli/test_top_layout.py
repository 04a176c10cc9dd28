"""What `top` draws: rows, columns and lines about the node, on terminals of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.screens import top_picture
from tests.lab.screens.made_node import made_picture, made_rows, made_threads, made_traffic
from userspace_cni.cli.top.top_columns import COLUMNS, HIDDEN, fit_columns
from userspace_cni.cli.top.top_figures import Line, Piece, bar, duration, figure, fit, flow, width_of, width_of_line
from userspace_cni.cli.top.top_layout import TopPicture, draw_batch, draw_screen
from userspace_cni.cli.top.top_rows import SORT_KEYS, RowChoice, TopRow, TopUplink, choose
from userspace_cni.cli.top.top_state import TopState, press
from userspace_cni.node.port_rates import WRITTEN_S, CountersReading, TrafficRates

WIDE = (200, 40)


def texts(lines: Sequence[Line]) -> list[str]:
    """Lines as a person reads them."""
    return ["".join(piece.text for piece in line).rstrip() for line in lines]


def drawn(
    picture: TopPicture | None, state: TopState | None = None, size: tuple[int, int] = WIDE, asking_s: float = 0.0
) -> list[str]:
    lines, _ = draw_screen(picture, state or TopState(), size, asking_s)
    assert len(lines) == size[1]
    assert all(width_of_line(line) <= size[0] for line in lines)
    return texts(lines)


def named(*names: str, **columns: object) -> list[TopRow]:
    return [replace(TopRow(name), **columns) for name in names]  # type: ignore[arg-type]


def test_figures() -> None:
    """Figures have three digits and a prefix, and at most five characters; what is not known is a dash."""
    shown = {
        0: "0",
        0.04: "0",
        0.31: "0.3",
        9.96: "10",
        999.4: "999",
        999.6: "1.00k",
        9996: "10.0k",
        99960: "100k",
        999_500: "1.00M",
    }
    assert {number: figure(number) for number in shown} == shown
    assert figure(None) == "-"
    assert [bar(part, 4) for part in (-1, 0, 0.5, 0.7, 2)] == ["░░░░", "░░░░", "██░░", "███░", "████"]
    assert [duration(each) for each in (0.5, 61, 3600, 90061)] == ["0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]


@given(st.floats(0, 1e14))
def test_any_figure_has_room(number: float) -> None:
    """No figure is wider than its column."""
    assert len(figure(number)) <= 5


@given(st.text(max_size=30), st.integers(0, 20))
def test_any_text_fits(text: str, width: int) -> None:
    """A text takes just as many columns as it is given, whatever its characters."""
    assert width_of(fit(text, width)) == width
    assert width_of(fit(text, width, right=True)) == width


def test_a_long_text_is_folded() -> None:
    """What is wider than a line goes on below, between words, and nothing of it is lost."""
    lines = flow(Piece("traffic"), [(Piece("no counters: ", "red"), Piece("the switch does not answer in time"))], 30, 10)
    assert texts(lines) == ["traffic   no counters: the", "          switch does not", "          answer in time"]
    assert texts(flow(Piece("a"), [(Piece("x" * 8),), (Piece("y" * 8),)], 16, 4)) == ["a   xxxxxxxx", "    yyyyyyyy"]
    assert texts(flow(Piece("a"), [(Piece("x" * 40),)], 16, 4)) == ["a   " + "x" * 11 + "…"]


def test_rows_are_sorted_by_each_key() -> None:
    """Each way to sort has the largest first, or the first by name; R turns that round; what is not known is last either way."""
    rows = made_rows()
    for key in SORT_KEYS:
        for reverse in (False, True):
            values = [key.of(row) for row in choose(rows, RowChoice(key.name, reverse))]
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=key.largest_first != reverse)
            assert values[len(known) :] == [None] * (len(values) - len(known))
    assert [row.name for row in choose(rows, RowChoice("drops"))][:2] == [
        "media/origin-6b8d4-p9w2s/net1",
        "media/transcoder-5c9f8-kk7ql/net1",
    ]


def test_rows_without_traffic_keep_their_places() -> None:
    """Rows of equal value are in the order of their names, so that they do not jump."""
    rows = named("c", "a", "b", rates=TrafficRates(0.0, 0.0, 0.0, 0.0))
    assert [row.name for row in choose(rows, RowChoice())] == ["a", "b", "c"]


def test_a_filter_chooses_rows() -> None:
    """Names, networks, bridges and ports are searched, whatever the case; ! turns it round."""
    rows = made_rows()
    assert {row.network for row in choose(rows, RowChoice(text="MEDIA"))} == {"media"}
    assert len(choose(rows, RowChoice(text="port-3"))) == 1
    assert len(choose(rows, RowChoice(text="!media"))) == len(rows) - 2
    assert len(choose(rows, RowChoice(text="!"))) == len(rows)
    shown = drawn(made_picture(RowChoice(text="nothing")), TopState(RowChoice(text="nothing")))
    assert "no attachment of 12 matches 'nothing'; = shows all" in shown


def test_networks_together() -> None:
    """A line for each network has the sum of its attachments, which follow it."""
    found = choose(made_rows(), RowChoice(grouped=True))
    sums = [row for row in found if row.members]
    assert {row.network: row.members for row in sums}["lab"] == 3
    [lab] = [row for row in sums if row.network == "lab"]
    assert lab.rates.frames == 2_300_000
    assert lab.cores == {2: 16, 20: 0}
    at = found.index(lab)
    assert {row.network for row in found[at : at + 4]} == {"lab"}
    assert [row.state for row in sums if row.network == "tenant-b"] == ["1 faulty"]
    assert any(line.startswith("lab (3) ") for line in drawn(made_picture(RowChoice(grouped=True))))


def test_the_node_is_above_its_attachments() -> None:
    """Switch, counts, traffic, uplinks, threads with their load, hugepages, and each attachment with its figures are there."""
    shown = drawn(made_picture())
    assert shown[0].startswith("userspace-cni top  worker-3  14:07:31  every 1 s")
    assert shown[0].endswith("sorted by bits ▼   h help  q quit")
    assert shown[1] == "switch     Open vSwitch 3.5.0 alive, up 12 d 5 h   agent ready"
    assert shown[2] == "ports      12 attachments   9 connected   1 link up   1 without application   1 faulty"
    assert shown[3].startswith(
        "traffic    to pods 6.12M frames/s  22.4 Gbit/s   from pods 6.11M frames/s  22.3 Gbit/s   dropped 5.25k/s"
    )
    assert shown[4].startswith("uplinks    ens1f0np0 on br-int in 9.86 Gbit/s, out 10.3 Gbit/s   ens1f1np1 on br-int in 781 ")
    assert shown[4].endswith(", out 789 Mbit/s, dropped 120/s")
    assert "core 2 (NUMA 0) █████████░  93% busy  2 queues" in shown[5]
    assert shown[6].startswith("           core 20 (NUMA 1) ░░░░░░░░░░   0% busy")
    assert shown[7] == "hugepages  NUMA 0 5 of 16 pages of 1 GiB free   NUMA 1 11 of 16 pages of 1 GiB free"
    headings = "ATTACHMENT STATE frames/s bit/s▼ frames/s bit/s▼ to from to from core CPU"
    assert shown[9].split() == headings.split()
    first = "core/upf-7f6d9c5b8-x2v4n/n6 connected 2.38M 10.3G 2.40M 10.4G 0 0 - - 2 39%"
    assert shown[10].split() == first.split()
    assert shown[-1] == "userspace-cni why tenant-b/cache-0/net1: what is wrong with it"
    assert " ".join(shown[12].split()).endswith(" 3.31k 0 101% of 800M 97% of 800M 4 8%")


def test_the_switch_is_dead() -> None:
    """A switch that does not serve is said in its line, with why; so is what could not be asked."""
    dead = replace(made_traffic(), vswitchd="dead", reason="ovs-vswitchd.7.ctl: Connection refused", counters=None, threads=None)
    shown = drawn(replace(made_picture(), traffic=dead))
    assert shown[1].startswith("switch     ovs-vswitchd is dead: ovs-vswitchd.7.ctl: Connection refused")
    problems = {"counters": "OpenFlow: no answer", "ovsdb": "no session", "threads": "no answer", "records": "damaged"}
    lost = replace(made_traffic(), problems=problems)
    shown = drawn(replace(made_picture(), traffic=lost))
    assert "OVSDB: no session" in shown[1]
    assert "records: damaged" in shown[2]
    assert shown[3] == "traffic    no counters: OpenFlow: no answer"
    assert shown[5] == "threads    not known: no answer"
    old = replace(made_traffic(), counters=CountersReading(0.0, {}, of_now=False, written_s=WRITTEN_S))
    shown = drawn(replace(made_picture(), traffic=old))
    assert "counters come from OVSDB, where they are written every 5 s" in shown[3]


def test_before_the_first_answer() -> None:
    """Before there is an answer it says what is asked, and how long that takes."""
    assert drawn(None)[1] == "asking the switch"
    assert "no answer for 7 s" in drawn(None, asking_s=7.2)[0]
    assert "no answer" not in drawn(None, asking_s=1.0)[0]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 132])
def test_narrow_terminals_keep_names(width: int) -> None:
    """Names are whole; columns are left out for lack of room, as few as possible, and all of them are named."""
    picture = made_picture()
    fitted = fit_columns(picture.rows, HIDDEN, width)
    assert {column.name for column, _ in fitted.columns} | set(fitted.left_out) == {each.name for each in COLUMNS} - HIDDEN
    shown = drawn(picture, size=(width, 40))
    for row in picture.rows:
        assert any(line.startswith(row.name) for line in shown)
    if fitted.left_out:
        assert shown[-1].startswith(f"no room for {fitted.left_out[0]}")
        said = shown[-1].partition("   ")[0]
        assert ("more" not in said) or said.endswith(f"and {len(fitted.left_out) - said.count(',') - 1} more")
    narrowest = min(column.width for column in COLUMNS if column.name in fitted.left_out) if fitted.left_out else 1000
    used = sum(taken for _, taken in fitted.columns) + 2 * (len(fitted.columns) - 1)
    assert used + 2 + narrowest > width


def test_low_terminals_keep_rows() -> None:
    """Lines about the node give way to rows, the last of them first; the switch stays. What has no room is named."""
    shown = drawn(made_picture(), size=(200, 10))
    assert [line.split()[0] for line in shown[1:4]] == ["switch", "ports", "traffic"]
    assert "no room for uplinks, threads, hugepages   userspace-cni why " in shown[-1]
    shown = drawn(made_picture(), size=(200, 8))
    assert shown[1].startswith("switch ")
    assert shown[-1].startswith("rows 1-3 of 12   no room for ports, traffic, uplinks, threads, hugepages   ")


@given(st.integers(1, 160), st.integers(1, 60), st.sampled_from(["", "h", "c", "f", "d", "n", "k"]), st.integers(0, 20))
def test_any_size(width: int, height: int, key: str, offset: int) -> None:
    """On a terminal of any size there are as many lines as it has, and none is wider."""
    state = replace(TopState(), offset=offset)
    state = press(state, key, 5) if key else state
    drawn(made_picture(state.choice), state, (width, height))
    drawn(None, state, (width, height))


def test_scrolled_rows() -> None:
    """The rows from the offset on are shown, and which ones they are; beyond the end are the last ones."""
    rows = named(*(f"pod-{number:03}" for number in range(400)))
    picture = made_picture(RowChoice("name"), rows)
    shown = drawn(picture, TopState(offset=100), (120, 30))
    first = next(number for number, line in enumerate(shown) if line.startswith("ATTACHMENT")) + 1
    assert shown[first].startswith("pod-100")
    page = 30 - first - 1
    assert f"rows 101-{100 + page} of 400" in shown[-1]
    assert drawn(picture, TopState(offset=1 << 30), (120, 30))[-2].startswith("pod-399")


def test_pages_of_text() -> None:
    """Help and columns have the screen for themselves, and scroll where it is too small."""
    state = press(TopState(), "h", 10)
    shown = drawn(made_picture(), state, (100, 50))
    assert shown[1] == "Keys"
    assert any("PgUp" in line for line in shown)
    assert shown[-1] == "any key: back"
    small = drawn(made_picture(), state, (80, 10))
    assert small[-1].startswith("lines 1-8 of ")
    assert drawn(made_picture(), press(state, "down", 8), (80, 10))[1] == small[2]
    columns = drawn(made_picture(), press(TopState(), "c", 10), (80, 30))
    assert "  a [ ] network" in columns
    assert "  f [x] state" in columns


def test_many_threads() -> None:
    """Threads take four lines at most: the busiest are shown, and how many others there are and how busy."""
    cores = [(0, core) for core in range(64)]
    loads = {(0, core): core / 100 for core in range(64)}
    picture = replace(made_picture(), traffic=replace(made_traffic(), threads=made_threads(cores)), loads=loads)
    shown = drawn(picture, size=(120, 40))
    lines = [line for line in shown if "busy" in line]
    assert len(lines) == 4
    assert "core 63 " in " ".join(lines)
    held = sum(line.count("core ") for line in lines)
    assert f"and {64 - held} more, none busier than  {63 - held}%" in lines[-1]
    assert "no polling thread" in "".join(drawn(replace(picture, traffic=replace(made_traffic(), threads=made_threads([])))))


def test_many_uplinks() -> None:
    """Uplinks take three lines at most: the busiest are shown, and how many others there are; one whose link is down says so."""
    uplinks = [TopUplink(f"eth{number}", "br0", "down", TrafficRates(bits_to_pod=float(number))) for number in range(40)]
    lines = [line for line in drawn(replace(made_picture(), uplinks=uplinks), size=(120, 40)) if " on br0" in line]
    assert len(lines) == 3
    assert "eth39 on br0 is down in - bit/s, out 39 bit/s" in lines[-1]
    held = sum(line.count(" on br0") for line in lines)
    assert lines[-1].endswith(f"and {40 - held} more, which carry less")


def test_text_from_outside_is_no_command_of_a_terminal() -> None:
    """Control characters in names and errors are shown as escapes."""
    evil = "a\x1b[2Jb\x9b31m\r\n"
    rows = named(evil, network=evil, bridge=evil, port=evil)
    traffic = replace(made_traffic(), reason=evil, problems=dict.fromkeys(("counters", "ovsdb", "threads", "records"), evil))
    picture = replace(
        made_picture(rows=rows),
        node=evil,
        uplinks=[TopUplink(evil, evil, "up", TrafficRates())],
        agent="unknown",
        agent_problem=evil,
        traffic=traffic,
    )
    state = TopState(RowChoice(text=evil), hidden=frozenset(), typed=evil, message=evil)
    for mode in ("rows", "filter", "delay"):
        lines = drawn(picture, replace(state, mode=mode), (400, 40))
        assert all(char.isprintable() for line in lines for char in line)
    assert all(char.isprintable() for line in texts(draw_batch(picture, state, 400)) for char in line)


def test_a_batch_has_all_rows() -> None:
    """A sample that is printed has every row and no line that is cut; columns without room are named."""
    shown = texts(draw_batch(made_picture(), TopState(), 4096))
    assert shown[0] == "userspace-cni top - worker-3 - 14:07:31, sorted by bits ▼"
    assert sum(line.startswith(tuple(row.name for row in made_rows())) for line in shown) == 12
    assert (
        texts(draw_batch(made_picture(), TopState(), 80))[-1]
        == "no room for frames to, frames from, limit to, limit from, polling core"
    )


def test_the_picture_in_the_pages() -> None:
    """docs/pictures/top.svg is what `python -m tests.lab.screens.top_picture` draws now, and loads nothing."""
    drawing = top_picture.draw()
    assert top_picture.PICTURE.read_text() == drawing
    assert "url(http" not in drawing
