# The image of KubeVirt's network binding sidecar. Build it at the top of the repository:
#
#     podman build -f deploy/images/kubevirt-sidecar.Dockerfile -t userspace-cni-kubevirt-sidecar:0.1.0 .
#
# The first stage collects Debian's Python without its maintainer scripts, two libraries as wheels, and this project's part; it
# compiles only Python modules. The image has nothing else: no shell, no package manager.
# KubeVirt runs it as user 107, without capabilities and without arguments: options are environment variables,
# USERSPACE_CNI_KUBEVIRT_…, in an image made from this one (docs/kubevirt.md).
ARG BASE=docker.io/library/debian:12-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3-venv \
    && mkdir /debs && cd /debs && chmod 777 . \
    && apt-get download libc6 libexpat1 libgcc-s1 libssl3 libstdc++6 zlib1g \
        python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
    && for deb in *.deb; do dpkg -x "$deb" /image; done \
    && ln -s python3.11 /image/usr/bin/python3 \
    && rm -rf /image/usr/share /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt /src/
RUN python3 -m venv /src/venv \
    && /src/venv/bin/pip install --no-cache-dir --no-compile --only-binary :all: -c /src/constraints.txt -t /image/opt/sidecar grpcio protobuf
COPY LICENSE /image/opt/sidecar/
COPY kubevirt /image/opt/sidecar/kubevirt
COPY userspace_cni/__init__.py /image/opt/sidecar/userspace_cni/
COPY userspace_cni/pod /image/opt/sidecar/userspace_cni/pod
ARG BUILD_COMMIT=
ARG BUILD_DATE=
RUN cd /src && python3 -I /image/opt/sidecar/userspace_cni/pod/program_build.py >build.json \
    && mv build.json /image/opt/sidecar/userspace_cni/pod/
# Compiling modules at each start would take seconds, as the sidecar has a fifth of a CPU. The bytecode depends on no time and no chance
RUN PYTHONHASHSEED=0 python3 -m compileall -q -f -s /image --invalidation-mode unchecked-hash /image/usr/lib/python3.11 /image/opt/sidecar

FROM scratch
LABEL org.opencontainers.image.title="userspace-cni-kubevirt-sidecar" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
# One arena, and freed memory goes back to the kernel: the limit is 64 MB, of which gRPC's library takes half
ENV PYTHONPATH=/opt/sidecar \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=1 \
    MALLOC_TRIM_THRESHOLD_=65536 \
    MALLOC_MMAP_THRESHOLD_=65536
USER 107:107
ENTRYPOINT ["/usr/bin/python3", "-m", "kubevirt"]
