//! Two guests as RDMA hosts: soft-RoCE above their NICs, `dcqcn`, traffic between them, and their counters.
//!
//! The first guest sends to the second through a port of 20 Mbit/s at which the machine's `dcqcn` marks
//! (`tests/vm/src/bottleneck.rs`); the other direction is not limited. A situation can put a third guest between them.

use super::capture;
use super::lab::gid_text;
use super::peer::{MANAGEMENT_ADDRESSES, Peer};
use super::perftest::Outcome;
use crate::vm::prelude::*;

/// Both guests: the sender of most traffic, and the receiver.
pub const GUESTS: [u8; 2] = [SENDER, RECEIVER];
/// The first guest.
pub const SENDER: u8 = 1;
/// The second guest.
pub const RECEIVER: u8 = 2;
/// The third guest.
pub const MIDDLE: u8 = 3;
pub const BOTTLENECK_BPS: f64 = 20e6;
/// Options for `dcqcn attach` that suit the bottleneck.
pub const LINK: &str = "--profile lab --set link_rate=40mbit";
/// Time limit of a script, emulated, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The machine's capture, in the shared directory.
const CAPTURE: &str = "/share/peer/capture.pcap";
/// Allowance for the programs of a flow to connect and close.
const ALLOWANCE: Duration = Duration::from_secs(60);
const FIRST_PORT: u16 = 18_500;

/// Once per boot. The first and the last program of a hook make the kernel patch its own code, which can
/// crash an emulated CPU that is running it, so one interface stays attached.
const PREPARE: &str = "
for module in rdma_rxe ib_uverbs rdma_ucm sch_fq; do modprobe $module; done
for scope in all default eth0; do echo 0 > /proc/sys/net/ipv4/conf/$scope/rp_filter; done
echo 20000 > /proc/sys/net/core/netdev_max_backlog
ip link add spare0 type veth peer name spare1
dcqcn attach spare0 --pacer none --flows 64 --set link_rate=1gbit >/dev/null";

/// Restores the NIC and removes everything above it.
const RESET: &str = "
pkill -9 -x 'ib_write_bw|ib_read_bw|ib_send_bw|iperf3|fio|dcqcn|python3|rping|teamd' || true
if [ -e /run/netns/pod ]; then dcqcn -n pod detach pod0 --interrupt >/dev/null 2>&1 || true; fi
for iface in $(dcqcn --json status | grep -o '\"iface\": *\"[^\"]*\"' | cut -d'\"' -f4 | sort -u); do
    [ $iface = spare0 ] || dcqcn detach $iface --interrupt >/dev/null || true
done
for device in $(ls /sys/class/infiniband); do rdma link delete $device; done
ip netns delete pod 2>/dev/null || true
ip link set eth0 nomaster
ip link set eth1 nomaster
for link in top0 mid0 low0; do ip link delete $link 2>/dev/null || true; done
ip link set eth1 down
ip link set eth0 mtu 1500
ip link set eth0 up
ip address flush dev eth0
ip address add 10.9.0.$N/24 dev eth0
ethtool -K eth0 txvlan on rxvlan on >/dev/null 2>&1 || true
tc qdisc replace dev eth0 root fq limit 40000 flow_limit 20000";

/// Functions for [`Topology::script`].
const FUNCTIONS: &str = "bridge_above() {
    modprobe bridge
    ip link add top0 type bridge mcast_snooping 0
    ip link set $1 master top0 up
    ip link set top0 up
}
pod_above() {
    bridge_above $1
    ip link set low0 master top0 up
    ip netns add pod
    ip link set pod0 netns pod
    ip -n pod link set lo up
    ip -n pod link set pod0 up
    tc -n pod qdisc replace dev pod0 root fq limit 40000 flow_limit 20000
}";

#[derive(Clone, Copy, Debug)]
pub struct Topology {
    /// Script for both guests that creates the interfaces.
    ///
    /// `$N` is the guest's number, `$M` the other's. `bridge_above IFACE` makes an interface a port of the
    /// bridge `top0`; `pod_above IFACE` also moves `pod0`, the far end of `low0`, to the network namespace
    /// `pod`, and `low0` to that bridge.
    pub script: &'static str,
    /// Interface with the address and the RDMA device.
    pub rdma: &'static str,
    /// Interface for `dcqcn`.
    pub iface: &'static str,
    /// The first three octets of both addresses.
    pub network: &'static str,
    pub prefix_len: u8,
    /// Network namespace of `rdma`.
    pub netns: Option<&'static str>,
}

