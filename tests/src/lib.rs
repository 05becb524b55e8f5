//! Helpers for the tests.

pub mod both;
pub mod host;
pub mod packets;
pub mod socket;
