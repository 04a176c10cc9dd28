"""Each house rule finds what breaks it, in a project made for that, and leaves alone what keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.house import (
    __main__ as house,
)
from tests.lab.house import (
    rules_of_c as c,
)
from tests.lab.house import (
    rules_of_commands as commands,
)
from tests.lab.house import (
    rules_of_contributing as contributing,
)
from tests.lab.house import (
    rules_of_pages as pages,
)
from tests.lab.house import (
    rules_of_python as python,
)
from tests.lab.house import (
    rules_of_tests as of_tests,
)
from tests.lab.house.tree import LINES_MAX, Rule, Tree
from tests.lab.pages import ROOT

MODULE = "userspace_cni/some.py"
A_TEST = "tests/unit/test_some.py"
C = "userspace_cni/some.c"
C_TEST = "tests/native/some.c"
PAGE = "docs/page.md"
SITE = "docs/site/mkdocs.yml"
A_SAMPLE = "```bash\nls\n```\n\n<!-- output: ls -->\n```text\n"
FORM = ".github/ISSUE_TEMPLATE/form.yml"
HOOKS = (ROOT / contributing.HOOKS).read_text()

HEADERS = """
/**
 * told() - Do it
 * @one:	How often
 * @two, @three: Where
 *
 * Return: 0
 */
static inline int told(int one, const char *two,
		struct thing *const three[2])
{
	return 0;
}

/** silent() - Do nothing */
static void silent(void)
{
}

/**
 * called() - Call
 * @function:	What to call
 */
