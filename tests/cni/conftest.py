"""Fixtures of the black-box tests of the plugin, beside those for a node and a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.kube.apiserver import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        yield started


IN_A_PROCESS = {
    "test_del_right_after_an_add_that_failed": "settings of one call",
    "test_003_nothing_else_on_stdout": "what a delegate says on stderr is in the agent's log",
    "test_004_never_a_result_and_an_error": "settings of one call",
    "test_011_a_signal_undoes_add": "the delegate's parent is the agent; tests/agent kills callers",
    "test_020_variables_that_a_verb_does_not_use": "the shim refuses control characters in all that travels",
    "test_046_switch_that_is_away": "settings of one call",
    "test_069_is_recorded_and_finished_later": "settings of one call",
    "test_069_is_recorded_where_there_is_room": "settings of one call",
    "test_075_the_child_of_a_killed_add": "settings of one call",
    "test_083_ready_or_not": "settings of one call",
    "test_086_nothing_is_written": "settings of one call",
    "test_097_what_the_delegate_is_given": "what a delegate says on stderr is in the agent's log",
    "test_102_the_wait_for_a_lock_is_bounded": "settings of one call",
    "test_105_reboot": "takes the agent's own directory away",
    "test_108_addresses_that_are_asked_for": "what a delegate says on stderr is in the agent's log",
}
"""Tests of the specification that apply to the plugin as a process only, each with the reason."""


HANDED = ("test_spec_f_result", "test_spec_h_check")
"""Files whose tests also run through a process that hands its calls to an agent, because they look at what the process prints."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the specification with a plugin process and with an agent behind the shim."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if "node" in metafunc.fixturenames and module.startswith(("test_spec_", "test_recordings")):
        entries = ["process"] if metafunc.function.__name__ in IN_A_PROCESS else ["process", "agent"]
        if module in HANDED and len(entries) > 1:
            entries.append("handed")
        metafunc.parametrize("node", entries, indirect=True)
