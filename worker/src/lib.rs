//! The training worker: engine, transport, agent.
