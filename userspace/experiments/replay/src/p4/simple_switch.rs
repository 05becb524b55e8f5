//! The program in `simple_switch`, in a separate network namespace.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, process};

use dcqcn_common::params::Params;
use dcqcn_netlink::netns::Temporary;
use dcqcn_p4::{Control, Error, Process, Session};

use super::{HOST, NETWORK, SwitchEngine, Target};
use crate::frames::RawSocket;
use crate::wire;

/// Namespaces of this process so far.
static NAMESPACES: AtomicU32 = AtomicU32::new(0);

/// The engine `bmv2`.
pub type Bmv2 = SwitchEngine<SimpleSwitch>;

/// A running switch, and the outer ends of its two wires.
pub struct SimpleSwitch {
    session: Session,
    host: RawSocket,
    network: RawSocket,
    // Last, in this order: the switch exits, then its namespace is removed.
    _process: Process,
    _namespace: Temporary,
}

impl Bmv2 {
    /// Starts a switch. `packet_bytes` is the size of a packet where depths are in packets.
    ///
    /// # Errors
    /// BMv2 is not installed, the process is not root, or the program does not have what the parameters need.
    pub fn new(params: &Params, packet_bytes: u64) -> Result<Self, crate::Error> {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        let namespace =
            Temporary::create(&format!("dcqcn-bmv2-{}-{number}", process::id())).map_err(wire::wire_error)?;
        let netns = &*namespace;
        // Prevents neighbour discovery among the packets.
        netns
            .run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").is_ok())
            .map_err(wire::wire_error)?;
        let [host, network] = [HOST, NETWORK].map(|port| wire::connect(netns, port));
        let interfaces = [HOST, NETWORK].map(|port| (port, wire::inner(port)));
        let (process, session) = Process::start(netns, &interfaces)?;
        let target = SimpleSwitch {
            session,
            host: host?,
            network: network?,
            _process: process,
            _namespace: namespace,
        };
        Self::over(target, params, packet_bytes)
    }
}

impl SimpleSwitch {
    const fn wire(&self, port: u16) -> &RawSocket {
        if port == HOST { &self.host } else { &self.network }
    }
}

impl Target for SimpleSwitch {
    fn control(&mut self) -> &mut dyn Control {
        &mut self.session
    }

    /// No effect: `simple_switch` has its own clock.
    fn set_time(&mut self, _: u64) {}

    fn send(&mut self, port: u16, packet: &[u8]) -> Result<(), Error> {
        self.wire(port).send(packet).map_err(wire::wire_error)
    }

    fn receive(&mut self, port: u16, within: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.wire(port).receive(within).map_err(wire::wire_error)
    }
}
