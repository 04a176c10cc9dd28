"""Samples of output in the pages: the test that runs a page's commands compares them with what is printed, or writes them anew.

A sample is a block of ```text with the mark `<!-- output -->`: all that the block of commands above it prints on a terminal; or
`<!-- output: COMMAND -->`: what this line of that block prints. A page shows a real output; what differs from run to run counts
as equal: see `normal`. A line `...` stands for any lines, and `…` at the end of a line for its rest. The mark may begin with
`output, numbers vary`, for what is counted or measured: then any numbers are equal, alike lines in a row count once, and
warnings about the measurement are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import Final

from tests.lab.pages import COMMANDS, Block, blocks, forget, named

TEXT: Final = "text"
RENEW: Final = "RENEW_SAMPLES"
"""The environment variable with which a test writes a sample that is no longer right anew, instead of failing."""
COLUMNS: Final = 104
"""The columns of a line of a sample at most; the rest of a longer one is left out."""
_NUMBERS_VARY: Final = ", numbers vary"
_MARK: Final = re.compile(rf"output({_NUMBERS_VARY})?(?:: (.+))?")
CUT: Final = "..."
_REST: Final = "…"
_PLACES: Final = (
    (re.compile(r"/(?:[\w.-]+/)*uc-\w+/tmp\.\w+"), "/run/openvswitch"),
    (re.compile(r"/(?:[\w.-]+/)*uc-\w+/clone\b"), "/root/userspace-cni"),
    (re.compile(r"/(?:[\w.-]+/)*uc-\w+"), "/tmp"),
    (re.compile(r"/(?:[\w.-]+/)*ovn-\w{8}\b"), "/var/run/ovn"),
    (re.compile(r"/volumes/kubernetes\.io~empty-dir/"), "/…/"),
)
"""Directories of a test, and the usual ones that pages have in their place; a part of the kubelet's that says nothing."""
_UNIT: Final = "ns|µs|ms|s|min|h|d|seconds?|minutes?|hours?|days?"
_VOLATILE: Final = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "MAC"),
    (re.compile(r"\bfe80::[0-9a-f:]+"), "LINK-LOCAL"),
    (re.compile(r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?)?\b"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d([.,]\d+)?\b"), "TIME"),
    (re.compile(rf"\b(\d+([.]\d+)?-)?\d+([.]\d+)? ?({_UNIT})\b( ?\d+ ?({_UNIT})\b)*"), "DURATION"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "HEX"),
    (re.compile(r"\b(pid|process|PID) \d+"), r"\1 PID"),
    (re.compile(r"(?<![\d.])\d+\.\d+\.\d+(?!\.?\d)[\w+~-]*"), "VERSION"),
    (re.compile(r"\b(OVS|Open vSwitch|DPDK|OVN|Linux|Python|QEMU|containerd|kernel) \d+\.\d+[\w.+~-]*"), r"\1 VERSION"),
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,64}\b"), "ID"),
)
_COUNTED: Final = (
    (re.compile(r"DURATION +[█▉▊▋▌▍▎▏]* *"), "DURATION "),
    (re.compile(r"(, [\d.]+%)?(, [\d,]+ frames of others)?$"), ""),
    (re.compile(r"[█▉▊▋▌▍▎▏░]+"), "█"),
    (re.compile(r"\b[kMG](bit/s|pps)"), r"\1"),
)
"""What numbers change beside themselves: bars, units of rates, and what is said only where something was lost."""
_PROGRESS: Final = re.compile(r".* \(for [\d.]+ s, since \d\d:\d\d:\d\dZ\)")
_WARNING: Final = "warning: "
_NUMBER: Final = re.compile(r"(?<![\w.])\d[\d.,]*\d?(?:[kKMGT](?=\s|$)|%)?|(?<= )-(?= |$)")
"""A number, also a percentage, or the `-` in its place in a table."""
_SPACE: Final = re.compile(r"[ \t]+")
_RULE: Final = re.compile(r"([─━═-])\1{2,}")


@dataclass(frozen=True)
class Sample:
    """A block of text with what `of` prints, or of it the line `command`, if that is not ""."""

    block: Block
    of: Block
    command: str
    numbers_vary: bool


def samples(page: Path) -> tuple[Sample, ...]:
    """The samples of a page, in order; ValueError for one with no such command above it."""
    return tuple(_samples(page))


