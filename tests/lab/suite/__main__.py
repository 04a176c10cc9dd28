"""The suite, as `tests/run.sh` calls it: checks, groups of tests, a rerun of what failed, and a table of everything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

from tests.lab.lanes import page, record
from tests.lab.lanes.programs import NotMade, programs
from tests.lab.lanes.table import LANES, lane
from tests.lab.suite import checks, seconds
from tests.lab.suite.beds import Making
from tests.lab.suite.calls import Result, again
from tests.lab.suite.changed import select, told
from tests.lab.suite.exercised import ROOT
from tests.lab.suite.groups import ALL_OURS, LANE, ORDERED, QUICK, ROOTLESS, SHARED, files, groups, idle, kinds, samples
from tests.lab.suite.lines import GroupRun, Line
from tests.lab.suite.table import Row, summary

LIST = "--list"
"""Option of `changed`."""
DEMO = "deploy/demo.sh"
_BEGAN = time.monotonic()
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(what: str) -> None:
    """Begin a part of the run."""
    print(f"\n== {what} ({time.monotonic() - _BEGAN:.0f} s)", flush=True)


def prepare(tests: Sequence[str]) -> None:
    """Install what these test files need. SystemExit has the reason why that is impossible."""
    needed = kinds(tests) - {"unit"}
    if needed and os.geteuid():
        sys.exit("tests/run.sh: needs root for OVS-DPDK, mounts and namespaces; 'tests/run.sh unit' and 'check' do not")
    if needed and subprocess.run(["deploy/prepare.sh", *sorted(needed)], check=False).returncode:
        sys.exit("tests/run.sh: what the tests need could not be installed")


def check() -> Row:
    """Style, types, import and house rules."""
    say("style, types, import and house rules")
    began = time.monotonic()
    failures = dict.fromkeys(checks.failed(), "it is printed above")
    return Row("checks", Result(len(checks.CHECKS), time.monotonic() - began, failures))


def run(tests: Sequence[str], *, with_lanes: bool = False) -> bool:
    """Run checks and these test files, and samples of them on the lanes; then rerun what failed; whether all passed."""
    prepare(tests)
    checked = check()
    rows = [] if checked.failed else run_groups(tests, with_lanes=with_lanes)
    if rows:
        seconds.note({file: taken for row in rows if row.group in ORDERED for file, taken in row.result.spent.items()})
    return judge([checked], rows)


def judge(before: list[Row], tests: list[Row]) -> bool:
    """Rerun the tests that failed, and print the result of everything; whether all passed."""
    rows = [*before, *tests]
    for inside in dict.fromkeys(row.inside for row in tests):
        judged = [row for row in tests if row.inside == inside]
        if suspects := [test for row in judged for test in (*row.result.failures, *row.result.missed)]:
            say(f"once more and alone: {len(suspects)} that failed or did not run")
            second = again(suspects, inside=inside)
            for row in judged:
                row.judge(second)
            runs = second.values()
            rows.append(Row("once more", Result(sum(each.tests for each in runs), sum(each.seconds for each in runs))))
    text, passed = summary(rows)
    say("the end")
    print(text, flush=True)
    return passed


def run_groups(tests: Sequence[str], *, with_lanes: bool = False) -> list[Row]:
    """Run the groups, in parallel where they may."""
    sharing = ALL_OURS if idle() else SHARED
    planned = groups(tests, sharing)
    sampled = samples() if with_lanes else ()
    with ExitStack() as stack:
        making = Making([bed for group in (*planned, *sampled) for bed in group.beds])
        stack.callback(making.stop)
        beside = Line((planned.rootless, planned.cluster, *sampled), making)
        stack.callback(beside.stop)
        rows = []
        if planned.shared.files:
            say("tests that share the machine; the rootless ones, those of the cluster and the samples on lanes run meanwhile")
            rows += [GroupRun(planned.shared).row()]
        say("waiting for the rootless tests, those of the cluster and the samples on lanes")
        rows += beside.rows()
        print(making.wait(), flush=True)
        for group, what in (
            (planned.guests, "tests with virtual machines, two at a time"),
            (planned.alone, "tests that run alone"),
        ):
            if group.files:
                say(what)
                rows += [GroupRun(group).row()]
    return rows


def narrowing(options: str) -> str:
    """Those of pytest's options that may leave tests out: all but `-p`."""
    return re.sub(r"(^|\s)-p\s*\S+", "", options).strip()


