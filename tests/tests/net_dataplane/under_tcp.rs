//! CNPs received next to TCP streams, with RPS, GRO lists and busy polling.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;

use dcqcn_replay::frames;
use dcqcn_tests::prelude::*;
use dcqcn_tests::vm::command::script_in;

const STREAMS: usize = 8;
const PORT: u16 = 5_001;
/// Bytes of one read or write, as in iperf3.
const BUFFER_BYTES: usize = 128 * 1_024;
/// Every stream carries more than this, or it was not load.
const MIN_STREAM_BYTES: u64 = 1 << 20;
/// Flows to different peers: RPS selects the CPU of a CNP by its addresses and ports.
const FLOWS: u8 = 8;
const FIRST_PEER: u8 = 11;
/// CNPs for each flow: 20,000 in total.
const ROUNDS: u16 = 2_500;
/// Limits the CNPs to 5,000 per second, so that they take 4 s or more.
const ROUND_INTERVAL: Duration = Duration::from_micros(1_600);
const DATA_INTERVAL: Duration = Duration::from_millis(1);
/// A CNP that has not arrived this long after the streams ended is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Every CNP may cut.
const CHANGES: [&str; 2] = ["link_rate=1gbit", "rate_reduce_monitor_period=0ns"];

/// Mechanism between a driver and TC ingress.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Receive packet steering: the backlog of another CPU.
    Rps,
    /// Generic receive offload that merges UDP packets into lists too.
    GroLists,
    /// A reading process that runs the driver's poll function.
    BusyPolling,
}

impl Delivery {
    /// The reason why this machine cannot run it, if any.
    fn obstacle(self, pair: &Pair) -> Result<Option<&'static str>> {
        Ok(match self {
            Self::Rps if !Path::new("/sys/class/net/lo/queues/rx-0/rps_cpus").exists() => {
                Some("the kernel has no RPS")
            }
            Self::Rps if thread::available_parallelism()?.get() < 2 => Some("RPS needs two CPUs"),
            Self::GroLists
                if !pair.a.command("ethtool -k a0")?.lines().any(|line| line == "rx-gro-list: off") =>
            {
                Some("a veth of this kernel has no rx-gro-list")
            }
            Self::BusyPolling if !Path::new("/proc/sys/net/core/busy_read").exists() => {
                Some("the kernel has no busy polling")
            }
            _ => None,
        })
    }

    fn enable(self, pair: &Pair) -> Result<()> {
        match self {
            Self::Rps => {
                let cpus = status_field("self", "Cpus_allowed:")?;
                script_in(&pair.a.netns, &format!("echo {cpus} > /sys/class/net/a0/queues/rx-0/rps_cpus"))?;
            }
            Self::GroLists => {
                enable_napi(pair)?;
                pair.a.command("ethtool -K a0 rx-gro-list on")?;
            }
            Self::BusyPolling => enable_napi(pair)?,
        }
        Ok(())
    }
}

