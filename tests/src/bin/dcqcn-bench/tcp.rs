//! TCP throughput through a veth pair, detached and with each role: the cost of a host attachment to other traffic.

use std::net::{IpAddr, SocketAddr};

use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::links::attach;
use crate::report::{Metric, Section};
use crate::runner::pin;

/// MTU of most Ethernet links.
const MTU: u32 = 1_500;
const PORT: u16 = 5_201;
/// Bytes of one read or write, as in iperf3.
const BUFFER_BYTES: usize = 128 * 1_024;
/// Longest wait for a peer that no longer reads or writes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which ends of the pair are attached; `a` sends.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    role_a: Option<Role>,
    role_b: Option<Role>,
}

const NOTHING: &str = "nothing attached";
const SETUPS: [Setup; 5] = [
    Setup { name: NOTHING, role_a: None, role_b: None },
    Setup { name: "host at the sender", role_a: Some(Role::Host), role_b: None },
    Setup { name: "host at the receiver", role_a: None, role_b: Some(Role::Host) },
    Setup { name: "switch at the sender", role_a: Some(Role::Switch), role_b: None },
    Setup { name: "host at both ends", role_a: Some(Role::Host), role_b: Some(Role::Host) },
];

/// Streams at a time, and whether the sender has TCP segmentation offload.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    streams: usize,
    tso: bool,
}

const LOADS: [Load; 3] = [
    Load { name: "1 stream", streams: 1, tso: true },
    Load { name: "8 streams", streams: 8, tso: true },
    Load { name: "1 stream without TSO", streams: 1, tso: false },
];

fn name(load: Load, setup: Setup) -> String {
    format!("{}, {}", load.name, setup.name)
}

/// Names of the metrics with a target: all but [`NOTHING`].
pub(crate) fn attached() -> impl Iterator<Item = String> {
    let of =
        |load| SETUPS.into_iter().filter(|setup| setup.name != NOTHING).map(move |setup| name(load, setup));
    LOADS.into_iter().flat_map(of)
}

struct Wire {
    setup: Setup,
    load: Load,
    server: SocketAddr,
    rates: Vec<f64>,
}

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    let pair = Pair::new("bench-tcp")?;
    let mut wires = Vec::new();
    for (number, setup) in (1..).zip(SETUPS) {
        bench.progress(&format!("tcp: {}", setup.name));
        let (a, b) = (format!("ta{number}"), format!("tb{number}"));
        join((&pair.a, &a, 1), (&pair.b, &b, 2), MTU)?;
        for (host, iface, last) in [(&pair.a, &a, 1), (&pair.b, &b, 2)] {
            let address = IpAddr::V4(Ipv4Addr::new(10, 1, number, last));
            host.netlink()?.add_address(host.index(iface)?, address, 24)?;
        }
        for (host, iface, role) in [(&pair.a, &a, setup.role_a), (&pair.b, &b, setup.role_b)] {
            if let Some(role) = role {
                attach(host, iface, role, None).with_context(|| setup.name)?;
            }
        }
        let server = SocketAddr::from((Ipv4Addr::new(10, 1, number, 2), PORT));
        wires.extend(LOADS.map(|load| Wire { setup, load, server, rates: Vec::new() }));
    }
    let (rounds, long) = if bench.quick { (5, 50) } else { (21, 400) };
    for round in 0..rounds {
        bench.progress(&format!("tcp, round {} of {rounds}", round + 1));
        // Set-ups of one load are interleaved, so that disturbances affect all.
        for load in LOADS {
            for (number, wire) in wires.iter_mut().enumerate().filter(|(_, wire)| wire.load.name == load.name)
            {
                let iface = format!("ta{}", number / LOADS.len() + 1);
                set_tso(&pair, &iface, load.tso)?;
                let rate = throughput_bps(&pair, wire.server, load.streams, Duration::from_millis(long));
                wire.rates.push(rate.with_context(|| name(load, wire.setup))? / 1e9);
            }
        }
    }
    for Wire { setup, load, rates, .. } in wires {
        let metric = Metric::new(Section::Tcp, name(load, setup), "Gbit/s", rates).more_is_better();
        let base = SETUPS.into_iter().find(|other| other.name == NOTHING && setup.name != NOTHING);
        bench.add(Metric { against: base.map(|base| name(load, base)), ..metric });
    }
    Ok(())
}

fn set_tso(pair: &Pair, iface: &str, tso: bool) -> Result<()> {
    let state = if tso { "on" } else { "off" };
    pair.a.command(&format!("ethtool -K {iface} tso {state} gso {state}")).map(drop)
}

/// Bits per second that `streams` connections from host 1 to `server` on host 2 carry in `long`, as the
/// receiver counts them.
///
/// A single stream gets a CPU per end: where the scheduler puts the two changes its rate by a fifth. The
/// sender's CPU also runs both hooks and the receiver's TCP, as softirqs.
fn throughput_bps(pair: &Pair, server: SocketAddr, streams: usize, long: Duration) -> Result<f64> {
    let listener = pair.b.run(|| TcpListener::bind(server))??;
    let mut ends = Vec::new();
    for _ in 0..streams {
        let sender = pair.a.run(|| TcpStream::connect_timeout(&server, TIMEOUT))??;
        let (receiver, _) = listener.accept()?;
        sender.set_write_timeout(Some(TIMEOUT))?;
        receiver.set_read_timeout(Some(TIMEOUT))?;
        ends.push((sender, receiver));
    }
    let pins = streams == 1 && thread::available_parallelism()?.get() > 1;
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let bytes = thread::scope(|scope| {
        let is_over = &is_over;
        let mut readers = Vec::new();
        let mut writers = Vec::new();
        for (mut sender, mut receiver) in ends {
            writers.push(scope.spawn(move || -> Result<()> {
                if pins {
                    pin(0)?;
                }
                let buffer = vec![0; BUFFER_BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    sender.write_all(&buffer)?;
                }
                Ok(())
            }));
            readers.push(scope.spawn(move || -> Result<u64> {
                if pins {
                    pin(1)?;
                }
                let mut buffer = vec![0; BUFFER_BYTES];
                let mut bytes = 0;
                loop {
                    match receiver.read(&mut buffer)? {
                        0 => return Ok(bytes),
                        read => bytes += read as u64,
                    }
                }
            }));
        }
        thread::sleep(long);
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().map_err(|_| anyhow!("a sender panicked"))??;
        }
        let mut bytes = 0;
        for reader in readers {
            bytes += reader.join().map_err(|_| anyhow!("a receiver panicked"))??;
        }
        anyhow::Ok(bytes)
    })?;
    ensure!(bytes > 0, "no byte arrived at {server}");
    Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
}
