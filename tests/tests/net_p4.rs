//! `dcqcn-lab p4` and `replay --engine bmv2`: with mock tools everywhere, with BMv2 if installed.

use dcqcn_netlink::netns::Temporary;
use dcqcn_p4::Process;
use dcqcn_p4::program::JSON;
use dcqcn_tests::prelude::*;

const FILE: &str = include_str!("../../userspace/experiments/p4/src/sample.toml");

/// A directory with a configuration, and mocks of p4c's and BMv2's programs.
struct Fixture {
    directory: TempDir,
}

impl Fixture {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("switch.toml"), FILE)?;
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tool(&self, name: &str, script: &str) -> Result<()> {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
    }

    /// Runs a command with only the given tools in its path; its error must have this text.
    fn fails(&self, line: &str, text: &str) -> Result<()> {
        let path = self.directory.path();
        let error = error_of(dcqcn_lab(line)?.current_dir(path).env("PATH", path), 1)?;
        ensure!(error.contains(text), "{line}: {error}");
        Ok(())
    }
}

#[test]
fn missing_or_broken_tools_reported() -> Result<()> {
    let fixture = Fixture::new()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4");
    let build = format!("p4 build --source {} --out out", source.display());
    fixture.fails(&build, "`p4c-bm2-ss` is not on PATH")?;
    for (line, looked_for) in
        [("p4 build", "p4/dcqcn.p4"), ("p4 build --source nowhere --out out", "nowhere/dcqcn.p4")]
    {
        let path = fixture.directory.path().canonicalize()?.join(looked_for).display().to_string();
        fixture.fails(line, &path)?;
        fixture.fails(line, "--source DIR")?;
    }
    fixture.fails("p4 push --config switch.toml", "p4lang-bmv2")?;
    fixture.fails("p4 commands --config none.toml", "cannot read none.toml")?;
    fs::write(fixture.path("broken.toml"), FILE.replace("link_rate", "link_rat"))?;
    fixture.fails("p4 commands --config broken.toml", "broken.toml:2: unknown parameter `link_rat`")?;
    fs::write(fixture.path("other.toml"), FILE.replace("link_rate = '10mbit'\n", ""))?;
    fixture.fails("p4 commands --config other.toml", "needs the rate of the hosts' links")?;

    fixture.tool("p4c-bm2-ss", "echo 'dcqcn.p4(7): syntax error' >&2; exit 1")?;
    fixture.fails(&build, "p4c-bm2-ss rejects")?;
    fixture.fails(&build, "dcqcn.p4(7): syntax error")
}

#[test]
fn switch_with_inverted_queues_rejected() -> Result<()> {
    let fixture = Fixture::new()?;
    let push = "p4 push --config switch.toml --thrift-port 9190";
    fixture.tool("simple_switch_CLI", "echo 'Could not connect to thrift client on port 9190'; exit 1")?;
    fixture.tool("simple_switch", "echo 1.15.4-0123abcd")?;
    fixture.fails(push, "cannot use simple_switch 1.15.4-0123abcd: set_queue_rate")?;
    for version in ["1.15.5-0123abcd", "unknown"] {
        fixture.tool("simple_switch", &format!("echo {version}"))?;
        fixture.fails(push, "no switch answers")?;
    }
    Ok(())
}

#[test]
fn non_switch_distinguished_from_stopped() -> Result<()> {
    let fixture = Fixture::new()?;
    let push = "p4 push --config switch.toml --thrift-port 9190";
    fixture.tool("simple_switch_CLI", "echo 'Could not connect to thrift client on port 9190'; exit 1")?;
    fixture.fails(push, "no switch answers at Thrift port 9190")?;
    fixture.tool("simple_switch_CLI", "echo 'TTransportException: TSocket read 0 bytes' >&2; exit 1")?;
    fixture.fails(push, "is not simple_switch's Thrift server: TTransportException")?;
    fixture.tool("simple_switch_CLI", "printf 'RuntimeCmd: '; read line; echo 'Broken pipe' >&2; exit 1")?;
    fixture.fails(push, "lost connection to the switch at Thrift port 9190: `write_config_to_file")?;
    // A switch with an older program.
    let mut program: Value = serde_json::from_str(JSON)?;
    let registers = program["register_arrays"].as_array_mut().context("no registers")?;
    registers.retain(|register| register["name"] != "rp_rate_bps");
    fs::write(fixture.path("old.json"), program.to_string())?;
    let old = fixture.path("old.json");
    let prompt = "printf 'RuntimeCmd: '; read";
    let answer = format!("{prompt} command file; /bin/cat {} > $file; {prompt} line", old.display());
    fixture.tool("simple_switch_CLI", &answer)?;
    fixture.fails(push, "it has no register `rp_rate_bps`")?;
    fixture.fails(push, "`dcqcn-lab p4 build` compiles this one's")
}

