# DPDK's testpmd with the reader of this project: the application of deploy/examples, and a pattern for an image of your own. At the top of
# the repository:
#
#     podman build -f deploy/images/testpmd.Dockerfile -t userspace-cni-testpmd:0.1.0 .
#
# The reader needs Python and nothing else of this project: two lines in the image of any application.
ARG BASE=docker.io/library/debian:12-slim
FROM ${BASE}
LABEL org.opencontainers.image.title="userspace-cni-testpmd" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="BSD-3-Clause AND Apache-2.0"
RUN apt-get update \
    && apt-get install -y --no-install-recommends dpdk-dev python3-minimal \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY userspace_cni/pod /usr/local/lib/userspace_cni/userspace_cni/pod
ENV PYTHONPATH=/usr/local/lib/userspace_cni
CMD ["python3", "-m", "userspace_cni.pod", "--wait", "--json"]