__attribute__((noinline)) void called(void (*function)(int, int)) {
	if (function)
		function(1, 2);
}
"""
"""Definitions over several lines, of pointers to functions, and with an attribute."""

IMPORT = "from userspace_cni.attachment.steps import Guard, HostEnd, Step\n"
"""Types of steps and kinds of ports."""

ASKS = "name: a\ndescription: b\nbody:\n- type: textarea\n  id: c\n  attributes: {label: d}\n"

KEEP: list[tuple[Rule, str, str]] = [
    (python.size_of_a_module, MODULE, "x = 1\n" * LINES_MAX),
    (python.size_of_a_module, A_TEST, "x = 1\n" * (LINES_MAX + 1)),
    (python.names_say_what_is_in_it, "userspace_cni/host/node_net/network_managers.py", ""),
    (python.class_names_are_unique, MODULE, "class Some: ...\n\nclass Other: ...\n"),
    (python.class_names_are_unique, A_TEST, "class Module: ...\n\nclass A:\n    class Module: ...\n"),
    (python.file_names_are_unique, "userspace_cni/room/__init__.py", ""),
    (python.file_names_are_unique, "userspace_cni/room/other.py", ""),
    (python.file_names_are_unique, "userspace_cni/module.c", ""),
    (python.plain_words, MODULE, "# it cannot be; the user nobody; root-of-nobody; NOBODY = 65534\n"),
    (python.executed_commands_check_for_errors, MODULE, "x.execute(check_error=True)\n"),
    (python.steps_describe_themselves, MODULE, f"{IMPORT}from a import Link\nisinstance(x, Link)\nisinstance(x, Step)\n"),
    (python.steps_describe_themselves, "userspace_cni/switch/some.py", f"{IMPORT}isinstance(x, Guard)\n"),
    (
        of_tests.every_test_says_what_it_shows,
        A_TEST,
        'def test_x():\n    """It works.\n\n    See there\n    """\n\ndef other(): ...\n',
    ),
    (of_tests.no_test_sleeps, A_TEST, "def wait_until():\n    while True:\n        time.sleep(1)\n"),
    (of_tests.no_test_is_in_a_hurry, A_TEST, "assert time.monotonic() - a > 3\nwhile x:\n    assert time.monotonic() < ends\n"),
    (of_tests.one_file_asserts_on_time, of_tests.TIMED, "x = time.thread_time()\n"),
    (of_tests.one_profile_of_hypothesis, A_TEST, "from hypothesis import settings\n\nx = settings(max_examples=3)\n"),
    (of_tests.one_profile_of_hypothesis, "tests/conftest.py", "import hypothesis\n\nsettings.load_profile('suite')\n"),
    (of_tests.file_names_are_unique, "tests/host/test_other.py", ""),
    (of_tests.test_names_are_unique_in_a_file, A_TEST, "def test_x(): ...\n\nclass A:\n    def test_x(self): ...\n"),
    (c.size_of_a_file, C, "\n" * LINES_MAX),
    (c.size_of_a_file, "userspace_cni/shim/shim.c", "\n" * (LINES_MAX + 1)),
    (c.every_function_is_found, C, HEADERS),
    (c.every_function_has_a_header, C, HEADERS),
    (c.every_function_of_a_test_has_a_comment, C_TEST, HEADERS),
    (
        c.contents_of_the_long_file,
        "userspace_cni/shim/shim.c",
        "/*\n * CONTENTS\n *   one     what\n *   two   what\n */\n/* -- one --- */\n/* -- two --- */\n",
    ),
    (pages.pages_can_be_read, PAGE, "# A\n```bash\nls\n```\n# B\n"),
    (pages.blocks_of_code, PAGE, "<!-- not run: it waits -->\n```bash\nls\n```\n"),
    (pages.samples_are_of_commands, PAGE, f"{A_SAMPLE}{'a' * 104}\n```\n"),
    (pages.blocks_that_are_no_commands, PAGE, "```toml\na = 1\n```\n\n```yaml\nspec: {config: '{}'}\n```\n"),
    (pages.blocks_that_are_no_commands, PAGE, "```python\nfrom os.path import join\n```\n"),
    (pages.links_lead_somewhere, PAGE, "# Some heading\n[x](#some-heading) [y](page.md) [z](https://example.com/) `[a](b)`\n"),
    (pages.lines_of_prose_are_short, PAGE, f"{'a ' * 80}\n| {'a ' * 200}|\n```\n{'a ' * 200}\n```\n"),
    (pages.every_page_is_in_the_index, "docs/README.md", "[readme](../README.md)\n[page](page.md)\n"),
    (pages.the_index_has_the_chapters_of_the_site, "docs/README.md", "## Start\n[a](../README.md) [b](page.md) [c](page.md#d)\n"),
    (pages.rooms_are_as_the_pages_say, "docs/internals.md", "`room/module`, `room/module.Name`, `tests/unit`, `state_dir/x`\n"),
    (commands.commands_and_options_exist, PAGE, "`userspace-cni status --json`, `--dir`, `userspace-cni NAME`\n"),
    (
        contributing.pages_name_what_exists,
        PAGE,
        (
            "`tests/run.sh unit -k some`, `tests/run.sh quick`, `tests/run.sh KIND -k NAME`, `docs/`, `userspace_cni/some`\n"
            "```bash\n.venv/bin/python -m pytest tests/unit/test_some.py -k test_it   # tests/nothing\nkubectl -k dir\n```\n"
        ),
    ),
    (contributing.targets_run_what_exists, "Makefile", "docs:\n\t@.venv/bin/python -m tests.lab.house\n\techo done\n"),
    (contributing.hooks_are_the_checks, contributing.HOOKS, HOOKS),
    (contributing.forms_can_be_used, FORM, ASKS),
    (contributing.forms_can_be_used, ".github/ISSUE_TEMPLATE/config.yml", "blank_issues_enabled: true\n"),
]
BREAK: list[tuple[Rule, str, str, int, str]] = [
    (python.size_of_a_module, MODULE, "x = 1\n" * (LINES_MAX + 1), 501, "501 lines"),
    (python.names_say_what_is_in_it, "userspace_cni/host/utils.py", "", 1, "'utils'"),
    (python.names_say_what_is_in_it, "tests/lab/common/ports.py", "", 1, "'common'"),
    (python.names_say_what_is_in_it, "localdb/_helpers.py", "", 1, "'_helpers'"),
    (python.names_say_what_is_in_it, "userspace_cni/fastpath/util.h", "", 1, "'util'"),
    (python.class_names_are_unique, MODULE, "class Some: ...\n\nclass Some: ...\n", 3, f"{MODULE}:1"),
    (python.class_names_are_unique, MODULE, "class Some: ...\n\nclass A:\n    class _Some: ...\n", 4, f"{MODULE}:1"),
    (python.file_names_are_unique, "localdb/some.py", "", 1, "userspace_cni/some.py"),
    (python.file_names_are_unique, "userspace_cni/zone/some.c", "", 1, C),
    (python.plain_words, MODULE, "\n# it can| not be\n", 2, "'can| not'"),
    (python.plain_words, A_TEST, "# Some|body else's\n", 1, "'Some|body'"),
    (python.plain_words, C, "/* told no|body */\n", 1, "'no|body'"),
    (python.plain_words, PAGE, "for who|ever asks\n", 1, "'who|ever'"),
    (python.plain_words, "HISTORY.md", "for every|body\n", 1, "'every|body'"),
    (python.executed_commands_check_for_errors, MODULE, "\n\nx.execute()\n", 3, "check_error"),
    (python.steps_describe_themselves, MODULE, f"{IMPORT}isinstance(x, (int, Guard))\n", 2, "Guard"),
    (python.steps_describe_themselves, MODULE, f"{IMPORT}match x:\n    case HostEnd(mtu=1):\n        pass\n", 3, "HostEnd"),
    (python.executed_commands_check_for_errors, A_TEST, "x.execute(check_error=False)\n", 1, "check_error"),
    (of_tests.every_test_says_what_it_shows, A_TEST, "\ndef test_x(): ...\n", 2, "test_x"),
    (of_tests.every_test_says_what_it_shows, A_TEST, 'def test_x():\n    """It works"""\n', 1, "test_x"),
    (of_tests.no_test_sleeps, A_TEST, "def wait():\n    time.sleep(1)\n", 2, "sleeps"),
    (of_tests.no_test_sleeps, "tests/lab/some.py", "sleep(1)\n", 1, "sleeps"),
    (of_tests.no_test_is_in_a_hurry, A_TEST, "\nassert 1 < time.monotonic() - a < 3\n", 2, "upper bound"),
    (of_tests.no_test_is_in_a_hurry, A_TEST, "assert 3 >= perf_counter()\n", 1, "upper bound"),
    (of_tests.one_file_asserts_on_time, A_TEST, "\ntime.process_time()\n", 2, of_tests.TIMED),
    (of_tests.one_file_asserts_on_time, of_tests.TIMED, "", 1, "no clock"),
    (of_tests.one_profile_of_hypothesis, A_TEST, "import hypothesis\n\nx = settings(deadline=None)\n", 3, "deadline"),
    (of_tests.one_profile_of_hypothesis, A_TEST, "import hypothesis\n\nload_profile('x')\n", 3, "load_profile"),
    (of_tests.file_names_are_unique, "tests/unit/zone/test_some.py", "", 1, A_TEST),
    (of_tests.test_names_are_unique_in_a_file, A_TEST, "def test_x(): ...\n\ndef test_x(): ...\n", 1, "in line 3"),
    (c.size_of_a_file, C, "\n" * (LINES_MAX + 1), 501, "501 lines"),
    (c.size_of_a_file, C_TEST, "\n" * (LINES_MAX + 1), 501, "501 lines"),
    (c.every_function_is_found, C, "/* a head that is not read */\nint told(int = 3)\n{\n}\n", 1, "0 functions"),
    (c.every_function_has_a_header, C, HEADERS.replace("/** silent() - Do nothing */\n", ""), 15, "'silent() - '"),
    (c.every_function_has_a_header, C, HEADERS.replace("silent() - D", "other() - D"), 16, "'silent() - '"),
    (c.every_function_has_a_header, C, HEADERS.replace("nothing */\n", "nothing */\n\n"), 17, "'silent() - '"),
    (c.every_function_has_a_header, C, HEADERS.replace("/** silent() - ", "/* "), 16, "'silent() - '"),
    (c.every_function_has_a_header, C, HEADERS.replace("@one:", "@once:"), 9, "'@one'"),
    (c.every_function_has_a_header, C, HEADERS.replace("@two, @three:", "@two:"), 9, "'@three'"),
    (c.every_function_has_a_header, C, HEADERS.replace("Return: 0", "It returns 0"), 9, "'Return:'"),
    (c.every_function_has_a_header, C, HEADERS.replace("@function:", "function:"), 24, "'@function'"),
    (c.every_function_of_a_test_has_a_comment, C_TEST, HEADERS.replace("/** silent() - Do nothing */\n", ""), 15, "silent"),
    (
        c.contents_of_the_long_file,
        "userspace_cni/shim/shim.c",
        "/*\n * CONTENTS\n *   two     what\n *   one   what\n */\n/* -- one --- */\n/* -- two --- */\n",
        2,
        "['two', 'one']",
    ),
    (pages.rooms_are_as_the_pages_say, "docs/internals.md", "\n`room/other.Name`\n", 2, "no room/other"),
    (pages.rooms_are_as_the_pages_say, "docs/internals.md", "\n`other/module`\n", 2, "no other/module"),
    (pages.rooms_are_as_the_pages_say, "docs/internals.md", "\n`Other`\n", 2, "has Other"),
    (pages.rooms_are_as_the_pages_say, "docs/internals.md", "\n`room/module.Other`\n", 2, "has Other"),
    (pages.rooms_are_as_the_pages_say, "docs/architecture.md", "# Architecture\n", 1, "differ: room"),
    (pages.pages_can_be_read, PAGE, "```bash\nls\n", 1, "no end"),
    (pages.pages_can_be_read, PAGE, "# A\n# A\n", 1, "heading twice"),
    (pages.blocks_of_code, PAGE, "```perl\nx\n```\n", 2, "perl"),
    (pages.blocks_of_code, PAGE, "<!-- not run: it waits -->\n```yaml\na: 1\n```\n", 3, "only a block of bash"),
    (pages.blocks_of_code, PAGE, "<!-- not run: it waits -->\n\n```bash\nls\n```\n", 1, "right above"),
    (pages.blocks_of_code, PAGE, "<!-- not run: -->\n```bash\nls\n```\n", 1, "no reason"),
    (pages.blocks_of_code, PAGE, "- a\n  ```bash\n", 2, "indented"),
    (pages.samples_are_of_commands, PAGE, "```text\na\n```\n", 2, "without a mark"),
    (pages.samples_are_of_commands, PAGE, A_SAMPLE.replace("ls -->", "df -->") + "a\n```\n", 1, "no line 'df'"),
    (pages.samples_are_of_commands, PAGE, f"{A_SAMPLE}```\n", 7, "no sample"),
    (pages.samples_are_of_commands, PAGE, f"{A_SAMPLE}...\n```\n", 7, "no sample"),
    (pages.samples_are_of_commands, PAGE, f"{A_SAMPLE}{'a' * 105}\n```\n", 7, "more than 104 columns"),
    (pages.samples_are_of_commands, PAGE, f"<!-- not run: tests/x.py does -->\n{A_SAMPLE}a\n```\n", 3, "name the test"),
    (pages.blocks_that_are_no_commands, PAGE, "```toml\na = \n```\n", 2, "toml"),
    (pages.blocks_that_are_no_commands, PAGE, "```yaml\na: [\n```\n", 2, "yaml"),
    (pages.blocks_that_are_no_commands, PAGE, "```yaml\na: 1\n---\n```\n", 2, "empty"),
    (pages.blocks_that_are_no_commands, PAGE, "```yaml\nspec: {config: '{'}\n```\n", 2, "yaml"),
    (pages.blocks_that_are_no_commands, PAGE, "```python\nx =\n```\n", 2, "python"),
    (pages.blocks_that_are_no_commands, PAGE, "```python\nfrom os.path import nothing\n```\n", 2, "os.path has no nothing"),
    (
        pages.blocks_that_are_no_commands,
        PAGE,
        "```python\nfrom userspace_cni.nothing import x\n```\n",
        2,
        "userspace_cni.nothing",
    ),
    (pages.links_lead_somewhere, PAGE, "\n[x](nothing.md)\n", 2, "nothing.md"),
    (pages.links_lead_somewhere, PAGE, "# A\n[x](#b)\n", 2, "#b"),
    (pages.lines_of_prose_are_short, PAGE, f"\n{'a ' * 81}\n", 2, "162 columns"),
    (pages.every_page_is_in_the_index, "docs/other.md", "", 1, "does not list"),
    (pages.every_page_is_in_the_index, "README.md", "", 1, "no link"),
    (
        pages.the_index_has_the_chapters_of_the_site,
        "docs/README.md",
        "## Start\n[page](page.md)\n[readme](../README.md)\n",
        2,
        "page.md in 'Start' where docs/site/mkdocs.yml has repository/README.md",
    ),
    (pages.the_index_has_the_chapters_of_the_site, "docs/README.md", "## Start\n[readme](../README.md)\n", 1, "has nothing"),
    (
        pages.the_index_has_the_chapters_of_the_site,
        "docs/README.md",
        "## Start\n[readme](../README.md)\n## Tasks\n[page](page.md)\n",
        4,
        "page.md in 'Tasks'",
    ),
    (commands.commands_and_options_exist, PAGE, "\n`userspace-cni nothing`\n", 2, "nothing"),
    (commands.commands_and_options_exist, PAGE, "```bash\nuserspace-cni status --nothing | cat -n\n```\n", 2, "--nothing"),
    (commands.commands_and_options_exist, PAGE, "\n`--nothing-of-ours`\n", 2, "--nothing-of-ours"),
    (commands.commands_and_options_exist, FORM, f"{ASKS}# `userspace-cni nothing`\n", 7, "nothing"),
    (contributing.pages_name_what_exists, PAGE, "\n`tests/unit/test_gone.py`\n", 2, "file tests/unit/test_gone.py"),
    (contributing.pages_name_what_exists, PAGE, "```bash\nls\nmake nothing\n```\n", 3, "target nothing"),
    (contributing.pages_name_what_exists, FORM, "a: b\n# `make nothing`\n", 2, "target nothing"),
    (contributing.pages_name_what_exists, PAGE, "`sudo tests/run.sh nothing`\n", 1, "kind of tests nothing"),
    (contributing.pages_name_what_exists, PAGE, "`tests/run.sh lane nothing`\n", 1, "lane nothing"),
    (contributing.pages_name_what_exists, PAGE, "`tests/run.sh unit -k nothing`\n", 1, "test with the name nothing"),
    (contributing.pages_name_what_exists, PAGE, "`.venv/bin/python -m tests.nothing`\n", 1, "module tests.nothing"),
    (contributing.pages_name_what_exists, PAGE, "`.venv/bin/python -m nothing.at.all`\n", 1, "module nothing.at.all"),
    (contributing.pages_name_what_exists, PAGE, "`.venv/bin/nothing`\n", 1, "program .venv/bin/nothing"),
    (contributing.targets_run_what_exists, "Makefile", "docs:\n\tls\n\tdeploy/nothing.sh\n", 3, "file deploy/nothing.sh"),
    (contributing.hooks_are_the_checks, contributing.HOOKS, HOOKS.replace("tests.lab.house", "tests.lab"), 1, "'house rules'"),
    (contributing.hooks_are_the_checks, contributing.HOOKS, "repos: [\n", 1, "cannot be read"),
    (contributing.hooks_are_the_checks, contributing.HOOKS, "repos: [{repo: local, hooks: [{id: a}]}]\n", 1, "'entry'"),
    (contributing.hooks_are_the_checks, contributing.HOOKS, HOOKS.replace("local\n", "https://a/b\n"), 3, "fetched"),
    (
        contributing.hooks_are_the_checks,
        contributing.HOOKS,
        f"{HOOKS}  - {{id: a, name: b, language: system, entry: .venv/bin/nothing}}\n",
        HOOKS.count("\n") + 1,
        "program .venv/bin/nothing",
    ),
    (contributing.forms_can_be_used, FORM, "name: [\n", 1, "expected"),
    (contributing.forms_can_be_used, FORM, "- a\n", 1, "no mapping"),
    (contributing.forms_can_be_used, FORM, ASKS.replace("description: b\n", ""), 1, "no description"),
    (contributing.forms_can_be_used, FORM, ASKS.replace("textarea", "text"), 1, "no type 'text'"),
    (contributing.forms_can_be_used, FORM, "name: a\ndescription: b\nbody: [c]\n", 1, "refuses"),
    (contributing.forms_can_be_used, FORM, ASKS.replace("label", "lable"), 1, "lable is not known"),
    (contributing.forms_can_be_used, FORM, ASKS.replace("{label: d}", "{description: d}"), 1, "without label"),
    (contributing.forms_can_be_used, FORM, ASKS + ASKS.partition("body:\n")[2], 1, "an id is given twice"),
    (
        contributing.forms_can_be_used,
        FORM,
        "name: a\ndescription: b\nbody: [{type: markdown, attributes: {value: c}}]\n",
        1,
        "nothing",
    ),
    (contributing.forms_can_be_used, ".github/ISSUE_TEMPLATE/config.yml", "blank_issues: true\n", 1, "blank_issues is not"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that keeps every rule but those for the tables of commands, keys and codes, whose pages it does not have."""
    files = {
        MODULE: '"""A module."""\n',
        "userspace_cni/room/module.py": '"""A module."""\n\nclass Name: ...\n',
        A_TEST: 'def test_it() -> None:\n    """It works."""\n',
        C: HEADERS,
        C_TEST: HEADERS,
        PAGE: "# Page\n",
        "tests/run.sh": "",
        "README.md": "[docs](docs/README.md)\n",
        "docs/README.md": "## Start\n[readme](../README.md), [page](page.md)\n",
        SITE: "nav: [{Start: [index.md, repository/README.md, page.md]}]\n",
    }
    for path, text in files.items():
        write(tmp_path / path, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    """Write a file, in a directory that may not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def name_of(rule: object) -> str:
    """A rule's name, in the ID of a test."""
    return getattr(rule, "__name__", "")


def test_a_project_that_keeps_the_rules(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of it, and the exit code is 0."""
    monkeypatch.setattr(house, "ROOT", project)
    assert house.main() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("rule", "path", "text"), KEEP, ids=name_of)
def test_what_keeps_a_rule_is_left_alone(project: Path, rule: Rule, path: str, text: str) -> None:
    """The rule says nothing of a file that keeps it."""
    write(project / path, text)
    assert list(rule(Tree(project))) == []


@pytest.mark.parametrize(("rule", "path", "text", "line", "said"), BREAK, ids=name_of)
def test_what_breaks_a_rule_is_found(project: Path, rule: Rule, path: str, text: str, line: int, said: str) -> None:
    """The rule names file and line; a bar in a case divides a word that this file itself must not have."""
    write(project / path, text.replace("|", "") if rule is python.plain_words else text)
    (found,) = rule(Tree(project))
    assert (found.path, found.line) == (path, line)
    assert (said.replace("|", "") if rule is python.plain_words else said) in found.text


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (commands.every_option_is_in_the_reference, commands.REFERENCE),
        (commands.every_key_of_a_network_is_documented, commands.NETWORK),
        (commands.every_code_is_documented, commands.OPERATIONS),
    ],
    ids=name_of,
)
def test_tables_that_tell_what_the_program_has(project: Path, rule: Rule, path: str) -> None:
    """The rule says nothing of the project's own page, which has all."""
    write(project / path, (ROOT / path).read_text())
    assert list(rule(Tree(project))) == []


@pytest.mark.parametrize(
    ("rule", "path", "said"),
    [
        (commands.every_option_is_in_the_reference, commands.REFERENCE, "no section 'status'"),
        (commands.every_key_of_a_network_is_documented, commands.NETWORK, "lacks the key engine"),
        (commands.every_code_is_documented, commands.OPERATIONS, "code 888: no error has it"),
        (commands.every_code_is_documented, commands.OPERATIONS, "code 7: the table lacks it"),
    ],
    ids=name_of,
)
def test_tables_that_tell_something_else(project: Path, rule: Rule, path: str, said: str) -> None:
    """Missing entries of a table are found, and those that the program does not have."""
    write(project / path, "# Page\n\n## Keys\n\n| `host` |\n\n## How a call fails\n\n| 888 |\n")
    assert any(said in finding.text for finding in rule(Tree(project)))


def test_tables_of_options_have_all_options_and_no_other(project: Path) -> None:
    """An option that the reference lacks, and one that the command does not know, are found in that command's section."""
    text = (ROOT / commands.REFERENCE).read_text()
    before, heading, after = text.partition("\n## status\n")
    write(project / commands.REFERENCE, before + heading + after.replace("| `--json`", "| `--jsonl`", 1))
    found = list(commands.every_option_is_in_the_reference(Tree(project)))
    assert [finding.line for finding in found] == [before.count("\n") + 2] * 2
    assert [text.partition(":")[0] for text in sorted(finding.text for finding in found)] == [
        "the table lacks --json of userspace-cni status",
        "userspace-cni status has no --jsonl",
    ]


def test_every_rule_has_its_cases() -> None:
    """No rule is left out of the command, and none of the cases above."""
    assert {rule for rule, *_ in BREAK} | {*commands.RULES} == set(house.RULES)
    assert {rule for rule, *_ in KEEP} | {*commands.RULES} == set(house.RULES)


def test_findings_are_printed(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding is a line with its place, in order; the exit code is 1."""
    write(project / A_TEST, "def test_it() -> None:\n    sleep(1)\n")
    write(project / PAGE, "[x](nothing.md)\n")
    monkeypatch.setattr(house, "ROOT", project)
    assert house.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"{PAGE}:1:", f"{A_TEST}:1:", f"{A_TEST}:2:", "house:"]


def test_a_file_that_is_no_python(project: Path) -> None:
    """It is named with its line, and with the note that no rule could be checked."""
    write(project / A_TEST, "\ndef test_it(\n")
    (found,) = house.findings(project)
    assert (found.path, found.line) == (A_TEST, 2)
    assert "no rule can be checked" in found.text


def test_a_place_without_a_project(project: Path) -> None:
    """A missing project is a finding: otherwise it would seem to keep all rules."""
    (project / A_TEST).unlink()
    (found,) = house.findings(project)
    assert "no tests below" in found.text