#[test]
fn switch_file_checked_offline() -> Result<()> {
    let fixture = Fixture::new()?;
    let check = |file: &str, json: &[&str]| -> Result<Output> {
        let mut command = dcqcn_lab("p4 check")?;
        Ok(command.arg(file).args(json).current_dir(fixture.directory.path()).output()?)
    };
    let output = check("switch.toml", &[])?;
    let message = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{message}");
    ensure!(message.ends_with("a BMv2 switch of 2 ports and 26 table entries\n"), "{message}");
    let report: Value = serde_json::from_slice(&check("switch.toml", &["--json"])?.stdout)?;
    ensure!(report["ports"] == 2, "{report}");

    for (from, to, expected) in [
        ("number = 2", "number = 1", "number = 1 is given twice"),
        ("host = true", "hots = true", "wrong.toml:15: unknown field `hots`"),
        ("kmin = '10820B'", "kmin = '1MB'", "wred.3.kmin = 1MB is above wred.3.kmax"),
        ("link_rate = '10mbit'\n", "", "because: the reaction point needs the rate of the hosts' links"),
    ] {
        fs::write(fixture.path("wrong.toml"), FILE.replace(from, to))?;
        let output = check("wrong.toml", &[])?;
        let message = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1) && message.contains(expected), "{message}");
    }
    Ok(())
}

/// A running switch with two ports, and the command next to it.
struct Bench {
    fixture: Fixture,
    process: Option<Process>,
    netns: Temporary,
}

impl Bench {
    fn new(test: &str) -> Result<Self> {
        let netns = Temporary::create(&format!("dcqcn-test-{}-{test}", std::process::id()))?;
        let mut bench = Self { fixture: Fixture::new()?, process: None, netns };
        let netlink = Netlink::connect_in(&bench.netns)?;
        for (near, far) in [("sw1", "out1"), ("sw2", "out2")] {
            add_veth(&netlink, near, far)?;
            netlink.set_up(netlink.link(near)?.index, true)?;
            netlink.set_up(netlink.link(far)?.index, true)?;
        }
        bench.start()?;
        Ok(bench)
    }

    fn start(&mut self) -> Result<()> {
        let (process, _) = Process::start(&self.netns, &[(1, "sw1".into()), (2, "sw2".into())])?;
        self.process = Some(process);
        Ok(())
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = dcqcn_lab(line)?;
        let directory = self.fixture.directory.path();
        command.current_dir(directory).env("DCQCN_AUDIT", directory);
        Ok(command)
    }

    fn ok(&self, line: &str) -> Result<String> {
        let mut command = self.command(line)?;
        self.netns.run(|| output_of(&mut command))?
    }

    fn json(&self, line: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.ok(&format!("{line} --json"))?)?)
    }

    fn fails(&self, line: &str, text: &str) -> Result<()> {
        let mut command = self.command(line)?;
        let error = self.netns.run(|| error_of(&mut command, 1))??;
        ensure!(error.contains(text), "{line}: {error}");
        Ok(())
    }

    fn configure_externally(&self, commands: &str) -> Result<()> {
        fs::write(self.fixture.path("commands"), commands)?;
        let mut command = Command::new("sh");
        command.args(["-c", "simple_switch_CLI < commands"]).current_dir(self.fixture.directory.path());
        ensure!(self.netns.run(|| command.output())??.status.success());
        Ok(())
    }
}

