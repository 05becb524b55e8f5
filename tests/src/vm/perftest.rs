//! Traffic by perftest: one QP per process, so that results are per QP.

use dcqcn_common::wire::eth::VlanTag;
use dcqcn_common::wire::ext::{Aeth, Reth};
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_common::wire::ipv6::Ipv6;
use dcqcn_common::wire::udp::Udp;

use crate::vm::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// RDMA WRITE: the client sends.
    Write,
    /// SEND: the client sends.
    Send,
    /// RDMA READ: the server sends.
    Read,
}

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Self::Write => "ib_write_bw",
            Self::Send => "ib_send_bw",
            Self::Read => "ib_read_bw",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Flow {
    pub tool: Tool,
    pub client: u8,
    pub server: u8,
    /// TCP port of the handshake, its own.
    pub port: u16,
    pub seconds: u32,
    /// Seconds at start and end that are not measured.
    pub margin_s: u32,
    pub message_bytes: u32,
    /// Messages in flight.
    pub depth: u32,
    /// Traffic class of the packets: DSCP 26 and ECT(0), unless ECN is not wanted.
    pub traffic_class: u8,
}

/// DSCP 26, ECT(0).
pub const ECT: u8 = 106;
/// ACK timeout as an exponent, 4.096 us << 18 = 1.07 s: longer than any pacing delay here.
const QP_TIMEOUT: u32 = 18;
/// Messages between two completions: messages incomplete at the end do not count.
const COMPLETION_EVERY: u32 = 4;
const TIMEOUT: Duration = Duration::from_secs(30);

impl Flow {
    /// WRITEs for this many seconds; the first and last quarter are not measured.
    pub fn new(tool: Tool, client: u8, server: u8, port: u16, seconds: u32) -> Self {
        Self {
            tool,
            client,
            server,
            port,
            seconds,
            margin_s: seconds / 4,
            message_bytes: 8_192,
            depth: 32,
            traffic_class: ECT,
        }
    }

    /// Fraction of payload in the bytes counted by a shaper: with Ethernet headers, without FCS.
    pub fn efficiency(&self, options: &Options) -> f64 {
        let ip = if options.ipv6 { Ipv6::LEN } else { Ipv4::LEN };
        let tag = if options.vlan.is_some() { VlanTag::LEN } else { 0 };
        // A READ's first and last response carry an AETH, a WRITE's first packet a RETH.
        let extension = match self.tool {
            Tool::Write => Reth::LEN,
            Tool::Send => 0,
            Tool::Read => 2 * Aeth::LEN,
        };
        let headers = Ethernet::LEN + tag + ip + Udp::LEN + Bth::LEN + icrc::LEN;
        let packets = self.message_bytes.div_ceil(options.ib_mtu_bytes()) as usize;
        let payload = self.message_bytes as usize;
        payload as f64 / (payload + packets * headers + extension) as f64
    }

    /// perftest busy-polls its completion queue, so its priority must be below the kernel's threads;
    /// unbuffered output is needed to read its QPNs in time.
    pub fn line(&self, device: &str, gid_index: u32) -> String {
        format!(
            "stdbuf -oL {} -d {} -x {} -p {} -D {} -f {} -s {} -t {} -Q {COMPLETION_EVERY} -u {QP_TIMEOUT} --tclass={} -F \
             --report_gbits",
            self.tool.program(),
            device,
            gid_index,
            self.port,
            self.seconds,
            self.margin_s,
            self.message_bytes,
            self.depth,
            self.traffic_class
        )
    }

    /// Goodput by the number of messages in the measured time. perftest's own average depends on a measurement of the
    /// CPU's frequency, which is wrong by a multiple on a busy emulated CPU.
    pub fn goodput_bps(&self, printed: &str) -> Option<f64> {
        let messages: f64 = row(printed)?.nth(1)?.parse().ok()?;
        let seconds = f64::from(self.seconds.saturating_sub(2 * self.margin_s).max(1));
        Some(messages * f64::from(self.message_bytes) * 8.0 / seconds)
    }

    /// The command line at one of its hosts.
    fn line_at(&self, lab: &Lab, host: u8) -> Result<String> {
        Ok(self.line(&rxe(host), lab.gid_index(host)?))
    }
}

/// Starts both ends of all flows, the clients as simultaneously as possible.
pub fn start(lab: &Lab, flows: &[Flow]) -> Result<Vec<Traffic>> {
    let servers: Vec<Background> = flows
        .iter()
        .map(|flow| Background::start(&flow.line_at(lab, flow.server)?))
        .collect::<Result<_>>()?;
    // The handshake of perftest does not wait for a server.
    for (flow, server) in flows.iter().zip(&servers) {
        wait_for_server(server, flow.port)?;
    }
    let clients =
        flows.iter().map(|flow| Background::start(&format!("{} 127.0.0.1", flow.line_at(lab, flow.client)?)));
    let clients: Vec<Background> = clients.collect::<Result<_>>()?;
    let ends = flows.iter().zip(servers).zip(clients);
    Ok(ends.map(|((flow, server), client)| Traffic { server, client, seconds: flow.seconds }).collect())
}

pub fn wait_for_server(server: &Background, port: u16) -> Result<()> {
    wait_for(TIMEOUT, || {
        let is_up = is_listening(&sysfs::read("/proc/net/tcp")?, port);
        let printed = server.printed()?;
        Ok(is_up.then_some(()).ok_or_else(|| format!("no server at port {port}: {}", printed.trim())))
    })
}

pub fn run(lab: &Lab, flows: &[Flow]) -> Result<Vec<Outcome>> {
    start(lab, flows)?.into_iter().map(Traffic::finish).collect()
}