impl Topology {
    /// Prefix of commands in the namespace of the RDMA device's interface.
    fn exec(&self) -> String {
        self.netns.map(|netns| format!("ip netns exec {netns}")).unwrap_or_default()
    }

    /// Prefix of commands in the namespace of the interface that `dcqcn` is attached to.
    fn exec_at_iface(&self) -> String {
        if self.iface == self.rdma { self.exec() } else { String::new() }
    }

    /// A command of `dcqcn` for its interface. In `ip netns exec` it would pin to a file system that ends with it.
    fn dcqcn(&self, command: &str) -> String {
        let netns = self.netns.filter(|_| self.iface == self.rdma).map(|netns| format!("-n {netns} "));
        format!("dcqcn {}{command} {}", netns.unwrap_or_default(), self.iface)
    }
}

/// soft-RoCE on the NIC.
pub const PLAIN: Topology =
    Topology { script: "", rdma: "eth0", iface: "eth0", network: "10.9.0", prefix_len: 24, netns: None };

pub struct Program {
    guest: u8,
    output: String,
}

/// Running flows.
pub struct Traffic {
    clients: Vec<(Program, Flow)>,
}

impl Traffic {
    pub fn clients(&self) -> impl Iterator<Item = &Program> {
        self.clients.iter().map(|(client, _)| client)
    }
}

/// Counters of both guests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// CE-marked data packets at the receiver.
    pub marked: u64,
    /// CNPs of the receiver.
    pub sent: u64,
    /// CNPs that cut a flow of the sender.
    pub handled: u64,
    /// CNPs that the sender ignored.
    pub ignored: u64,
    /// CNPs without a flow, at the sender.
    pub unknown: u64,
    /// Packets whose flow another CPU had locked, at the sender; a CNP among them counts as [`Self::unknown`].
    pub locked: u64,
    /// Packets whose PSN was not the next.
    pub out_of_sequence: u64,
    pub retries: u64,
    /// Time of each guest's CPUs, and the idle part of it.
    cpu: [[u64; 2]; 2],
}

impl Counts {
    /// Increase since `before`; counters of a new attachment start at 0.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            marked: self.marked.saturating_sub(before.marked),
            sent: self.sent.saturating_sub(before.sent),
            handled: self.handled.saturating_sub(before.handled),
            ignored: self.ignored.saturating_sub(before.ignored),
            unknown: self.unknown.saturating_sub(before.unknown),
            locked: self.locked.saturating_sub(before.locked),
            out_of_sequence: self.out_of_sequence - before.out_of_sequence,
            retries: self.retries - before.retries,
            cpu: [Self::ticks(self.cpu[0], before.cpu[0]), Self::ticks(self.cpu[1], before.cpu[1])],
        }
    }

    const fn ticks(now: [u64; 2], before: [u64; 2]) -> [u64; 2] {
        [now[0] - before[0], now[1] - before[1]]
    }

    pub fn busy(&self) -> [f64; 2] {
        self.cpu.map(|[all, idle]| 1.0 - idle as f64 / (all as f64).max(1.0))
    }
}

pub struct Hosts {
    peer: Peer,
    middle: Option<Peer>,
    topology: Topology,
    next: u16,
}

impl Hosts {
    /// Waits for the second guest and prepares both.
    pub fn connect() -> Result<Self> {
        let mut hosts = Self { peer: Peer::connect()?, middle: None, topology: PLAIN, next: 0 };
        hosts.both(PREPARE)?;
        Ok(hosts)
    }

    /// Waits for the third guest, which the machine has started, and prepares it.
    pub fn connect_middle(&mut self) -> Result<()> {
        if self.middle.is_none() {
            let mut middle = Peer::of(MIDDLE)?;
            middle.sh(PREPARE, TIMEOUT)?;
            self.middle = Some(middle);
        }
        Ok(())
    }

    /// Runs a shell script in a guest, with `$N` and `$M` for its number and the other's.
    pub fn sh(&mut self, guest: u8, script: &str) -> Result<String> {
        let script = numbered(guest, script);
        match guest {
            RECEIVER => self.peer.sh(&script, TIMEOUT),
            MIDDLE => self.middle.as_mut().context("the third guest does not run")?.sh(&script, TIMEOUT),
            _ => here(&script),
        }
    }

