//! Output of `dcqcn monitor`, `metrics` and `top` for real packets.

use std::os::fd::AsFd as _;

use dcqcn_tests::command::terminal;
use dcqcn_tests::prelude::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A host that marks every packet behind another, with a queue that hardly drains; rates change only by cuts.
const CHANGES: [&str; 7] = [
    "link_rate=1gbit",
    "cp_enable=on",
    "wred.3.drain_rate=100kbit",
    "wred.3.kmin=0B",
    "wred.3.kmax=0B",
    "rpg_time_reset=0ns",
    "rpg_byte_reset=0B",
];

fn pair(test: &str) -> Result<Pair> {
    let pair = Pair::new(test)?;
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.a.set_up("lo", true)?;
    Ok(pair)
}

#[test]
fn watch_shows_traffic() -> Result<()> {
    require!();
    let pair = pair("watch")?;
    let socket = pair.a.socket("a0")?;
    let data = Roce::default();
    let mut watch = Running::start(&pair.a, "monitor a0 --interval 500ms --count 2 --json")?;
    let until = Instant::now() + TIMEOUT;
    let mut sent = 0;
    let status = loop {
        if let Some(status) = watch.0.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < until, "two intervals do not complete");
        sent += 1;
        socket.send(&Roce { psn: sent, ..data.clone() }.frame())?;
        thread::sleep(Duration::from_millis(2));
    };
    ensure!(status.success(), "{status}");
    let mut text = String::new();
    watch.output()?.read_to_string(&mut text)?;
    let samples = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    assert_eq!(samples.len(), 2, "{text}");
    for sample in &samples {
        assert_eq!((&sample["iface"], &sample["role"]), (&"a0".into(), &"host".into()));
        let interval_ns = sample["interval_ns"].as_u64().context("no interval")?;
        assert!(interval_ns > 0, "{sample}");
        let classes = sample["classes"].as_array().context("no classes")?;
        let class = classes.iter().find(|class| class["tc"] == 3).context("no class 3")?;
        assert!(class["packets_per_s"].as_f64() > Some(0.0), "{class}");
        assert!(class["ecn_marked_ratio"].as_f64() > Some(0.5), "{class}");
        assert!(class["depth_bytes"][0].as_u64() > Some(1_000), "{class}");
        let qp = &sample["qps"][0];
        assert_eq!((&qp["address"], &qp["qpn"]), (&"10.0.0.2".into(), &0x11.into()));
        assert!(qp["throughput_bps"].as_f64() > Some(0.0), "{qp}");
        assert_eq!((&qp["state"], &sample["qp_count"]), (&"line-rate".into(), &1.into()));
    }
    let [first, second] = samples.as_slice() else { unreachable!() };
    let packets = |sample: &Value| sample["qps"][0]["packets"].as_u64();
    assert!(packets(second) > packets(first) && packets(second) <= Some(sent.into()));
    Ok(())
}

#[test]
fn watch_ends_with_its_attachment() -> Result<()> {
    require!();
    let pair = pair("watch-end")?;
    for (line, code, expected) in [
        ("monitor b0", 1, "no interface \"b0\""),
        ("monitor lo", 3, "lo is not attached"),
        ("monitor a0 --interval 1us", 2, "10ms to 1h"),
        ("monitor a0 --count 0", 2, "--count"),
        ("top a0", 1, "`dcqcn monitor` prints the same"),
        ("run --metrics-only --listen 127.0.0.1", 2, "--listen"),
        ("run --metrics-only --listen 192.0.2.1:9310", 1, "cannot listen on 192.0.2.1:9310"),
    ] {
        assert_contains(&String::from_utf8(pair.a.dcqcn(line, code)?.stderr)?, expected);
    }
    // The command detects the end of the watched attachment.
    let mut watch = Running::start(&pair.a, "monitor a0 --interval 50ms")?;
    let (mut output, mut line) = (watch.output()?, String::new());
    output.read_line(&mut line)?;
    assert!(line.contains(" a0 class tc=0 depth_bytes=0 "), "{line}");
    pair.a.detach("a0")?;
    output.read_to_end(&mut Vec::new())?;
    assert_eq!(watch.wait()?.code(), Some(3));
    Ok(())
}

