"""Who works on the records as a whole: one process at a time, and each message names the two that met."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.agent.singleton import AnotherAgent, Singleton


def test_messages_name_who_comes_and_who_is_there(tmp_path: Path) -> None:
    """An agent beside uninstall, and uninstall beside an agent, are told apart; what ended holds nothing."""
    first, second = Singleton(), Singleton()
    for there, comes in (("the agent", "userspace-cni uninstall"), ("userspace-cni uninstall", "the agent")):
        first.claim(str(tmp_path), "/run/a", there)
        with pytest.raises(AnotherAgent) as refused:
            second.claim(str(tmp_path), "/run/b", comes)
        assert refused.value.message.startswith(f"{comes} cannot begin: ")
        assert f"{there}, process " in refused.value.message
        assert refused.value.holder.endswith("run_dir /run/a")
        first.release()
        second.claim(str(tmp_path), "/run/b", comes)
        second.release()
