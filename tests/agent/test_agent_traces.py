"""Traces of calls: what a collector is told, that none of its faults affects a call, and that nothing is loaded without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded
from tests.lab.kube.apiserver import make_certificate
from tests.lab.kube.pods import Pod
from tests.lab.node import agent
from tests.lab.node.node import CONTAINER
from tests.lab.node.trace_collector import MANNERS, Manner, TraceCollector, attributes, collecting
from tests.lab.switch.switch import wait_until
from userspace_cni.base.stages import STAGES

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TAKEN: tuple[Manner, ...] = ("endless", "garbage")
"""With these the traces have arrived; what follows the status is read up to a bound, and may be anything."""
GIVEN_UP: tuple[Manner, ...] = ("refusing", "partial")
"""What these do not want they will never take: it is not sent again."""
SAID = "sending traces failed"
IMPORTED = "import time:"


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with collecting() as started:
        yield started


def traced(live: LiveNode, collector: TraceCollector) -> LiveNode:
    live.settings["USERSPACE_CNI_OTLP_ENDPOINT"] = collector.endpoint
    return live.start(SETTLE_S=0.05, SILENCE_S=0.5, SENDING_S=0.5)


def test_spans_from_the_runtime_to_the_switch(live: LiveNode, sandbox: str, collector: TraceCollector) -> None:
    """The span of a call belongs to the runtime's; its stages are below it, and say for whom it was."""
    pod = Pod()
    live.settings["USERSPACE_CNI_NODE_NAME"] = "n1"
    live.empty_dir(pod.uid)
    traced(live, collector)
    network = live.network("1.0.0", name="blue", ipam=live.host_local())
    parent = {"TRACEPARENT": f"00-{TRACE}-{SPAN}-01", "TRACESTATE": "a=b"}
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args, **parent))
    wait_until(lambda: collector.calls("ADD"), what="the span of ADD")
    assert set(collector.paths) == {("/v1/traces", "application/x-protobuf")}
    [resource] = {tuple(attributes(of.resource.attributes).items()) for each in collector.requests for of in each.resource_spans}
    assert dict(resource).items() >= {"service.name": "userspace-cni", "k8s.node.name": "n1"}.items()
    [span] = collector.calls("ADD")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, SPAN, "a=b")
    assert attributes(span.attributes) == {
        "cni.verb": "ADD",
        "cni.error_code": 0,
        "container.id": CONTAINER,
        "k8s.namespace.name": "default",
        "k8s.pod.name": "app",
        "k8s.pod.uid": pod.uid,
        "cni.ifname": "net1",
        "cni.network": "blue",
        "cni.bridge": "br-test",
    }
    below = collector.below(span)
    assert {each.trace_id for each in below} == {span.trace_id}
    assert {"hand-over", "lock", "ipam", "plan", "ovs", "record"} <= {each.name for each in below} <= {"hand-over", *STAGES}
    assert all(each.start_time_unix_nano <= each.end_time_unix_nano for each in (span, *below))
    assert all(span.start_time_unix_nano <= each.start_time_unix_nano for each in below)
    assert all(each.end_time_unix_nano <= span.end_time_unix_nano for each in below)
    [handed] = [each for each in below if each.name == "hand-over"]
    stages = [each for each in below if each is not handed]
    assert handed.start_time_unix_nano == span.start_time_unix_nano
    assert handed.end_time_unix_nano <= min(each.start_time_unix_nano for each in stages)
    seconds = live.metric("verb_seconds_sum", verb="ADD", stage="ovs")
    told = sum(each.end_time_unix_nano - each.start_time_unix_nano for each in stages if each.name == "ovs")
    assert told / 1e9 == pytest.approx(seconds, rel=0.01)
    succeeded(live.run("DEL", network, sandbox))
    wait_until(lambda: collector.calls("DEL"), what="the span of DEL")
    [ended] = collector.calls("DEL")
    assert (ended.trace_id.hex() != TRACE, ended.parent_span_id) == (True, b"")


def test_a_call_that_fails(live: LiveNode, sandbox: str, collector: TraceCollector) -> None:
    """Its span has the code, and nothing of the text of the error or of the configuration."""
    traced(live, collector)
    secret = "s3cr3t-of-a-tenant"
    network = live.network(sharedDir=f"/etc/{secret}", args={"token": secret})
    network["host"]["bridge"]["bridgeName"] = "not/a/bridge"
    code = refused(live.run("ADD", network, sandbox), 7)["code"]
    wait_until(lambda: collector.calls("ADD"), what="the span")
    [span] = collector.calls("ADD")
    assert (attributes(span.attributes)["cni.error_code"], span.status.code) == (code, span.status.STATUS_CODE_ERROR)
    assert secret.encode() not in b"".join(each.SerializeToString() for each in collector.requests)


def test_the_runtimes_decision_is_kept(live: LiveNode, sandbox: str, collector: TraceCollector) -> None:
    """A call of a trace that the runtime does not keep is not traced; one with a malformed parent begins a trace of its own."""
    traced(live, collector)
    succeeded(live.run("ADD", live.network(), sandbox, TRACEPARENT=f"00-{TRACE}-{SPAN}-00"))
    succeeded(live.run("ADD", live.network(), sandbox, container(1), "net2", TRACEPARENT=f"00-{'0' * 32}-{SPAN}-01"))
    succeeded(live.run("ADD", live.network(), sandbox, container(2), "net3", TRACEPARENT="x" * 100))
    wait_until(lambda: len(collector.calls("ADD")) >= 2, what="two spans")
    spans = {attributes(span.attributes)["cni.ifname"]: span for span in collector.calls("ADD")}
    assert set(spans) == {"net2", "net3"}
    assert all(any(span.trace_id) and not span.parent_span_id for span in spans.values())