/// The value of the series that begins with `name` and has all of `labels`.
fn value(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let has = |line: &str| labels.iter().all(|label| line.contains(label));
    let fits = |line: &&str| line.split(['{', ' ']).next() == Some(name) && has(line);
    metrics.lines().find(fits)?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn metrics_equal_counters() -> Result<()> {
    require!();
    let pair = pair("metrics")?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    for psn in 0..20 {
        a.send(&Roce { psn, ..data.clone() }.frame())?;
        b.expect()?;
    }
    b.send(&data.cnp(None, CNP_TOS))?;
    a.expect()?;

    let mut server = Running::start(&pair.a, "run --metrics-only --listen 127.0.0.1:0 --top-qps 5")?;
    let mut output = server.output()?;
    let mut line = String::new();
    output.read_line(&mut line)?;
    let address = line.split(['/', ' ']).find(|word| word.starts_with("127.")).context(line.clone())?;
    let metrics = get(&pair.a, address, "/metrics")?;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert_contains(&metrics, "text/plain; version=0.0.4");
    let (_, body) = metrics.split_once("\r\n\r\n").context("no body")?;
    for (hook, name) in [(Hook::Xdp, "xdp"), (Hook::Ingress, "ingress"), (Hook::Egress, "egress")] {
        let counters = pair.a.counters("a0", hook)?;
        let label = format!("hook=\"{name}\"");
        for stat in [Stat::RoceData, Stat::RoceCnp, Stat::RpCnpHandled, Stat::CpEcnMarked, Stat::RpFlowNew] {
            let metric = format!("dcqcn_{}_total", stat.label());
            let found = value(body, &metric, &["interface=\"a0\"", &label]);
            assert_eq!(found, Some(counters.stat[stat as usize] as f64), "{metric} {name}");
        }
    }
    assert_eq!(value(body, "dcqcn_rp_cnp_handled_total", &["ingress"]), Some(1.0));
    assert_eq!(value(body, "dcqcn_class_packets_total", &["tc=\"3\""]), Some(20.0));
    assert!(value(body, "dcqcn_class_ecn_marked_packets_total", &["tc=\"3\""]) >= Some(18.0), "{body}");
    let qp = ["receiver=\"10.0.0.2\"", "qpn=\"0x000011\""];
    assert_eq!(value(body, "dcqcn_qp_rate_bytes_per_second", &qp), Some(62_500_000.0));
    assert_eq!(value(body, "dcqcn_up", &["a0"]), Some(1.0));
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok()), "{line}");
    }

    let health = get(&pair.a, address, "/readyz")?;
    assert!(health.starts_with("HTTP/1.1 200") && health.contains(r#""interfaces":["a0"]"#), "{health}");
    // An attachment that has lost a map. Output is a second old at most.
    let pin = pair.a.pins("a0")?.join("NP");
    fs::remove_file(&pin).with_context(|| pin.display().to_string())?;
    let response =
        |path, status: &str| wait_value(|| get(&pair.a, address, path), |answer| answer.starts_with(status));
    let ready = response("/readyz", "HTTP/1.1 503")?;
    assert!(ready.contains("\"interface\":\"a0\"") && ready.contains("maps: "), "{ready}");
    assert!(get(&pair.a, address, "/healthz")?.starts_with("HTTP/1.1 200"), "the process itself is healthy");
    let up = || Ok(value(&get(&pair.a, address, "/metrics")?, "dcqcn_up", &["a0"]));
    wait_value(up, |up| *up == Some(0.0))?;
    // A detached interface is omitted without an error.
    pair.a.detach("a0")?;
    response("/readyz", "HTTP/1.1 200")?;

    server.signal(Signal::SIGTERM)?;
    assert_eq!(server.wait()?.code(), Some(0));
    Ok(())
}

/// `dcqcn top` on a separate terminal.
struct Top {
    process: Running,
    terminal: File,
    /// Output since the last terminal query.
    screen: Vec<u8>,
}

impl Top {
    fn start(pair: &Pair, audit: &Path) -> Result<Self> {
        let (ours, theirs) = terminal()?;
        let mut command = dcqcn("top a0 --interval 100ms")?;
        command.env("DCQCN_AUDIT", audit).env("TERM", "xterm-256color");
        command.stdin(theirs.try_clone()?).stdout(theirs).stderr(Stdio::null());
        Ok(Self { process: Running::spawn(&pair.a, command)?, terminal: ours.into(), screen: Vec::new() })
    }

    /// Reads until `word` was printed. Spaces may be skipped with the cursor, so it has none.
    fn until(&mut self, word: &str) -> Result<()> {
        let mut buffer = [0; 4_096];
        while !String::from_utf8_lossy(&self.screen).contains(word) {
            let mut fds = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::try_from(TIMEOUT)?)?;
            // A terminal whose last process has ended cannot be read.
            let read = if ready == 0 { 0 } else { self.terminal.read(&mut buffer).unwrap_or(0) };
            ensure!(read != 0, "no {word:?} in {}", String::from_utf8_lossy(&self.screen));
            self.screen.extend(&buffer[..read]);
        }
        self.screen.clear();
        Ok(())
    }

    fn write(&mut self, keys: &str) -> Result<()> {
        Ok(self.terminal.write_all(keys.as_bytes())?)
    }
}

/// Output that restores a terminal by leaving the alternate screen.
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn top_restores_terminal() -> Result<()> {
    require!();
    let pair = pair("top")?;
    pair.a.socket("a0")?.send(&Roce::default().frame())?;
    let audit = tempfile::tempdir()?;
    let max_rate_bps =
        || -> Result<u64> { Ok(pair.a.attachment("a0")?.maps.params()?.config.scalars.rpg_max_rate_bps) };

    let mut top = Top::start(&pair, audit.path())?;
    top.until("0x000011")?;
    // Each reply triggers a complete redraw, so words are not split.
    top.write("erpg_max_rate\r2gbit\r")?;
    top.until("changed:")?;
    assert_eq!(max_rate_bps()?, 0);
    top.write("\x7f\x7f\x7f\x7f\x7f500mbit\r")?;
    top.until("rpg_max_rate:")?;
    assert_eq!(max_rate_bps()?, 500_000_000);
    let log = fs::read_to_string(audit.path().join("audit.jsonl"))?;
    assert!(log.contains("rpg_max_rate") && log.contains("500mbit"), "{log}");
    top.write("q")?;
    top.until(LEAVE)?;
    assert_eq!(top.process.wait()?.code(), Some(0));

    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut top = Top::start(&pair, audit.path())?;
        top.until("RECEIVER")?;
        top.process.signal(signal)?;
        top.until(LEAVE)?;
        assert_eq!(top.process.wait()?.code(), Some(0), "{signal}");
    }
    Ok(())
}
