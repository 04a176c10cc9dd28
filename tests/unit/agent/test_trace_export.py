"""Traces that no collector takes are bounded in number and size; what is told of a call is its names."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.lab.node.trace_collector import attributes
from userspace_cni.agent.call_trace import TEXT_MAX, CallTrace, at_wall_clock, bridge_of, is_wanted, names_of, read_parent
from userspace_cni.agent.otlp_spans import encode_traces
from userspace_cni.agent.trace_export import BATCH, KEPT, TraceExport
from userspace_cni.base.stages import PERIODS_MAX, StagePeriod, collect, stage

GOOD = f"00-{'a' * 32}-{'b' * 16}-01"


def trace(code: int = 0, **environ: str) -> CallTrace:
    return CallTrace("ADD", code, 1, 2, 3, (), names_of(environ, "net", "br0"), read_parent(environ))


def test_no_more_wait_than_there_is_room_for() -> None:
    """With a collector that takes nothing the oldest traces are given up, and each is counted."""
    dropped: list[int] = []
    export = TraceExport("http://127.0.0.1:9", {}, dropped.append)
    for number in range(KEPT + 30):
        export.put(trace(number))
    assert (export.waiting, sum(dropped)) == (KEPT, 30)


def test_what_the_largest_call_costs() -> None:
    """Names are cut, stages are bounded, so that a request has a size that is known beforehand."""
    periods: list[StagePeriod] = []
    with collect(periods) as seconds:
        for _ in range(PERIODS_MAX * 3):
            with stage("ovs"):
                pass
    assert (len(periods), list(seconds)) == (PERIODS_MAX, ["ovs"])
    huge = "ü" * 100_000
    environ = {
        "CNI_CONTAINERID": huge,
        "CNI_IFNAME": huge,
        "CNI_ARGS": f"K8S_POD_NAMESPACE={huge};K8S_POD_NAME={huge};K8S_POD_UID={huge}",
        "TRACEPARENT": GOOD,
        "TRACESTATE": huge,
    }
    names = names_of(environ, huge, huge)
    assert {len(value) for value in names.values()} == {TEXT_MAX}
    largest = CallTrace("ADD", 0, 1, 2, 3, at_wall_clock(periods, 1), names, read_parent(environ))
    one = len(encode_traces([largest], {}))
    assert one < 64 * 1024
    assert len(encode_traces([largest] * BATCH, {})) < BATCH * 64 * 1024


def test_names_that_are_no_text() -> None:
    """Bytes of a caller's environment that are no UTF-8 do not keep a trace from being sent."""
    sent = ExportTraceServiceRequest.FromString(encode_traces([trace(CNI_IFNAME="net\udcff1")], {"service.name": "x"}))
    [span, _] = sent.resource_spans[0].scope_spans[0].spans
    assert attributes(span.attributes)["cni.ifname"] == "net?1"


def test_what_is_sent_again_is_the_same() -> None:
    """A trace has its numbers from the beginning: a collector that has got it twice knows it."""
    once = trace()
    assert encode_traces([once], {}) == encode_traces([once], {}) != encode_traces([trace()], {})


def test_whose_trace_it_is() -> None:
    """Only a parent in W3C's form counts; one that is not kept by its runtime is not kept here."""
    found = read_parent({"TRACEPARENT": GOOD, "TRACESTATE": "a=b"})
    assert found is not None
    assert (found.trace.hex(), found.span.hex(), found.state) == ("a" * 32, "b" * 16, "a=b")
    for wrong in ("", GOOD.upper(), f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", f"{GOOD}\n", f"{GOOD}-1"):
        assert read_parent({"TRACEPARENT": wrong}) is None
        assert is_wanted({"TRACEPARENT": wrong})
    assert not is_wanted({"TRACEPARENT": GOOD[:-1] + "0"})


def test_the_bridge_of_a_network() -> None:
    """It is the one that the configuration names, or its default; none where that has another form."""
    assert bridge_of({"host": {"bridge": {"bridgeName": "br-dpdk"}}}, "br-int") == "br-dpdk"
    assert bridge_of({"ovn": {"switch": "s"}}, "br-int") == "br-int"
    assert bridge_of({}, "br-int") == bridge_of({"host": {}}, "br-int") == "br0"
    assert [bridge_of({"host": wrong}, "br-int") for wrong in (5, {"bridge": "x"}, {"bridge": {"bridgeName": 7}})] == ["", "", ""]
