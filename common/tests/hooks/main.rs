//! Each hook on a mock host whose packets, tables and kernel can be made to fail, unlike those of the reference engine.

mod cp;
mod mock_host;
mod np;
mod packets;
mod pairing;
mod paths;
mod pfc;
mod recovery;
mod rp;
mod tos;
