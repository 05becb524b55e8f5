//! Each hook on a mock host whose packets, tables and kernel can be made to fail, unlike those of the reference engine.

mod cp;
mod host;
mod np;
mod packets;
mod pairing;
mod pfc;
mod recovery;
mod rp;
mod tos;
mod ways;
mod world;