/// Whether a process listens at a TCP port: `  sl  local_address rem_address   st ...`, state 0A (`TCP_LISTEN`).
fn is_listening(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(1).is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
    })
}

pub struct Traffic {
    server: Background,
    client: Background,
    seconds: u32,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    /// Payload, bits per second; `None` if a QP broke.
    pub goodput_bps: Option<f64>,
    pub printed: String,
}

impl Outcome {
    /// How the QP ended: `finished`, or the output of its client.
    pub fn end(&self) -> String {
        self.goodput_bps.map_or_else(|| self.printed.trim().to_owned(), |_| "finished".to_owned())
    }
}

impl Traffic {
    /// Waits for both ends to exit.
    pub fn finish(mut self) -> Result<Outcome> {
        let patience = TIMEOUT + Duration::from_secs(self.seconds.into());
        let (ok, printed) = self.client.finish(patience)?;
        self.server.kill()?;
        Ok(Outcome { goodput_bps: goodput_bps(&printed).filter(|_| ok), printed })
    }

    /// QPN of the client and of the server, once printed.
    pub fn qpns(&self) -> Result<(u32, u32)> {
        let printed = self.client.printed()?;
        qpns(&printed).with_context(|| format!("no QPNs in: {printed}"))
    }
}

/// Outcomes of all QPs, which must have completed.
pub fn goodputs_bps(outcomes: &[Outcome]) -> Result<Vec<f64>> {
    let mut goodputs = Vec::new();
    for outcome in outcomes {
        ensure!(outcome.goodput_bps.is_some(), "a QP broke: {}", outcome.printed.trim());
        goodputs.extend(outcome.goodput_bps);
    }
    Ok(goodputs)
}

/// Number of broken QPs, each with its client's output.
pub fn broken(outcomes: &[Outcome]) -> u64 {
    let broken = outcomes.iter().filter(|outcome| outcome.goodput_bps.is_none());
    broken.inspect(|outcome| println!("a QP broke: {}", outcome.printed.trim())).count() as u64
}

pub fn jain(goodputs_bps: &[f64]) -> f64 {
    let sum: f64 = goodputs_bps.iter().sum();
    let squares: f64 = goodputs_bps.iter().map(|bps| bps * bps).sum();
    sum * sum / (goodputs_bps.len() as f64 * squares)
}

/// The column `BW average[Gb/sec]`: ` #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]`.
fn goodput_bps(printed: &str) -> Option<f64> {
    let average: f64 = row(printed)?.nth(3)?.parse().ok()?;
    Some(average * 1e9)
}

/// The cells of the only row. On a busy CPU a warning about its frequency precedes it.
fn row(printed: &str) -> Option<std::str::SplitWhitespace<'_>> {
    let lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    lines
        .skip(1)
        .find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        .map(str::split_whitespace)
}

/// ` local address: LID 0000 QPN 0x0011 PSN 0x...` and ` remote address: ...`.
pub fn qpns(printed: &str) -> Option<(u32, u32)> {
    let of = |end: &str| {
        let line = printed.lines().find(|line| line.trim_start().starts_with(end))?;
        let qpn = line.split_whitespace().skip_while(|word| *word != "QPN").nth(1)?;
        u32::from_str_radix(qpn.strip_prefix("0x")?, 16).ok()
    };
    Some((of("local address:")?, of("remote address:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
 local address: LID 0000 QPN 0x0012 PSN 0x3e8b30 RKey 0x000321 VAddr 0x007f
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01
 remote address: LID 0000 QPN 0x0017 PSN 0x9ad1c6 RKey 0x000542 VAddr 0x007f
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8192       2210             0.00               0.018104            0.000276
";

    #[test]
    fn perftest_output_parsed() {
        assert_eq!(goodput_bps(PRINTED), Some(18_104_000.0));
        assert_eq!(qpns(PRINTED), Some((0x12, 0x17)));
        assert_eq!(goodput_bps("Completion with error at client\n"), None);
        let flow = Flow::new(Tool::Write, 1, 2, 1, 16);
        assert_eq!(flow.goodput_bps(PRINTED), Some(2_210.0 * 65_536.0 / 8.0));
    }

    #[test]
    fn warning_before_perftest_row_skipped() {
        let printed = PRINTED.replace("\n 8192", "\nCorrelation coefficient r^2: 0.888071 < 0.9\n 8192");
        assert_ne!(printed, PRINTED);
        assert_eq!(goodput_bps(&printed), Some(18_104_000.0));
    }

    #[test]
    fn efficiency_includes_headers() {
        let flow = Flow::new(Tool::Write, 1, 2, 1, 8);
        let efficiency = flow.efficiency(&Options::default());
        assert!((efficiency - 8_192.0 / (8_192.0 + 8.0 * 58.0 + 16.0)).abs() < 1e-12, "{efficiency}");
        let jumbo = Options { mtu_bytes: 4_200, ipv6: true, vlan: Some(5), bridged: false };
        let efficiency = flow.efficiency(&jumbo);
        assert!((efficiency - 8_192.0 / (8_192.0 + 2.0 * 82.0 + 16.0)).abs() < 1e-12, "{efficiency}");
    }

    #[test]
    fn listening_server_detected() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                     \x20  0: 00000000:4650 00000000:0000 0A 00000000:00000000\n\
                     \x20  1: 0100007F:4651 0100007F:9C40 01 00000000:00000000\n";
        assert!(is_listening(table, 18_000));
        assert!(!is_listening(table, 18_001) && !is_listening(table, 18_002));
    }

    #[test]
    fn jain_index_of_equal_and_single_flows() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[3.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-12);
    }
}