/// Makes `a0` receive through a ring with NAPI and GRO, and `b0` send segments as a wire carries them.
///
/// The ring of a veth has 256 slots, and its drops precede XDP and TC alike. The windows of the streams, up to 23
/// segments each, leave room in it.
fn enable_napi(pair: &Pair) -> Result<()> {
    pair.a.command("ethtool -K a0 gro on")?;
    pair.b.command("ethtool -K b0 tso off gso off")?;
    pair.a.run(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 32768 32768"))??;
    Ok(())
}

/// Enables busy polling on a socket, as `net.core.busy_read` does for all sockets of the machine.
fn busy_poll(socket: &TcpStream) -> Result<()> {
    let duration_us: libc::c_int = 50;
    // SAFETY: the option's value is one integer, and lives as long as the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw const duration_us).cast(),
            size_of_val(&duration_us) as u32,
        )
    };
    ensure!(result == 0, "cannot set SO_BUSY_POLL: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Sends a frame; returns whether the other end of the veth accepted it.
///
/// A veth does not make senders wait. Most kernels report a full queue of the other end.
fn send(socket: &RawSocket, frame: &[u8]) -> Result<bool> {
    match socket.send(frame) {
        Ok(()) => Ok(true),
        Err(frames::Error::Socket { source, .. }) if source.raw_os_error() == Some(libc::ENOBUFS) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends [`ROUNDS`] CNPs for each flow; returns the number of those that the veth did not accept.
fn send_cnps(peer: &RawSocket, cnps: &[Vec<u8>]) -> Result<u64> {
    let mut refused = 0;
    for _ in 0..ROUNDS {
        for cnp in cnps {
            refused += u64::from(!send(peer, cnp)?);
        }
        thread::sleep(ROUND_INTERVAL);
    }
    Ok(refused)
}

/// The sending socket on host 2 and the receiving one on host 1 of each stream.
fn connect(pair: &Pair, busy_polls: bool) -> Result<Vec<(TcpStream, TcpStream)>> {
    let server = SocketAddr::from((Ipv4Addr::from(v4(1)), PORT));
    let listener = pair.a.run(|| TcpListener::bind(server))??;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let sender = pair.b.run(|| TcpStream::connect_timeout(&server, TIMEOUT))??;
        let (receiver, _) = listener.accept()?;
        sender.set_write_timeout(Some(TIMEOUT))?;
        receiver.set_read_timeout(Some(TIMEOUT))?;
        if busy_polls {
            busy_poll(&receiver)?;
        }
        streams.push((sender, receiver));
    }
    Ok(streams)
}

/// Reads a stream to its end, and returns its number of bytes.
fn receive_all(mut stream: TcpStream) -> Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// Packets that backlogs of CPUs dropped, and wake-ups of other CPUs by RPS, since boot.
fn softnet() -> Result<[u64; 2]> {
    let text = fs::read_to_string("/proc/net/softnet_stat")?;
    let mut sums = [0; 2];
    for line in text.lines() {
        for (sum, column) in sums.iter_mut().zip([1, 9]) {
            let field = line.split_whitespace().nth(column).context("a short line in softnet_stat")?;
            *sum += u64::from_str_radix(field, 16)?;
        }
    }
    Ok(sums)
}

/// Packets that a host has received by busy polling.
fn busy_polled(host: &Host) -> Result<u64> {
    let text = host.command("cat /proc/net/netstat")?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = rows.next().zip(rows.next()).context("no TcpExt in netstat")?;
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) =
        columns.find(|(name, _)| *name == "BusyPollRxPackets").context("no BusyPollRxPackets")?;
    Ok(value.parse()?)
}

fn check(test: &str, deliveries: &[Delivery]) -> Result<()> {
    let pair = Pair::with_mtu(test, 1_500)?;
    for delivery in deliveries {
        if let Some(reason) = delivery.obstacle(&pair)? {
            eprintln!("SKIPPED {test}: {reason}");
            return Ok(());
        }
    }
    deliveries.iter().try_for_each(|delivery| delivery.enable(&pair))?;
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    let _endpoint = pair.a.roce_socket("a0", 1)?;
    pair.b.add_v4("b0", 2, 24)?;

    let flows = (FIRST_PEER..FIRST_PEER + FLOWS).map(|dst| Roce { dst, ..Roce::default() });
    let (data, cnps): (Vec<_>, Vec<_>) = flows.map(|flow| (flow.frame(), flow.cnp(None, CNP_TOS))).unzip();
    let (sender, peer) = (pair.a.sending_socket("a0")?, pair.b.sending_socket("b0")?);
    data.iter().try_for_each(|frame| sender.send(frame))?;
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)?, u64::from(FLOWS));

    let busy_polls = deliveries.contains(&Delivery::BusyPolling);
    let mut steps: Vec<Box<dyn FnMut() -> Result<()> + Send + '_>> = Vec::new();
    let mut receivers = Vec::new();
    for (mut stream, receiver) in connect(&pair, busy_polls)? {
        let buffer = vec![0; BUFFER_BYTES];
        steps.push(Box::new(move || -> Result<()> { Ok(stream.write_all(&buffer)?) }));
        receivers.push(receiver);
    }
    // Data locks the flows that CNPs cut.
    steps.push(Box::new(|| -> Result<()> {
        for frame in &data {
            send(&sender, frame)?;
        }
        thread::sleep(DATA_INTERVAL);
        Ok(())
    }));
    let (before, began) = (softnet()?, Instant::now());
    let (refused, bytes) = thread::scope(|scope| -> Result<_> {
        let readers: Vec<_> =
            receivers.into_iter().map(|receiver| scope.spawn(move || receive_all(receiver))).collect();
        let refused = while_repeating(steps, || send_cnps(&peer, &cnps))?;
        // The end of its step has closed each stream.
        let bytes =
            readers.into_iter().map(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?);
        Ok((refused, bytes.collect::<Result<Vec<u64>>>()?))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let sent = u64::from(FLOWS) * u64::from(ROUNDS);
    let _ = wait_for(PATIENCE, || {
        let arrived = pair.a.count("a0", Hook::Ingress, Stat::RoceCnp)?;
        Ok(if arrived + refused >= sent { Ok(()) } else { Err(format!("{arrived} CNPs")) })
    });

    let after = softnet()?;
    let [dropped, steered] = [0, 1].map(|column: usize| after[column].saturating_sub(before[column]));
    let stat = pair.a.counters("a0", Hook::Ingress)?.stat;
    let counts = [
        Stat::RoceCnp,
        Stat::RpCnpHandled,
        Stat::RpCnpIgnored,
        Stat::RpCnpInvalid,
        Stat::RpCnpUnknownFlow,
        Stat::RpCnpTooSoon,
        Stat::TableBusy,
    ]
    .map(|name| format!("{} {}", name.label(), stat[name as usize]))
    .join(", ");
    let gbps = bytes.iter().sum::<u64>() as f64 * 8.0 / seconds / 1e9;
    let report = format!(
        "{sent} CNPs sent in {seconds:.1} s under {gbps:.1} Gbit/s of TCP, {refused} not accepted by the veth; \
         {counts}; packets dropped by backlogs: {dropped}"
    );
    eprintln!("{report}");
    assert!(stat[Stat::RpCnpHandled as usize] * 1_000 >= sent * 999, "{report}");
    assert!(bytes.iter().all(|bytes| *bytes > MIN_STREAM_BYTES), "bytes of the streams: {bytes:?}");
    assert!(!deliveries.contains(&Delivery::Rps) || steered > 0, "RPS steered no packets");
    assert!(!busy_polls || busy_polled(&pair.a)? > 0, "no packets were received by busy polling");
    Ok(())
}

#[test]
fn cnps_under_tcp_with_rps_handled() -> Result<()> {
    require!();
    check(test_name!(), &[Delivery::Rps])
}

#[test]
fn cnps_under_tcp_with_gro_lists_handled() -> Result<()> {
    require!();
    check(test_name!(), &[Delivery::GroLists])
}

#[test]
fn cnps_under_tcp_with_busy_polling_handled() -> Result<()> {
    require!();
    check(test_name!(), &[Delivery::BusyPolling])
}

#[test]
fn cnps_under_tcp_with_all_three_handled() -> Result<()> {
    require!();
    check(test_name!(), &[Delivery::Rps, Delivery::GroLists, Delivery::BusyPolling])
}
