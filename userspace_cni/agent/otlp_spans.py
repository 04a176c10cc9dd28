"""Traces of calls in the form that OpenTelemetry's collectors take (OTLP, as protobuf).

The only module that imports OpenTelemetry's package, which an extra of ours installs. It is imported where a collector is named,
and on no verb's path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from userspace_cni.agent.call_trace import CallTrace


def encode_traces(traces: Sequence[CallTrace], resource: Mapping[str, str]) -> bytes:
    """The body of a request that exports them. `resource`: attributes of this agent."""
    spans = [span for trace in traces for span in _spans(trace)]
    scope = ScopeSpans(scope=InstrumentationScope(name="userspace-cni"), spans=spans)
    described = ResourceSpans(resource=Resource(attributes=list(_attributes(resource))), scope_spans=[scope])
    return ExportTraceServiceRequest(resource_spans=[described]).SerializeToString()


def read_refusal(body: bytes) -> str:
    """What a collector that took a request says that it left out of it; "" for nothing. Raises DecodeError."""
    partly = ExportTraceServiceResponse.FromString(body).partial_success
    return f"it left out {partly.rejected_spans} spans: {partly.error_message[:200]}" if partly.rejected_spans else ""


def _spans(trace: CallTrace) -> Iterator[Span]:
    """The call's span, and below it one for each stage, and one for the way from the runtime to a thread of the agent."""
    parent = trace.parent
    number = parent.trace if parent else trace.number
    numbers = (_span_id(trace.span + further) for further in count())
    root = next(numbers)
    code = KeyValue(key="cni.error_code", value=AnyValue(int_value=trace.code))
    yield Span(
        trace_id=number,
        span_id=root,
        parent_span_id=parent.span if parent else b"",
        trace_state=parent.state if parent else "",
        name=f"CNI {trace.verb}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=trace.called,
        end_time_unix_nano=trace.ended,
        attributes=[KeyValue(key="cni.verb", value=AnyValue(string_value=trace.verb)), code, *_attributes(trace.names)],
        status=Status(code=Status.STATUS_CODE_ERROR if trace.code else Status.STATUS_CODE_UNSET),
    )
    for name, began, ended in (("hand-over", trace.called, trace.began), *trace.stages):
        yield Span(
            trace_id=number,
            span_id=next(numbers),
            parent_span_id=root,
            trace_state=parent.state if parent else "",
            name=name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=began,
            end_time_unix_nano=ended,
        )


def _span_id(number: int) -> bytes:
    """Eight bytes that are not all 0, which is no number of a span."""
    return (number % ((1 << 64) - 1) + 1).to_bytes(8)


def _attributes(values: Mapping[str, str]) -> Iterator[KeyValue]:
    for key, value in values.items():
        yield KeyValue(key=key, value=AnyValue(string_value=value))
