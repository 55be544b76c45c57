//! A seeded world around the protocol: network, store, faults, and the checker.
