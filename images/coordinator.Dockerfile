# The coordinator of a job: one program on a C library, as a user without rights, on a root that may be read-only.
#
# `make images` builds this without a daemon and without a registry, on a base of its own. With Docker, on a base that has CA certificates
# (the default has none, and no bucket is reached over HTTPS without them):
#
#   make build-release && images/build.sh --context /tmp/varuna
#   docker build -f images/coordinator.Dockerfile --build-arg BASE=BASE --build-arg BINARIES=bin -t varuna-coordinator:0.2.0 /tmp/varuna
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG BINARIES=target/release
COPY ${BINARIES}/varuna-coordinator /usr/local/bin/varuna-coordinator
USER 65532:65532
ENV PATH=/usr/local/bin:/usr/bin:/bin
EXPOSE 7070 8081
ENTRYPOINT ["/usr/local/bin/varuna-coordinator"]
LABEL org.opencontainers.image.title="Varuna coordinator" org.opencontainers.image.licenses="Apache-2.0"
