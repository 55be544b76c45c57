# The worker for nodes with GPUs: one program and PyTorch's libraries with CUDA, as a user without rights, on a root that may be read-only.
#
# `make images-cuda` builds this without a daemon and without a registry, on a base of its own. With Docker, on a base that has CA certificates
# (the default has none, and no bucket is reached over HTTPS without them):
#
#   make build-release && images/build.sh --context /tmp/varuna --cuda
#   docker build -f images/worker-cuda.Dockerfile --build-arg BASE=BASE --build-arg BINARIES=bin --build-arg CUDA=cuda -t varuna-worker-cuda:0.2.0 /tmp/varuna
#
# A base needs zlib and libstdc++.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG BINARIES=target/release
ARG CUDA=.cache/cuda
# First what changes rarely and is large. The libraries name one another relative to this layout.
COPY ${CUDA}/nvidia/ /opt/nvidia/
COPY ${CUDA}/torch/ /opt/torch/
# Which packages these are, and their licences: for scanners, and because the licences ask for it.
COPY ${CUDA}/packages/ /opt/torch/packages/
COPY ${BINARIES}/varuna-worker ${BINARIES}/varuna-launcher /usr/local/bin/
USER 65532:65532
# The driver's libraries come from the node, each platform's in its place: GKE mounts /usr/local/nvidia; the NVIDIA container toolkit
# (EKS, AKS) puts them where Debian's loader looks, or into the folder that the node has them in, /usr/lib64 on Amazon Linux.
ENV PATH=/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/torch/lib:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib64
# The toolkit gives a container the GPUs that its pod was given, and none to one that asked for none; compute is libcuda; a driver
# that is too old for CUDA 13 is refused by name.
ENV NVIDIA_VISIBLE_DEVICES=void NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=13.0"
ENTRYPOINT ["/usr/local/bin/varuna-worker"]
LABEL org.opencontainers.image.title="Varuna worker for GPUs" org.opencontainers.image.licenses="Apache-2.0"
