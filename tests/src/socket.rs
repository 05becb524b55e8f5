//! Sockets: raw ones that send and receive whole frames at one interface, and a client of HTTP servers.

use crate::prelude::*;

pub use dcqcn_replay::frames::{RawSocket, SILENCE, TIMEOUT};

/// Response to an HTTP request, once the server has closed the connection.
pub fn http(address: &str, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
