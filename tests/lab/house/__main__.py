"""House rules for source, tests and pages that no tool checks: `python -m tests.lab.house` prints what breaks one, and exits 1.

Each finding is a line `path:line: what is wrong, and what to do`. Changes nothing.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Final

from tests.lab.house import rules_of_c, rules_of_commands, rules_of_contributing, rules_of_pages, rules_of_python, rules_of_tests
from tests.lab.house.tree import Finding, Rule, Tree
from tests.lab.pages import ROOT

RULES: Final[tuple[Rule, ...]] = (
    *rules_of_python.RULES,
    *rules_of_tests.RULES,
    *rules_of_c.RULES,
    *rules_of_pages.RULES,
    *rules_of_commands.RULES,
    *rules_of_contributing.RULES,
)


def findings(root: Path) -> list[Finding]:
    """Everything that breaks a rule in the project at `root`; a directory without source, tests, C or pages is no project."""
    tree = Tree(root)
    looked_at = {
        "Python": tree.sources,
        "tests": tree.test_files,
        "C": tree.c_sources,
        "tests in C": tree.c_tests,
        "pages": tree.pages,
    }
    if missing := [kind for kind, files in looked_at.items() if not files]:
        return [Finding(".", 1, f"no {', no '.join(missing)} below {root}: the rules have nothing to look at")]
    try:
        return sorted({finding for rule in RULES for finding in rule(tree)})
    except SyntaxError as error:
        return [Finding(error.filename or ".", error.lineno or 1, f"{error.msg}: no rule can be checked before this is mended")]


def main() -> int:
    """Print the findings; the exit code: 0 for none."""
    found = findings(ROOT)
    for finding in found:
        print(finding)
    if found:
        print(f"house: {len(found)} findings")
    return bool(found)


if __name__ == "__main__":
    gc.disable()  # collection would take half of the time, for syntax trees that all live to the end
    sys.exit(main())