    /// Runs a shell script in both guests at the same time.
    pub fn both(&mut self, script: &str) -> Result<()> {
        let there = numbered(RECEIVER, script);
        let number = self.peer.begin(&there)?;
        let result = here(&numbered(SENDER, script));
        self.peer.end(number, &there, TIMEOUT)?;
        result.map(drop)
    }

    /// Requests an action of the machine (`tests/vm/src/requests.rs`).
    pub fn host(&mut self, request: &str) -> Result<()> {
        self.peer.host(request)
    }

    /// Ends a capture that was requested by `capture on`; returns its RoCE packets.
    pub fn captured(&mut self) -> Result<Vec<Packet>> {
        self.host("capture off")?;
        capture::parse(&fs::read(CAPTURE).context(CAPTURE)?)
    }

    /// Restores both NICs and builds a topology with an RDMA device.
    pub fn build(&mut self, topology: Topology) -> Result<()> {
        self.topology = topology;
        self.both(RESET)?;
        let Topology { script, rdma, network, prefix_len, .. } = topology;
        let exec = topology.exec();
        self.both(&format!(
            "{FUNCTIONS}
             {script}
             {exec} ip address replace {network}.$N/{prefix_len} dev {rdma}
             {exec} rdma link add rxe0 type rxe netdev {rdma}"
        ))?;
        let ping = format!("{exec} busybox ping -I {rdma} -c 1 -W 5 {network}.$M");
        let pinged = self.sh(SENDER, &format!("for try in 1 2 3 4 5; do {ping} && exit; done; exit 1"));
        pinged.context("the second guest does not respond").map(drop)
    }

