//! A host with a real daemon, traffic on it, and the page; screenshots of it, and its accessibility.

use dcqcn_tests::browser::Browser;
use dcqcn_tests::prelude::*;
use dcqcn_tests::repeat::Repeated;
use dcqcn_tests::socket::http;

/// A port whose queue drains slowly enough for bursts to be seen in it, on a host that paces nothing.
const OWN: &str = "\
[[interface]]
name = 'a*'
role = 'host'
pacer = 'none'
flows = 1024
[interface.parameters]
link_rate = '100mbit'
cp_enable = true
rpg_ai_rate = '2mbit'
rpg_hai_rate = '4mbit'
rpg_time_reset = '300ms'
rpg_byte_reset = '0B'
[interface.wred.3]
kmin = '100KB'
kmax = '300KB'
";
/// Sending QPs, with different rates.
const QPS: u32 = 6;
const SENDER_QPS: [u32; 11] = [0, 1, 0, 2, 0, 1, 3, 0, 4, 1, 5];
/// Bearer token of changes.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(crate) struct Page {
    _server: Running,
    pub(crate) url: String,
}

impl Page {
    pub(crate) fn start(words: &[&str]) -> Result<Self> {
        let mut command = dcqcn_fleet(&["serve", "--listen", "127.0.0.1:0"])?;
        command.args(words).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut server = Running(command.spawn()?);
        let mut log = BufReader::new(server.0.stderr.take().context("no pipe")?);
        let mut url = String::new();
        log.read_line(&mut url)?;
        // The reader has stopped; further output must not block it.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Self { _server: server, url: url.trim().to_owned() })
    }

    pub(crate) fn request(&self, request: &str) -> Result<String> {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        http(address, &request.replace("HOST", address))
    }
}

pub(crate) fn token(dir: &Path) -> Result<String> {
    let path = dir.join("token");
    fs::write(&path, TOKEN)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path.display().to_string())
}

pub(crate) struct PageFixture {
    pub(crate) pair: Pair,
    pub(crate) daemon: Daemon,
    _traffic: Repeated,
}

impl PageFixture {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let pair = Pair::new(name)?;
        let fleet = "[fleet]\nstate = 'DIR/fleet.json'\nallow = ['wred.*.kmin = 50KB..250KB', 'rpg_*']\n";
        let file = format!("{OWN}{CONTROL}{fleet}");
        let daemon = Daemon::serving(&pair.a, &file, "a0")?;
        let (data, cnps) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
        let frame = |qp: u32| Roce { payload: 4_000, dest_qpn: 0x11 + qp, ..Roce::default() };
        let mut round = 0;
        let traffic = Repeated::start(move || {
            // Bursts of up to 240 KB, unequal among QPs.
            let burst = 20 + round % 7 * 7;
            for packet in 0..burst {
                data.send(&frame(SENDER_QPS[packet as usize % SENDER_QPS.len()]).frame())?;
            }
            if round % 3 == 0 {
                cnps.send(&frame(round / 3 * 5 / 2 % QPS).cnp(None, CNP_TOS))?;
            }
            round += 1;
            thread::sleep(Duration::from_millis(40));
            Ok(())
        });
        Ok(Self { pair, daemon, _traffic: traffic })
    }

    pub(crate) fn token(&self) -> Result<String> {
        token(self.daemon.dir.path())
    }

    pub(crate) fn kmin(&self) -> Result<u64> {
        Ok(self.pair.a.attachment("a0")?.maps.params()?.config.wred[3].kmin_bytes)
    }
}

/// Destination of a picture: the documentation if `DCQCN_PICTURES` has its path.
pub(crate) fn picture(otherwise: &Path, name: &str) -> PathBuf {
    std::env::var_os("DCQCN_PICTURES").map_or_else(|| otherwise.to_owned(), PathBuf::from).join(name)
}

/// Fails on any finding of axe-core.
pub(crate) fn check_accessibility(test: &str, browser: &mut Browser, what: &str) -> Result<()> {
    match browser.faults()? {
        None => eprintln!("SKIPPED {test}, in part: axe-core is not there (`cargo xtask test` gets it)"),
        Some(faults) => ensure!(faults.is_empty(), "{what}: {}", faults.join("\n")),
    }
    Ok(())
}