def _samples(page: Path) -> Iterator[Sample]:
    above: Block | None = None
    for block in blocks(page):
        if block.language == COMMANDS:
            above = block
        elif mark := _MARK.fullmatch(block.mark):
            command = mark[2] or ""
            if above is None or (command and command not in map(command_of, above.text.splitlines())):
                raise ValueError(f"{page.name}:{block.line}: the block of {COMMANDS} above has no line '{command}'")
            yield Sample(block, above, command, bool(mark[1]))


def command_of(line: str) -> str:
    """A line of commands without the remark behind it."""
    return line.partition("  #")[0].strip()


def traced(block: Block) -> str:
    """The block's commands for bash, with lines that print for `printed_by` where an output begins and ends.

    `TRACING` has their functions. Where there is a sample of it, the output includes stderr.
    """
    wanted = {sample.command for sample in samples(block.page) if sample.of == block}
    whole = "" in wanted
    begin, end = ("trace", "trace") if whole else ("begin", "end")
    lines = [f"{'begin' if whole else 'trace'} {block.place}"]
    for line in block.text.splitlines():
        if (command := command_of(line)) and command in wanted:
            lines += [f"{begin} {block.place} {quote(command)}", line, f"{end} {block.place}"]
        else:
            lines.append(line)
    if whole:
        lines.append(f"end {block.place}")
    if block.code:
        lines = ["set +e", *lines, f"test $? = {block.code} || {{ echo 'not the code {block.code}'; exit 1; }}", "set -e"]
    return "".join(f"{line}\n" for line in lines)


TRACING: Final = f"""
exec 9>&2
trace() {{ local was=$?; echo "=== $*"; return $was; }}
begin() {{ trace "$@"; exec 2>&1; export COLUMNS={COLUMNS}; }}
end() {{ trace "$@"; local was=$?; exec 2>&9; unset COLUMNS; return $was; }}
"""
"""What a script with blocks of `traced` begins with. Between begin and end outputs are as on a terminal of that width."""


