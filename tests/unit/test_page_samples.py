"""Samples of output in pages are compared with what commands print, but for what differs from run to run, and written anew."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab import pages
from tests.lab.pages import blocks
from tests.lab.samples import COLUMNS, RENEW, TRACING, check_page, check_sample, printed_by, samples, traced

COMMANDS = """# Page

```bash
echo one; echo two >&2
printf 'port 17  up\\nport 18  up\\n'  # two ports
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path / "page.md"


def with_sample(page: Path, text: str, mark: str = "output") -> None:
    """Write the page with one sample."""
    page.write_text(f"{COMMANDS}\n<!-- {mark} -->\n```text\n{text}```\n")
    pages.forget()


def shown(page: Path) -> str:
    [sample] = samples(page)
    return sample.block.text


def run(page: Path) -> dict[str, str]:
    """What the page's commands print in one shell."""
    script = TRACING + "".join(traced(block) for block in blocks(page) if block.is_run)
    done = subprocess.run(["bash", "-e", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return printed_by(done.stdout)


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("output", "one\ntwo\nport 17  up\nport 18  up\n"),
        ("output: echo one; echo two >&2", "one\ntwo\n"),
        (r"output: printf 'port 17  up\nport 18  up\n'", "port 17  up\nport 18  up\n"),
    ],
)
def test_a_sample_is_of_a_block_or_of_a_line(page: Path, mark: str, text: str) -> None:
    """It has what the block or the line printed on stdout and stderr, and no other text."""
    with_sample(page, text, mark)
    check_page(page, run(page))
    with_sample(page, text.replace("port 17", "port 16").replace("two", "three"), mark)
    with pytest.raises(AssertionError, match=r"(?ms)^page\.md:10: .*^\+ (two|port 17)"):
        check_page(page, run(page))


def test_a_block_that_ends_with_a_code(page: Path) -> None:
    """The block's last command ends with the code of its mark; the commands after it run."""
    parts = (
        "<!-- ends with 1: it has to -->\n```bash\nfalse\n```\n",
        "```bash\necho it\n```\n",
        "<!-- output -->\n```text\nit\n```\n",
    )
    text = "\n".join(parts)
    page.write_text(text)
    check_page(page, run(page))
    page.write_text(text.replace("false", "true"))
    pages.forget()
    with pytest.raises(subprocess.CalledProcessError):
        run(page)


@pytest.mark.parametrize(
    ("shows", "prints"),
    [
        ("made 2 s ago, at 2026-11-28 03:44:04 UTC", "made 1 min 12 s ago, at 2027-01-02 13:04:59 UTC"),
        ("MAC 02:18:6f:21:f9:00, up for 3.1 ms", "MAC 6a:e5:04:92:c5:2f, up for 17 s"),
        ("pid 17 of Open vSwitch 3.1.0 with DPDK 22.11.3", "pid 4711 of Open vSwitch 3.5.1 with DPDK 24.11.2"),
        ("store=0123456789abcdef0123456789abcdef", "store=fedcba9876543210fedcba9876543210"),
        ("unix:/run/openvswitch/db.sock", "unix:/tmp/uc-kx_26ef4/tmp.wz7ADLO4ij/db.sock"),
        ("unix:/run/openvswitch/db.sock", "unix:/dev/shm/uc-kx_26ef4/tmp.wz7ADLO4ij/db.sock"),
        ("POD       PORT   LINK", "POD   PORT                 LINK"),
        ("made 2 s ago by\n  Open vSwitch 3.1.0", "made 12 s\nago by Open vSwitch 3.10.1"),
        ("at the socket …", "at the socket of another pod"),
        ("one", "looking at the node (for 1.1 s, since 03:45:44Z)\none\n"),
    ],
)
def test_what_differs_from_run_to_run(page: Path, shows: str, prints: str) -> None:
    """Ids, times, directories of a test and the width of columns are no difference."""
    with_sample(page, f"{shows}\n")
    check_sample(page, "", prints)
    assert shown(page) == f"{shows}\n"


@pytest.mark.parametrize(
    ("shows", "prints"),
    [
        ("vlan 100", "vlan 101"),
        ("10.56.217.2", "10.56.217.3"),
        ("one\n...\nthree", "one\ntwo\nfour"),
        ("...\ntwo\n...", "one\nthree"),
        ("one\n...", "two\nthree"),
        ("one", "one\ntwo"),
        ("one\ntwo", "one"),
        ("up", ""),
        ("17 frames", "18 frames"),
    ],
)
def test_everything_else_is_a_difference(page: Path, shows: str, prints: str) -> None:
    """The difference has what was printed, and the command that writes it anew."""
    with_sample(page, f"{shows}\n")
    with pytest.raises(AssertionError, match=rf"(?ms){RENEW}=1 .* tests/unit/test_page_samples.py\n.*^[-+] ") as raised:
        check_sample(page, "", f"{prints}\n")
    assert all(f"+ {line}" in str(raised.value) or f"  {line}" in str(raised.value) for line in prints.splitlines())


def test_lines_that_are_left_out(page: Path) -> None:
    """`...` stands for any lines, also none."""
    with_sample(page, "one\n...\nthree\n...\nsix\n")
    for text in ("one\ntwo\nthree\nsix\n", "one\nthree\nfour\nfive\nsix\n"):
        check_sample(page, "", text)


def test_measured_numbers(page: Path) -> None:
    """Where numbers vary, so may the number of lines that are alike, their bars, losses and warnings; words may not."""
    with_sample(page, "1.0-1.6 ms  ██▎  7  70%\n1.6-2.5 ms  █  3  30%\n10 round trips, 0 lost\n", "output, numbers vary")
    check_sample(page, "", "warning: one core\n10-16 ms  █████▉  9  100%\n9 round trips, 1 lost, 1.3%, 3 frames of others\n")
    with_sample(page, "core  1     0%\n", "output, numbers vary")
    check_sample(page, "", "core  1     -\n")
    with_sample(page, "10 round trips, 0 lost\n", "output, numbers vary")
    with pytest.raises(AssertionError, match=r"(?m)^\+ 10 rounds"):
        check_sample(page, "", "10 rounds, 0 lost\n")


@pytest.mark.parametrize(
    ("shows", "prints", "renewed"),
    [
        ("", "one\ntwo\n", "one\ntwo\n"),
        ("one\n...\nfour\n", "ONE\ntwo\nthree\nFOUR\n", "ONE\n...\nFOUR\n"),
        ("one\n...\n", "ONE\ntwo\nthree\n", "ONE\n...\n"),
        ("a\n...\nd\ne\n...\nh\n", "a\nb\nd\nE\nf\nh\n", "a\n...\nd\nE\n...\nh\n"),
        ("a\n", f"{'b ' * COLUMNS}\n", f"{'b ' * (COLUMNS // 2 - 2)}b …\n"),
    ],
)
def test_it_is_written_anew(monkeypatch: pytest.MonkeyPatch, page: Path, shows: str, prints: str, renewed: str) -> None:
    """A sample that is no longer right becomes what was printed, with the same lines left out; then it is right."""
    with_sample(page, shows)
    monkeypatch.setenv(RENEW, "1")
    check_sample(page, "", prints)
    assert shown(page) == renewed
    assert page.read_text().startswith(COMMANDS)
    monkeypatch.delenv(RENEW)
    check_sample(page, "", prints)


def test_a_mark_names_a_command(page: Path) -> None:
    """A sample of a line that the commands do not have is refused."""
    with_sample(page, "one\n", "output: echo three")
    with pytest.raises(ValueError, match="no line 'echo three'"):
        samples(page)