#[test]
fn switch_configured_tuned_and_read() -> Result<()> {
    require_bmv2!();
    let mut bench = Bench::new("p4")?;
    // There is no state, or another namespace's of the same number: both errors have advice.
    bench.fails("p4 set rpg_gd=12", "`dcqcn-lab p4 push --config FILE --thrift-port 9090`")?;

    let first = bench.json("p4 push --config switch.toml --set priority_major=1")?;
    ensure!(first["written"].as_u64() > Some(20) && first["not_in_p4"][0] == "priority_major=1", "{first}");
    let again = bench.json("p4 push --config switch.toml")?;
    ensure!([&again["written"], &again["modified"], &again["deleted"]] == [0, 0, 0], "{again}");
    let other = "p4 push --config switch.toml --set np_enable=off --set fast_cnp=off --set rpg_ai_rate=1mbit";
    let other = bench.json(other)?;
    ensure!([&other["written"], &other["modified"], &other["deleted"]] == [0, 1, 2], "{other}");

    let set = bench.ok("p4 set wred.3.kmax=60KB rpg_ai_rate=2mbit")?;
    ensure!(set == "wred.3.kmax: 43.28KB -> 60KB\nrpg_ai_rate: 1mbit -> 2mbit\n", "{set}");
    ensure!(bench.ok("p4 get wred.3.kmax rpg_ai_rate")?.contains("60KB"));
    // Atomically: if one is rejected, neither is changed.
    bench.fails(
        "p4 set wred.3.kmin=100KB rpg_ai_rate=3mbit",
        "wred.3.kmin = 100KB is above wred.3.kmax = 60KB",
    )?;
    ensure!(bench.ok("p4 get rpg_ai_rate")?.contains("2mbit"));
    let audit = fs::read_to_string(bench.fixture.path("audit.jsonl"))?;
    ensure!(audit.lines().count() == 2 && audit.contains("bmv2:9090"), "{audit}");

    bench.configure_externally("table_clear wred\n")?;
    bench.fails("p4 set rpg_gd=12", "differs from the last push")?;
    let restored = bench.json("p4 push --config switch.toml")?;
    ensure!(restored["written"].as_u64() > Some(15), "{restored}");

    let read = bench.json("p4 read")?;
    ensure!(read["flows"]["pairs"][0]["peer_qpn"] == 529, "{read}");
    ensure!(read["queues"][0]["classes"][3]["kmax_bytes"] == 43_280, "{read}");
    ensure!(read["counters"]["total"]["rp_cnp_handled"] == 0, "{read}");

    // The state belongs to the previous switch.
    bench.process = None;
    bench.fails("p4 read", "no switch answers at Thrift port 9090")?;
    bench.start()?;
    bench.fails("p4 read", "the stored configuration of the switch is stale")?;
    let read = bench.json("p4 read --config switch.toml")?;
    ensure!(read["queues"][0]["classes"][3]["kmax_bytes"] == 43_280, "{read}");
    Ok(())
}

/// The output of `commands` equals the effect of `push`: a push after it changes nothing.
#[test]
fn printed_commands_equal_push() -> Result<()> {
    require_bmv2!();
    let bench = Bench::new("p4c")?;
    let commands = bench.ok("p4 commands --config switch.toml")?;
    bench.configure_externally(&commands)?;
    let pushed = bench.json("p4 push --config switch.toml")?;
    ensure!([&pushed["written"], &pushed["modified"], &pushed["deleted"]] == [0, 0, 0], "{pushed}");
    Ok(())
}

/// Without marking, which is random, the P4 program equals the reference to the nanosecond.
#[test]
fn capture_replay_equals_reference() -> Result<()> {
    require_bmv2!();
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rc_write.pcap");
    for hook in ["egress", "ingress", "xdp"] {
        let lines = |engine: &str| -> Result<String> {
            let options = "--set link_rate=100mbit --set wred.3.ecn=off";
            output_of(dcqcn_lab(&format!("replay --hook {hook} --engine {engine} {options}"))?.arg(&capture))
        };
        let (reference, bmv2) = (lines("reference")?, lines("bmv2")?);
        ensure!(reference.lines().count() == 270);
        for (reference, bmv2) in reference.lines().zip(bmv2.lines()) {
            ensure!(reference == bmv2, "{hook}\nreference {reference}\nbmv2      {bmv2}");
        }
    }
    Ok(())
}

#[test]
fn bmv2_incast_controlled_at_host_or_switch() -> Result<()> {
    require_bmv2!("tbf");
    while_busy(3, || incast("host", "both"))?;
    while_busy(3, || incast("switch", "on"))
}

/// Wide bounds: measured values are in docs/explanation/p4.md.
fn incast(rp: &str, control: &str) -> Result<()> {
    let line = format!("incast --switch bmv2 --rp {rp} --control {control} --duration 6s --json");
    let report: Value = serde_json::from_str(&output_of(&mut dcqcn_lab(&line)?)?)?;
    ensure!(Netns::list("dcqcn-lab-")?.is_empty(), "namespaces are left over");
    let runs = report["runs"].as_array().context("no runs")?;
    let metric = |run: &Value, key: &str| {
        run["whole"].pointer(key).and_then(Value::as_f64).with_context(|| format!("no {key}: {report}"))
    };
    let with = runs.last().context("no run")?;
    ensure!(metric(with, "/goodput_bps")? > 0.0, "{report}");
    for count in ["ce_marks", "cnps_sent", "cnps_handled"] {
        let count = metric(with, &format!("/control/{count}"))?;
        ensure!(count > 0.0, "{rp}: marked, answered and heeded: {report}");
    }
    if let [off, with] = runs.as_slice() {
        let (off, with) = (metric(off, "/drops")?, metric(with, "/drops")?);
        ensure!(off > 100.0, "an incast without control overflows its buffer: {report}");
        ensure!(with < off / 4.0, "with DCQCN it does not: {report}");
    }
    Ok(())
}