def printed_by(text: str) -> dict[str, str]:
    """What came behind each line `=== NAME`, by that name; all of a block by the block's place."""
    _, *parts = re.split(r"^=== (.*)\n", text, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        place, _, command = name.partition(" ")
        found[place] = found.get(place, "") + part
        if command:
            found[name] = part
    return found


def check_page(page: Path, printed: Mapping[str, str]) -> None:
    """AssertionError for samples of a page that are not what its commands printed, if `printed` (by `printed_by`) has them."""
    names = {sample: f"{sample.of.place} {sample.command}".rstrip() for sample in samples(page)}
    _check({sample: printed[name] for sample, name in names.items() if name in printed})


def check_sample(page: Path, command: str, printed: str) -> None:
    """AssertionError if the page's sample of this command is not what was printed."""
    [sample] = [each for each in samples(page) if each.command == command]
    _check({sample: printed})


def _check(printed: Mapping[Sample, str]) -> None:
    wrong = {sample: text for sample, text in printed.items() if not is_like(sample, text)}
    if wrong and os.environ.get(RENEW):
        _write({sample.block: renewed(sample, text) for sample, text in wrong.items()})
        return
    assert not wrong, "\n".join(difference(sample, text) for sample, text in wrong.items())


def natural(text: str) -> str:
    """The output as a page has it: with the usual directories; without progress, spaces at ends, and empty lines around it."""
    for pattern, place in _PLACES:
        text = re.sub(rf"({pattern.pattern})(\S*)( {{2,}})(?=\S)", partial(_aligned, place), text)
        text = pattern.sub(place, text)
    lines = [line.rstrip() for line in text.splitlines() if not _PROGRESS.fullmatch(line)]
    return "".join(f"{line}\n" for line in "\n".join(lines).strip("\n").splitlines())


def _aligned(place: str, found: re.Match[str]) -> str:
    """The place instead of a longer one, with spaces so that the next column of a table begins where it did."""
    *_, rest, gap = found.groups()
    return f"{place}{rest}{gap}{' ' * (len(found[0]) - len(place + rest + gap))}"


def normal(line: str, *, numbers_vary: bool = False) -> str:
    """The line with a word in place of each id, address of a link, time, duration, pid and version."""
    for pattern, word in _VOLATILE:
        line = pattern.sub(word, line)
    if numbers_vary:
        for pattern, word in _COUNTED:
            line = pattern.sub(word, line)
        line = _NUMBER.sub("N", line)
    return _SPACE.sub(" ", _RULE.sub(r"\1", line)).strip()


def _lines(sample: Sample, text: str) -> list[tuple[str, list[str]]]:
    """Each line of an output as `normal` makes it, with its text; alike lines together where numbers vary."""
    lines = natural(text).splitlines()
    if not sample.numbers_vary:
        return [(normal(line), [line]) for line in lines]
    pairs = [(normal(line, numbers_vary=True), line) for line in lines if not line.startswith(_WARNING)]
    return [(alike, [line for _, line in group]) for alike, group in groupby(pairs, key=lambda pair: pair[0])]


def is_like(sample: Sample, printed: str) -> bool:
    """Whether the sample is what was printed, but for what `normal` makes equal, what is left out, and where lines break."""
    if _folded(sample.block.text) == _folded(printed):
        return True
    parts: list[list[str]] = [[]]
    for line, _ in _lines(sample, sample.block.text):
        if line == CUT:
            parts.append([])
        else:
            parts[-1].append(line)
    lines = [line for line, _ in _lines(sample, printed)]
    first, *others = parts
    if not _match(first, lines[: len(first)]) or (not others and len(first) != len(lines)):
        return False
    lines = lines[len(first) :]
    for part in others[:-1]:
        found = next((at for at in range(len(lines)) if _match(part, lines[at : at + len(part)])), None)
        if found is None:
            return False
        lines = lines[found + len(part) :]
    last = others[-1] if others else []
    return len(last) <= len(lines) and _match(last, lines[len(lines) - len(last) :])


def _folded(text: str) -> str:
    """The text in one line: how long a version or a time is decides where a sentence breaks."""
    return normal(" ".join(natural(text).split()))


def _match(wanted: list[str], lines: list[str]) -> bool:
    return len(wanted) == len(lines) and all(map(_is_line, wanted, lines))


def _is_line(wanted: str, line: str) -> bool:
    return line == wanted or (wanted.endswith(_REST) and line.startswith(wanted.removesuffix(_REST).rstrip()))


def renewed(sample: Sample, printed: str) -> str:
    """What was printed, for the page: with lines left out where the sample left some out, and long ones cut."""
    kept: list[str] = []
    for _, was, now in _parts(sample, "\n".join(map(_cut, natural(printed).splitlines()))):
        groups = now
        if [CUT] in was:
            head, tail = was.index([CUT]), was[::-1].index([CUT])
            if head + tail < len(now):
                groups = [*now[:head], [CUT], *now[len(now) - tail :]]
        kept += [line for group in groups for line in group]
    return "".join(f"{line}\n" for line in kept)


def difference(sample: Sample, printed: str) -> str:
    """The sample beside what was printed, with the command that writes it anew."""
    lines: list[str] = []
    for alike, was, now in _parts(sample, printed):
        lines += [f"{' ' if alike else '-'} {line}" for group in was for line in group]
        lines += [f"+ {line}" for group in now for line in group if not alike]
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0] or "TEST"
    return "\n".join(
        [
            f"{sample.block.place}: the sample of '{sample.command or 'the block above it'}' (-) is not what was printed (+).",
            f"If the new output is right, this writes it into the page: {RENEW}=1 .venv/bin/python -m pytest -q {test}",
            *lines,
        ]
    )


def _parts(sample: Sample, printed: str) -> Iterator[tuple[bool, list[list[str]], list[list[str]]]]:
    """The lines of the sample and of an output, part by part: whether they are alike, and both."""
    old, new = _lines(sample, sample.block.text), _lines(sample, printed)
    matcher = SequenceMatcher(None, [line for line, _ in old], [line for line, _ in new], autojunk=False)
    for word, i1, i2, j1, j2 in matcher.get_opcodes():
        yield word == "equal", [lines for _, lines in old[i1:i2]], [lines for _, lines in new[j1:j2]]


def _cut(line: str) -> str:
    if len(line) <= COLUMNS:
        return line
    short = line[: COLUMNS - 2]
    end = short.rfind(" ")
    return f"{short[:end] if end > COLUMNS / 2 else short} {_REST}"


def _write(texts: Mapping[Block, str]) -> None:
    for block in sorted(texts, key=lambda each: -each.line):
        lines = block.page.read_text(encoding="utf-8").splitlines(keepends=True)
        begin, end = block.line - 1, block.line - 1 + len(block.text.splitlines())
        assert "".join(lines[begin:end]) == block.text, f"{named(block.page)} has changed meanwhile: run the test again"
        block.page.write_text("".join([*lines[:begin], texts[block], *lines[end:]]), encoding="utf-8")
    forget()
