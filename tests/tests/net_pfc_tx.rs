//! A switch whose queue fills sends XOFF to the neighbours that fill it, and XON when it is empty again.

use aya::maps::{Map, MapData, PerCpuHashMap};
use dcqcn_common::layout::CLASSES;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_loader::queues;
use dcqcn_params::QueuesChoice;
use dcqcn_tests::prelude::*;

/// Two senders and two receivers around a bridge whose ports to the receivers are slow.
struct BridgeFixture {
    senders: [Host; 2],
    _receivers: [Host; 2],
    switch: Host,
}

/// Hosts by number.
const NEAR: u8 = 2;
const FAR: u8 = 4;
const RATE_KBIT: u64 = 2_000;
/// The shortest pause, and the daemon's sampling interval.
const PAUSE: Duration = Duration::from_millis(10);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Frames of a burst: 40 of 1082 bytes are above XOFF, 10 are not.
const BURST_PACKETS: usize = 40;
const LITTLE: usize = 10;

impl BridgeFixture {
    fn new(test: &str) -> Result<Self> {
        let host = |name: &str| Host::new(test, name);
        let senders = [host("one")?, host("two")?];
        let fixture = Self { senders, _receivers: [host("near")?, host("far")?], switch: host("switch")? };
        fixture.switch.command("ip link add br0 type bridge")?;
        fixture.switch.command("ip link set br0 up")?;
        let [near, far] = &fixture._receivers;
        let [one, two] = &fixture.senders;
        let ends = [(one, "p1", 1), (two, "p2", 3), (near, "p0", NEAR), (far, "p9", FAR)];
        for (host, port, number) in ends {
            join((host, "e0", number), (&fixture.switch, port, 10 + number), 1_500)?;
            fixture.switch.command(&format!("ip link set {port} master br0"))?;
        }
        // Known destinations only: flooded packets cause no pause.
        let limits = ["link_rate=100mbit", "pfc.3.tx=on", "pfc.3.xoff=20KB", "pfc.3.xon=10KB"];
        for (host, port, src) in [(near, "p0", NEAR), (far, "p9", FAR)] {
            host.socket("e0")?.send(&Roce { src, dst: 99, ..Roce::default() }.frame())?;
            let tbf = format!("tbf rate {RATE_KBIT}kbit burst 2k limit 1m");
            fixture.switch.command(&format!("tc qdisc add dev {port} root handle 7: {tbf}"))?;
            let mut switch = request(port, Role::Switch, &limits)?;
            switch.settings.queues = Some(QueuesChoice::Auto);
            fixture.switch.attach_as(&switch)?;
        }
        Ok(fixture)
    }

    fn socket(&self, sender: usize) -> Result<RawSocket> {
        let socket = self.senders[sender].socket("e0")?;
        socket.limit_send_buffer(1 << 20)?;
        Ok(socket)
    }
}

fn burst(socket: &RawSocket, src: u8, dscp: u8, frames: usize) -> Result<()> {
    burst_to(socket, src, NEAR, dscp, frames)
}

fn burst_to(socket: &RawSocket, src: u8, dst: u8, dscp: u8, frames: usize) -> Result<()> {
    let frame = Roce { src, dst, dscp, ..Roce::default() }.frame();
    Ok((0..frames).try_for_each(|_| socket.send(&frame))?)
}

/// Receives the next PFC frame, and returns its quanta for priority 3.
fn next_quanta(socket: &RawSocket) -> Result<u16> {
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        let frame = socket.expect()?;
        if let Some(pfc) = frame.first_chunk().and_then(PfcRepr::read) {
            ensure!(pfc.priorities == 1 << 3, "another priority: {pfc:?}");
            return Ok(pfc.quanta[3]);
        }
    }
    bail!("no PFC frame")
}

