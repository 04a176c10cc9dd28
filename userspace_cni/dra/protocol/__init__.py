"""The messages and services of the kubelet's API for drivers of devices (DRA): registration, claims in two versions, and health.

The .proto files are our own and hold only what is spoken here; package, service and method names, field numbers and types are the
kubelet's (k8s.io/kubelet, pkg/apis/pluginregistration, dra and dra-health). The `*_pb2` modules are made of them, never edited,
at the top of the repository:

    .venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. userspace_cni/dra/protocol/*.proto

A unit test makes them anew and compares.
"""
