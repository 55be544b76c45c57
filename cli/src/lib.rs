//! The varuna command.
