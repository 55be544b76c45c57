# The worker, the launcher of several workers, and libtorch, as a user without rights, on a root that may be read-only.
#
#   make build-release && docker build -f images/worker.Dockerfile -t varuna-worker:0.2.0 .
#
# For nodes with GPUs: images/worker-cuda.Dockerfile.
#
# `make images` builds the same file without a daemon and without a registry, on a base of its own.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG BINARIES=target/release
ARG LIBTORCH=.cache/libtorch
# First what changes rarely and is large.
COPY ${LIBTORCH}/lib/ /opt/libtorch/lib/
COPY ${BINARIES}/varuna-worker ${BINARIES}/varuna-launcher /usr/local/bin/
USER 65532:65532
ENV PATH=/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/libtorch/lib
ENTRYPOINT ["/usr/local/bin/varuna-worker"]
LABEL org.opencontainers.image.title="Varuna worker" org.opencontainers.image.licenses="Apache-2.0"
