//! The commands of docs/how-to/fleet.md, typed: real daemons in network namespaces with real packets, agents and etcd.

use dcqcn_tests::command::fleet_binary;
use dcqcn_tests::prelude::*;
use dcqcn_tests::repeat::Repeated;

const PAGE: &str = include_str!("../../../docs/how-to/fleet.md");
/// A port whose queue drains slowly enough for bursts to be seen in it.
const OWN: &str = "\
[[interface]]
name = 'a*'
role = 'switch'
pacer = 'none'
flows = 1024
[interface.parameters]
link_rate = '100mbit'
[interface.wred.3]
kmin = '300KB'
kmax = '600KB'
";
/// Packets of a burst: 160 KB, between the thresholds of the page's two versions.
const BURST: usize = 40;

struct Host {
    pair: Pair,
    daemon: Daemon,
    _agent: Running,
    _traffic: Repeated,
}

impl Host {
    fn new(name: &str, etcd: &str) -> Result<Self> {
        let pair = Pair::new(name)?;
        let allow =
            PAGE.lines().find(|line| line.starts_with("allow = [")).context("no bounds in the page")?;
        let file = format!("{OWN}{CONTROL}[fleet]\nstate = 'DIR/fleet.json'\n{allow}\n");
        let daemon = Daemon::serving(&pair.a, &file, "a0")?;
        let words =
            ["agent", "--name", name, "--label", "rack=a", "--every", "1s", "--ttl", "30s", "--etcd", etcd];
        let mut agent = dcqcn_fleet(&words)?;
        agent.args(["--control", &daemon.socket()]).stdout(Stdio::null()).stderr(Stdio::null());
        let agent = Running(agent.spawn()?);
        let socket = pair.a.socket("a0")?;
        let frame = Roce { payload: 4_000, ..Roce::default() }.frame();
        let traffic = Repeated::start(move || {
            for _ in 0..BURST {
                socket.send(&frame)?;
            }
            thread::sleep(Duration::from_millis(50));
            Ok(())
        });
        Ok(Self { pair, daemon, _agent: agent, _traffic: traffic })
    }

    fn kmin(&self) -> Result<u64> {
        Ok(self.pair.a.attachment("a0")?.maps.params()?.config.wred[3].kmin_bytes)
    }
}

/// Commands of the page's blocks, and whether the last of each block fails.
fn typed() -> Vec<(bool, String)> {
    let blocks = PAGE.split("<!-- typed").skip(1);
    let block = |text: &str| {
        let (tag, rest) = text.split_once(" -->\n```sh\n")?;
        Some((tag.contains("fails"), rest.split("\n```").next()?.to_owned()))
    };
    blocks.filter_map(block).collect()
}

/// The page's file, for interfaces and times of this test.
fn file() -> Result<String> {
    let text = PAGE.split("<!-- file -->\n```toml\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let text = text.context("no file in the page")?;
    Ok(text.replace("\"eth*\"", "\"a*\"").replace("\"60s\"", "\"3s\"").replace("25%", "100%"))
}

#[test]
fn guide_runs_on_real_hosts() -> Result<()> {
    require!();
    require_installed!(Etcd);
    let dir = tempfile::tempdir()?;
    let etcd = Etcd::start(1, &[])?;
    let names = ["st1", "st2", "st3"];
    let hosts =
        names.map(|name| Host::new(name, &etcd.endpoints())).into_iter().collect::<Result<Vec<_>>>()?;
    let mut canary = None;
    let own = hosts[0].kmin()?;
    fs::write(dir.path().join("fleet.toml"), file()?)?;
    let shell = |line: &str| -> Result<(bool, String)> {
        let path = fleet_binary()?;
        let programs = path.parent().context("a program is in a directory")?;
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-c", line])
            .current_dir(dir.path())
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("DCQCN_ETCD", etcd.endpoints())
            .output()?;
        let message = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&message).into_owned()))
    };
    let status = || shell("dcqcn-fleet status --json");
    wait_value(status, |(_, status)| status.matches("\"is_there\": true").count() == 3)?;
    // Earlier measurements, for comparison.
    thread::sleep(Duration::from_secs(3));

    let mut message = String::new();
    for (block, (fails, lines)) in typed().into_iter().enumerate() {
        let count = lines.lines().count();
        for (index, line) in lines.lines().enumerate() {
            let (is_right, text) = shell(line)?;
            let is_last = index + 1 == count;
            ensure!(is_right != (fails && is_last), "block {block}, {line}: {text}");
            message = text;
        }
        let kmins = hosts.iter().map(Host::kmin).collect::<Result<Vec<_>>>()?;
        match block {
            0 => assert_eq!(kmins, [own; 3], "{message}"),
            1 => assert_eq!(kmins, [250_000; 3], "{message}"),
            2 => {
                let reason = |name: &str| format!("version 2 was rolled back: {name} has ");
                canary = names.iter().position(|name| message.contains(&reason(name)));
                assert!(canary.is_some(), "{message}");
                for words in ["marked packets per million", "; limit "] {
                    assert!(message.contains(words), "{words}: {message}");
                }
                assert_eq!(kmins, [250_000; 3], "{message}");
            }
            3 => {
                assert_contains(&message, " rejects version 3");
                assert_contains(&message, "50KB to 500KB");
                assert_eq!(kmins, [250_000; 3], "{message}");
            }
            _ => assert_eq!(kmins, [own; 3], "{message}"),
        }
    }
    assert!(message.contains("st3") && message.contains("healthy"), "{message}");
    let canary = canary.context("the page has a version that is rolled back")?;
    let audit = fs::read_to_string(hosts[canary].daemon.dir.path().join("audit.jsonl"))?;
    let rollback = format!("rolled back: {} has ", names[canary]);
    for words in ["\"why\":\"CHG-1234\"", &rollback, "\"order\":\"released\""] {
        assert!(audit.contains(words), "{words}: {audit}");
    }
    Ok(())
}
