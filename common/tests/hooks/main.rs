//! What each hook does with a packet, in a host whose packets, tables and kernel can be made to fail: what the reference engine's
//! never do.

mod cp;
mod host;
mod np;
mod packets;
mod pairing;
mod pfc;
mod rp;
mod ways;
mod world;
