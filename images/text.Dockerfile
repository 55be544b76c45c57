# The worker with the examples' dataset in it, for the end-to-end tests: a job without any volume.
ARG BASE=varuna-worker:0.2.0
FROM ${BASE}
COPY .cache/data/kjv.bin .cache/data/kjv.idx /data/