/// Whether no PFC frame arrives for this time; other frames, such as the bridge's own, are ignored.
fn receives_nothing(socket: &RawSocket, ms: u64) -> Result<bool> {
    let until = Instant::now() + Duration::from_millis(ms);
    while let Some(frame) = socket.receive(until.saturating_duration_since(Instant::now()))? {
        if frame.first_chunk().and_then(PfcRepr::read).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Depths are attributed by these bytes: a qdisc charges each segment's headers.
#[test]
fn super_packets_counted_as_qdisc_charges_them() -> Result<()> {
    require!("tbf", "htb");
    const SENT: usize = 4_000_000;
    let fixture = BridgeFixture::new("charged")?;
    fixture.switch.command("tc qdisc change dev p0 root handle 7: tbf rate 1gbit burst 1m limit 4m")?;
    fixture.switch.set("p0", &["link_rate=1gbit", "dscp_to_tc.0=3"])?;
    let _daemon = Running::start(&fixture.switch, "run p0")?;
    let pin = fixture.switch.pins("p0")?.join("INGRESS_BYTES");
    let arrived: PerCpuHashMap<_, u32, [u64; CLASSES]> =
        PerCpuHashMap::try_from(Map::PerCpuHashMap(MapData::from_pin(pin)?))?;
    let port = fixture.switch.index("p1")?;
    wait_until("the daemon does not count p1", || Ok(arrived.get(&port, 0).is_ok()))?;
    let [near, _] = &fixture._receivers;
    fixture.senders[0].add_v4("e0", 1, 24)?;
    near.add_v4("e0", NEAR, 24)?;
    let listener = near.run(|| TcpListener::bind(("0.0.0.0", 5_001)))??;
    thread::scope(|scope| -> Result<()> {
        let receiver = scope.spawn(move || -> Result<usize> {
            let (mut stream, mut received) = (listener.accept()?.0, Vec::new());
            Ok(stream.read_to_end(&mut received)?)
        });
        let mut stream =
            fixture.senders[0].run(|| TcpStream::connect((format!("10.0.0.{NEAR}"), 5_001)))??;
        stream.write_all(&vec![0; SENT])?;
        drop(stream);
        ensure!(receiver.join().ok().context("the receiver panicked")?? == SENT);
        Ok(())
    })?;
    let arrived: u64 = arrived.get(&port, 0)?.iter().map(|queues| queues[3]).sum();
    let config = fixture.switch.attachment("p0")?.maps.params()?.config;
    let stats = queues::stats(&fixture.switch.netlink()?, fixture.switch.index("p0")?, &config)?;
    let charged = stats[3].context("no queue 3")?.bytes;
    ensure!(charged > SENT as u64, "{charged} bytes");
    ensure!(arrived.abs_diff(charged) < charged / 200, "{arrived} bytes arrived, {charged} charged");
    Ok(())
}

#[test]
fn port_filling_queue_gets_xoff_then_xon() -> Result<()> {
    require!("tbf", "htb");
    let fixture = BridgeFixture::new("asking")?;
    let (one, two) = (fixture.socket(0)?, fixture.socket(1)?);
    let _daemon = Running::start(&fixture.switch, "run p0")?;
    // The daemon distinguishes ports from its first sample on, and checks once a second whether it is enabled.
    thread::sleep(Duration::from_millis(2_500));
    let mut delays = Vec::new();
    for round in 0..20 {
        burst(&two, 3, 26, LITTLE)?;
        let begun = Instant::now();
        burst(&one, 1, 26, BURST_PACKETS)?;
        let waits = next_quanta(&one).with_context(|| format!("round {round}"))?;
        delays.push(begun.elapsed());
        // At 100 Mbit/s 10 ms are 1954 quanta; nothing that fits its queue needs longer.
        ensure!(waits == 1_954, "{waits}");
        // XOFF may be repeated while the queue empties, which takes 0.2 s.
        while next_quanta(&one)? != 0 {}
        ensure!(receives_nothing(&two, 50)?, "round {round}: the sender below XOFF is paused");
    }
    delays.sort_unstable();
    let (median, longest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!("from the burst to the pause: median {median:?}, longest {longest:?}");
    // Other queues are unaffected.
    burst(&one, 1, 0, BURST_PACKETS)?;
    ensure!(receives_nothing(&one, 100)?, "another queue pauses priority 3");
    // Neither is this one, once PFC transmission is disabled.
    fixture.switch.set("p0", &["pfc.3.tx=off"])?;
    thread::sleep(Duration::from_millis(50));
    burst(&one, 1, 26, BURST_PACKETS)?;
    ensure!(receives_nothing(&one, 100)?, "a pause while PFC transmission is disabled");
    Ok(())
}

/// A daemon forgets ports that were removed before it started: the map that counts by port must not fill up.
#[test]
fn ports_removed_between_daemons_forgotten() -> Result<()> {
    require!("tbf", "htb");
    let fixture = BridgeFixture::new("forgetting")?;
    let switch = &fixture.switch;
    let (maps, removed) = (switch.attachment("p0")?.maps, switch.index("p2")?);
    let is_counted = |expected: bool| {
        let daemon = Running::start(switch, "run p0")?;
        wait_value(|| Ok(maps.ingress_ports()?.contains(&removed)), |found| *found == expected)?;
        drop(daemon);
        anyhow::Ok(())
    };
    is_counted(true)?;
    switch.command("ip link del p2")?;
    is_counted(false)
}

/// Two ports fill at the same time: each is paused until the slower one's queue is empty.
#[test]
fn xon_of_one_port_keeps_other_xoff() -> Result<()> {
    require!("tbf", "htb");
    let fixture = BridgeFixture::new("askingtwo")?;
    let one = fixture.socket(0)?;
    let _daemon = Running::start(&fixture.switch, "run p0 p9")?;
    thread::sleep(Duration::from_millis(2_500));
    for round in 0..5 {
        // Alternating, so that no port is always first.
        let (short, long) = if round % 2 == 0 { (NEAR, FAR) } else { (FAR, NEAR) };
        burst_to(&one, 1, long, 26, 2 * BURST_PACKETS)?;
        burst_to(&one, 1, short, 26, BURST_PACKETS)?;
        let begun = Instant::now();
        ensure!(next_quanta(&one)? != 0, "round {round}: XON before XOFF");
        let mut sent_at = Instant::now();
        loop {
            let continues = next_quanta(&one)? == 0;
            // A late daemon, on a busy machine, finds the other port's pause expired, and repeats it.
            if continues && (sent_at.elapsed() < PAUSE - POLL_INTERVAL || receives_nothing(&one, 20)?) {
                break;
            }
            sent_at = Instant::now();
        }
        // Backlog above XON of the longer queue, at the port's rate; the first burst leaves immediately.
        let bytes = (2 * BURST_PACKETS * Roce::default().frame().len()) as u64 - 10_000 - 2_000;
        let empty = Duration::from_millis(bytes * 8 / RATE_KBIT);
        println!("round {round}: on after {:?}, below XON after {empty:?}", begun.elapsed());
        let after = begun.elapsed();
        ensure!(after > empty * 9 / 10, "round {round}: on after {after:?}, not {empty:?}");
        ensure!(receives_nothing(&one, 50)?, "round {round}: XOFF with an empty queue");
    }
    Ok(())
}
