//! The published gRPC protocol between workers and the coordinator.
