"""An agent whose kubeconfig is written after its start serves meanwhile, says what is missing, and needs no restart."""

from __future__ import annotations

from pathlib import Path

from tests.agent.living import LiveNode
from tests.cni.spec import succeeded
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod


def test_a_kubeconfig_that_comes_later(live: LiveNode, sandbox: str) -> None:
    """ADD is refused with the file's name until it exists, and then succeeds; DEL succeeds after it was removed again."""
    path = live.directory / "kubeconfig"
    live.settings["USERSPACE_CNI_KUBECONFIG"] = str(path)
    pod = Pod(volume={"emptyDir": {}})
    live.empty_dir(pod.uid)
    with ApiServer() as api:
        pod.create(api)
        live.start()
        made = live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args)
        assert made.status == 1
        assert str(path) in made.document["msg"]
        assert "the setting kubeconfig" in made.document["details"]
        assert f"{path}: No such file" in live.log.read_text()
        assert Path(api.kubeconfig(live.directory)) == path
        succeeded(live.run("ADD", live.network(), sandbox, CNI_ARGS=pod.args))
        assert [entry["ifName"] for entry in pod.entries(api)] == ["net1"]
        path.unlink()
        succeeded(live.run("DEL", live.network(), sandbox, CNI_ARGS=pod.args))
    live.await_clean()