    /// The interface for `dcqcn`.
    pub const fn iface(&self) -> &'static str {
        self.topology.iface
    }

    pub fn attach(&mut self, guest: u8, options: &str) -> Result<()> {
        self.sh(guest, &format!("{} {options}", self.topology.dcqcn("attach"))).map(drop)
    }

    pub fn attach_both(&mut self) -> Result<()> {
        self.both(&format!("{} {LINK}", self.topology.dcqcn("attach")))
    }

    pub fn detach_both(&mut self) -> Result<()> {
        self.both(&self.topology.dcqcn("detach"))
    }

    /// Everything of a guest's interfaces that an attachment could change.
    pub fn state(&mut self) -> Result<Vec<String>> {
        let show = |exec: &str, iface: &str| {
            format!(
                "{exec} ethtool -k {iface}; {exec} ip link show {iface}; {exec} tc -d qdisc show dev {iface}"
            )
        };
        let of_iface = show(&self.topology.exec_at_iface(), self.topology.iface);
        let script = format!("{}; {of_iface}", show("", "eth0"));
        GUESTS.iter().map(|guest| self.sh(*guest, &script)).collect()
    }

    pub fn start(&mut self, guest: u8, line: &str) -> Result<Program> {
        self.next += 1;
        let output = format!("/tmp/program-{}", self.next);
        self.sh(guest, &format!("( set +e; {line}; echo \"exit $?\" ) >{output} 2>&1 </dev/null &"))?;
        Ok(Program { guest, output })
    }

    /// Output of a program so far.
    pub fn printed(&mut self, program: &Program) -> Result<String> {
        self.sh(program.guest, &format!("cat {}", program.output))
    }

    /// Waits for a program to exit; returns whether it succeeded, and its output.
    pub fn finish(&mut self, program: &Program, patience: Duration) -> Result<(bool, String)> {
        wait_for(patience, || {
            let printed = self.printed(program)?;
            if let Some(status) = printed.lines().last().and_then(|line| line.strip_prefix("exit ")) {
                return Ok(Ok((status == "0", printed)));
            }
            // Each attempt is a request to the guest.
            thread::sleep(Duration::from_millis(300));
            Ok(Err(format!("a program has not ended: {}", printed.trim())))
        })
    }

    /// Waits until a program of a guest listens at a TCP port.
    pub fn listening(&mut self, guest: u8, port: u16) -> Result<()> {
        let script = format!("until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.1; done");
        self.sh(guest, &script).map(drop)
    }

    /// WRITE QPs from the sender to the receiver; the first and last quarter of the time is not measured.
    pub fn flows(&self, tool: Tool, qps: u16, seconds: u32) -> Vec<Flow> {
        // The responder of READs sends the data.
        let (client, server) = if tool == Tool::Read { (RECEIVER, SENDER) } else { (SENDER, RECEIVER) };
        (0..qps)
            .map(|index| Flow { depth: 8, ..Flow::new(tool, client, server, FIRST_PORT + index, seconds) })
            .collect()
    }

    pub fn traffic(&mut self, flows: &[Flow]) -> Result<Traffic> {
        let mut clients = Vec::new();
        let gids = [self.gid_index(SENDER)?, self.gid_index(RECEIVER)?];
        for flow in flows {
            let [client, server] =
                [flow.client, flow.server].map(|guest| (guest, gids[usize::from(guest - 1)]));
            self.start(server.0, &flow.line("rxe0", server.1))?;
            self.listening(server.0, flow.port)?;
            let address = MANAGEMENT_ADDRESSES[usize::from(server.0 - 1)];
            let line = format!("{} {address}", flow.line("rxe0", client.1));
            clients.push((self.start(client.0, &line)?, flow.clone()));
        }
        Ok(Traffic { clients })
    }

    pub fn outcomes(&mut self, traffic: &Traffic) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for (client, flow) in &traffic.clients {
            let patience = ALLOWANCE + Duration::from_secs(flow.seconds.into());
            let (ok, printed) = self.finish(client, patience)?;
            outcomes.push(Outcome { goodput_bps: flow.goodput_bps(&printed).filter(|_| ok), printed });
        }
        // The server of a failed client does not exit.
        if outcomes.iter().any(|outcome| outcome.goodput_bps.is_none()) {
            self.both("pkill -9 -x 'ib_write_bw|ib_read_bw|ib_send_bw' || true")?;
        }
        Ok(outcomes)
    }

    /// Counters of the RDMA devices, of `dcqcn` if attached, and of the CPUs.
    pub fn counts(&mut self) -> Result<Counts> {
        let script = format!(
            "cd /sys/class/infiniband/rxe0/ports/1/hw_counters
             for name in out_of_seq_request rcvd_seq_err completer_retry_err; do cat $name; done
             head -n 1 /proc/stat
             {} 2>/dev/null || echo null",
            self.topology.dcqcn("--json counters")
        );
        let mut all = Counts::default();
        for guest in GUESTS {
            let text = self.sh(guest, &script)?;
            let mut lines = text.lines();
            let mut number = || lines.next().and_then(|line| line.parse::<u64>().ok()).context("a counter");
            all.out_of_sequence += number()? + number()?;
            all.retries += number()?;
            let ticks: Vec<u64> = lines
                .next()
                .context("/proc/stat")?
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            all.cpu[usize::from(guest - SENDER)] =
                [ticks.iter().sum(), ticks.get(3).copied().unwrap_or_default()];
            let json: Value = serde_json::from_str(&lines.collect::<String>()).context("dcqcn counters")?;
            let of = |name| if json.is_null() { Ok(0) } else { count(&json, name) };
            if guest == SENDER {
                all.handled = of("rp_cnp_handled")?;
                all.ignored = of("rp_cnp_ignored")?;
                all.unknown = of("rp_cnp_unknown_flow")?;
                all.locked = of("table_busy")?;
            } else {
                all.marked = of("np_ecn_marked_roce_packets")?;
                all.sent = of("np_cnp_sent")?;
            }
        }
        Ok(all)
    }

    /// The index of a guest's address among the GIDs of its RDMA device.
    pub(super) fn gid_index(&mut self, guest: u8) -> Result<u32> {
        let address: Ipv4Addr = format!("{}.{guest}", self.topology.network).parse()?;
        let gid = gid_text(address.to_ipv6_mapped());
        let script = format!(
            "cd /sys/class/infiniband/rxe0/ports/1/gids
             for index in 0 1 2 3 4 5 6 7; do [ \"$(cat $index)\" != {gid} ] || {{ echo $index; break; }}; done"
        );
        let found = self.sh(guest, &script)?;
        found.trim().parse().with_context(|| format!("guest {guest} has no GID {gid}"))
    }
}

/// A script with the numbers of the guest and of the other one.
fn numbered(guest: u8, script: &str) -> String {
    format!("N={guest}; M={}\n{script}", 3 - guest)
}

fn here(script: &str) -> Result<String> {
    let mut command = Command::new("timeout");
    command.arg(TIMEOUT.as_secs().to_string()).args(["sh", "-ec", script]);
    output_of(&mut command)
}
