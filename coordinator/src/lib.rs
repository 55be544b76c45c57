//! The coordinator shell: gRPC server, record, event log, metrics.