def main(arguments: Sequence[str]) -> int:
    """Do what `tests/run.sh` is asked for."""
    what, *rest = arguments or ("all",)
    lists = what == "changed" and LIST in rest
    if lists:
        rest.remove(LIST)
    if "" in arguments:  # an unset variable of the caller's: pytest would run everything
        print("tests/run.sh: an argument is empty", file=sys.stderr)
        return 2
    if rest[what == "changed" :] and what in ("all", "quick", "check", "changed"):
        print(
            f"tests/run.sh: {what} takes {'one name' if what == 'changed' else 'no arguments'}: {' '.join(rest)}", file=sys.stderr
        )
        return 2
    if what == "check":
        return bool(check().failed)
    if what in ("all", "quick", "changed") and (options := narrowing(os.environ.get("PYTEST_ADDOPTS", ""))):
        print(
            f"tests/run.sh: PYTEST_ADDOPTS has {options}: with options of pytest tests may be left out, and {what} runs all; "
            "`tests/run.sh KIND` takes them",
            file=sys.stderr,
        )
        return 2
    if what == "all":
        return not run(files(), with_lanes=True)
    if what == "quick":
        return not run(files(*QUICK))
    if what == "changed":
        return run_changed(*rest, lists=lists)
    if what == "lane":
        return run_lane(*rest)
    if what == "judge":
        return run_judge(rest)
    if what not in kinds(files()):
        print(
            f"tests/run.sh: there is no {what}: all, quick, changed, check, lane, judge, or one of "
            f"{', '.join(sorted(kinds(files())))}",
            file=sys.stderr,
        )
        return 2
    return run_kind(what, rest)


def run_changed(base: str | None = None, *, lists: bool = False) -> int:
    """Print what the change since `base` can reach, and run that, unless it is only to be listed."""
    try:
        found = select(base)
    except ValueError as error:
        print(f"tests/run.sh: {error}", file=sys.stderr)
        return 2
    print(told(found), flush=True)
    return not lists and not run([each.file for each in found])


def run_lane(name: str = "", *options: str) -> int:
    """Run on a lane what each lane runs and record the result; or become pytest there, with its own options."""
    if name not in {each.name for each in LANES}:
        print(f"tests/run.sh: there is no lane '{name}': {', '.join(each.name for each in LANES)}", file=sys.stderr)
        return 2
    prepare(files(*LANE))
    try:
        made = programs(lane(name))
    except NotMade as error:
        print(f"lane {name}: not made: {error}", file=sys.stderr)
        return 1
    if options:
        command = (*made.inside, sys.executable, "-m", "pytest", "-q", *options)
        os.execvp(command[0], command)
    say(f"the demo, on lane {name}")
    demo = run_demo(made.inside)
    rows = []
    for group in groups(files(*LANE), ALL_OURS if idle() else SHARED):
        if group.files:
            say(f"tests of group {group.name}, on lane {name}")
            rows.append(GroupRun(replace(group, lane=name)).row())
    passed = judge([demo], rows)
    record.keep(name, record.Ran.of(made, [demo, *rows]), record.own_versions())
    page.PAGE.write_text(page.with_table(page.PAGE.read_text(), record.read()))
    return not passed


def run_judge(patterns: Sequence[str]) -> NoReturn:
    """Become the program that runs Kubernetes' own cases, on a cluster as the tests of that kind have it."""
    prepare(files("tests/cluster"))
    os.execv(sys.executable, (sys.executable, "-m", "tests.lab.judge", *patterns))


def run_demo(inside: tuple[str, ...]) -> Row:
    began = time.monotonic()
    command = (*inside, sys.executable, "-m", "deploy.demo")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    failures = {DEMO: done.stdout} if done.returncode else {}
    print(*failures.values(), flush=True)
    return Row("demo", Result(1, time.monotonic() - began, failures, files=Counter([DEMO])), inside=inside)


def run_kind(kind: str, options: Sequence[str]) -> NoReturn:
    """Become pytest, with its own options, for one directory, or for the files and tests among the options."""
    tests = files(f"tests/{kind}")
    prepare(tests)
    if told := Making([bed for group in groups(tests) for bed in group.beds]).wait():
        print(told, file=sys.stderr, flush=True)
    workers = ROOTLESS if kind == "unit" else ()
    place = ("-o", f"testpaths=tests/{kind}")  # which pytest takes where its options name none: it alone knows which of them do
    os.execv(sys.executable, (sys.executable, "-m", "pytest", "-q", *workers, *place, *options))


def heed() -> None:
    """Let a run that is ended, or whose terminal is closed, clean up; a second signal does not stop the cleanup."""

    def ended(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, lambda _number, _frame: None)
        raise SystemExit(128 + number)

    for each in _ENDING:
        signal.signal(each, ended)


def print_anything() -> None:
    """Print a failure's text, which may have characters that the encoding lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    os.chdir(ROOT)
    heed()
    print_anything()
    sys.exit(main(sys.argv[1:]))