@pytest.mark.parametrize("manner", MANNERS)
def test_a_collector_that_is_none(live: LiveNode, sandbox: str, manner: Manner) -> None:
    """Whatever it does, calls succeed, and one line says what is wrong; when it is well again it gets traces."""
    with collecting(manner) as collector:
        traced(live, collector)
        for _ in range(3):
            succeeded(live.run("ADD", live.network(), sandbox))
            succeeded(live.run("DEL", live.network(), sandbox))
        wait_until(lambda: manner in TAKEN or SAID in live.log.read_text(), what="a line of the log")
        asked = collector.asked
        wait_until(lambda: manner in (*TAKEN, *GIVEN_UP) or collector.asked > asked, what="another try")
        assert live.log.read_text().count(SAID) == (manner not in TAKEN)
        assert live.page("/healthz")[0] == 200
        collector.manner = "good"
        collector.over.set()
        succeeded(live.run("ADD", live.network(), sandbox, container(9), "net9"))

        def came() -> bool:
            return any(attributes(span.attributes)["cni.ifname"] == "net9" for span in collector.calls("ADD"))

        wait_until(came, what="the span of the last call")
        kept = len({span.span_id for span in collector.calls("ADD") + collector.calls("DEL")})
        assert (live.metric("traces_dropped_total") > 0) == (manner == "refusing")
        assert manner == "refusing" or kept == 7


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "unknown"])
def test_over_tls(live: LiveNode, sandbox: str, tmp_path: Path, trusted: bool) -> None:
    """A collector at https gets traces if its certificate is of an authority that the node trusts; else one line says why not."""
    certificate = make_certificate(tmp_path)
    live.settings["SSL_CERT_FILE"] = str(certificate) if trusted else os.devnull
    with collecting(certificate=certificate) as collector:
        traced(live, collector)
        succeeded(live.run("ADD", live.network(), sandbox))
        if trusted:
            wait_until(lambda: collector.calls("ADD"), what="the span")
        else:
            wait_until(lambda: "certificate verify failed" in live.log.read_text(), what="the reason")
            assert collector.requests == []


def test_the_last_traces_are_sent(live: LiveNode, sandbox: str, collector: TraceCollector) -> None:
    """An agent that is told to end sends what it has, and ends in time also where the collector is silent."""
    live.settings["USERSPACE_CNI_OTLP_ENDPOINT"] = collector.endpoint
    live.start(SETTLE_S=600.0, FINAL_S=60.0)
    succeeded(live.run("ADD", live.network(), sandbox))
    assert live.end() == 0
    assert len(collector.calls("ADD")) == 1
    collector.manner = "silent"
    live.start(SETTLE_S=600.0)
    succeeded(live.run("DEL", live.network(), sandbox))
    assert live.end() == 0
    assert collector.asked == 2


def modules_of(text: str) -> set[str]:
    """The modules that `python -X importtime` says a process has imported."""
    return {line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith(IMPORTED)}


@pytest.mark.parametrize("named", [False, True], ids=["without", "with"])
def test_what_is_imported(live: LiveNode, sandbox: str, collector: TraceCollector, named: bool) -> None:
    """OpenTelemetry is imported by an agent that has a collector alone, and by no process that serves a verb."""
    if named:
        live.settings["USERSPACE_CNI_OTLP_ENDPOINT"] = collector.endpoint
    with agent.running(live, PYTHONPROFILEIMPORTTIME="1") as started:
        succeeded(live.run("ADD", live.network(), sandbox))
        wait_until(lambda: not named or collector.calls("ADD"), what="its span")
        modules = modules_of(started.log.read_text())
        assert started.stop(signal.SIGTERM) == 0
    assert "userspace_cni.agent.agent_service" in modules
    assert any(each.startswith("opentelemetry") for each in modules) == named
    assert ("userspace_cni.agent.trace_export" in modules) == named
    environ = live.variables("DEL", sandbox, CONTAINER, "net1", PYTHONPROFILEIMPORTTIME="1", USERSPACE_CNI_HAND_OVER="false")
    call = [sys.executable, "-m", "userspace_cni"]
    done = subprocess.run(call, env=os.environ | environ, input=b'{"cniVersion":"1.1.0","name":"net","type":"userspace"}',
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout
    of_verb = modules_of(done.stderr.decode())
    assert "userspace_cni.attachment.verbs" in of_verb
    assert not [each for each in of_verb if each.startswith(("opentelemetry", "userspace_cni.agent.trace"))]


@pytest.mark.parametrize(
    "broken", ["ModuleNotFoundError(\"No module named 'opentelemetry'\")", "RuntimeError('another protobuf')"]
)
def test_without_the_extra(live: LiveNode, sandbox: str, collector: TraceCollector, tmp_path: Path, broken: str) -> None:
    """An agent without the extra, or with one that cannot be used, says at its start what is missing, and serves."""
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").write_text(f"raise {broken}\n")
    live.settings["USERSPACE_CNI_OTLP_ENDPOINT"] = collector.endpoint
    with agent.running(live, PYTHONPATH=str(tmp_path)) as started:
        succeeded(live.run("ADD", live.network(), sandbox))
        [line] = [line for line in started.log.read_text().splitlines() if "no traces are sent" in line]
        assert "userspace-cni[otel]" in line
        assert started.stop() == 0
    assert collector.asked == 0
