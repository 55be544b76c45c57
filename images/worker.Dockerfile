# The worker, the launcher of several workers, and libtorch, as a user without rights, on a root that may be read-only.
#
# `make images` builds this without a daemon and without a registry, on a base of its own. With Docker, on a base that has CA certificates
# (the default has none, and no bucket is reached over HTTPS without them):
#
#   make build-release && images/build.sh --context /tmp/varuna
#   docker build -f images/worker.Dockerfile --build-arg BASE=BASE --build-arg BINARIES=bin --build-arg LIBTORCH=libtorch -t varuna-worker:0.2.0 /tmp/varuna
#
# For nodes with GPUs: images/worker-cuda.Dockerfile.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG BINARIES=target/release
ARG LIBTORCH=.cache/libtorch
# First what changes rarely and is large.
COPY ${LIBTORCH}/lib/ /opt/libtorch/lib/
# Which packages these are, and their licences: for scanners, and because the licences ask for it.
COPY ${LIBTORCH}/packages/ /opt/libtorch/packages/
COPY ${BINARIES}/varuna-worker ${BINARIES}/varuna-launcher /usr/local/bin/
USER 65532:65532
ENV PATH=/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/libtorch/lib
ENTRYPOINT ["/usr/local/bin/varuna-worker"]
LABEL org.opencontainers.image.title="Varuna worker" org.opencontainers.image.licenses="Apache-2.0"
