//! An etcd cluster for tests.

use crate::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(30);

struct Member {
    name: String,
    client: u16,
    peer: u16,
    child: Option<Running>,
}

pub struct Etcd {
    dir: TempDir,
    members: Vec<Member>,
    options: Vec<String>,
    address: Ipv4Addr,
    scheme: &'static str,
    ctl: Vec<String>,
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Etcd {
    /// Returns whether etcd is installed; prints that `test` is skipped if not.
    pub fn available(test: &str) -> bool {
        let available = ["etcd", "etcdctl"].into_iter().all(|name| find_program(name).is_some());
        if !available {
            eprintln!("SKIPPED {test}: no etcd and etcdctl on PATH (Debian: etcd-server, etcd-client)");
        }
        available
    }

    /// Starts a cluster with additional options for each member, and waits for a leader.
    pub fn start(members: usize, options: &[&str]) -> Result<Self> {
        Self::start_as("http", Ipv4Addr::LOCALHOST, members, options, &[])
    }

    /// Starts a single member at `address` in the caller's network namespace, reachable from other hosts.
    pub fn start_at(address: Ipv4Addr) -> Result<Self> {
        Self::start_as("http", address, 1, &[], &[])
    }

    /// Starts a cluster that requires client certificates; `ctl` contains those of `etcdctl`.
    pub fn start_secure(members: usize, options: &[&str], ctl: &[&str]) -> Result<Self> {
        Self::start_as("https", Ipv4Addr::LOCALHOST, members, options, ctl)
    }

    fn start_as(
        scheme: &'static str,
        address: Ipv4Addr,
        members: usize,
        options: &[&str],
        ctl: &[&str],
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let member = |index: usize| -> Result<Member> {
            Ok(Member { name: format!("m{index}"), client: free_port()?, peer: free_port()?, child: None })
        };
        let members = (0..members).map(member).collect::<Result<Vec<_>>>()?;
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (options, ctl) = (owned(options), owned(ctl));
        let mut etcd = Self { dir, members, options, address, scheme, ctl };
        for index in 0..etcd.members.len() {
            etcd.begin(index)?;
        }
        etcd.healthy()?;
        Ok(etcd)
    }

    pub fn begin(&mut self, index: usize) -> Result<()> {
        let address = self.address;
        let cluster: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}=http://{address}:{}", member.name, member.peer))
            .collect();
        let (options, scheme) = (self.options.clone(), self.scheme);
        let member = self.members.get_mut(index).context("no such member")?;
        let (client, peer) = (member.client, member.peer);
        let mut command = Command::new(find_program("etcd").context("no etcd on PATH")?);
        command
            .args(["--name", &member.name])
            .arg("--data-dir")
            .arg(self.dir.path().join(&member.name))
            .args(["--listen-client-urls", &format!("{scheme}://{address}:{client}")])
            .args(["--advertise-client-urls", &format!("{scheme}://{address}:{client}")])
            .args(["--listen-peer-urls", &format!("http://{address}:{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{address}:{peer}")])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--log-level", "error"])
            .args(&options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        member.child = Some(Running(command.spawn().context("cannot start etcd")?));
        Ok(())
    }

    pub fn kill(&mut self, index: usize) -> Result<()> {
        let member = self.members.get_mut(index).context("no such member")?;
        member.child.take().context("the member is not running")?.kill()
    }

    pub fn signal(&self, index: usize, what: Signal) -> Result<()> {
        let member = self.members.get(index).context("no such member")?;
        member.child.as_ref().context("the member is not running")?.signal(what)
    }

    pub fn endpoints(&self) -> String {
        let endpoint = |member: &Member| format!("{}://{}:{}", self.scheme, self.address, member.client);
        self.members.iter().map(endpoint).collect::<Vec<_>>().join(",")
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    pub fn leader(&self) -> Result<usize> {
        wait_for(TIMEOUT, || {
            let running = self.members.iter().enumerate().filter(|(_, member)| member.child.is_some());
            for (index, member) in running {
                let endpoint = format!("{}://{}:{}", self.scheme, self.address, member.client);
                let output = self.ctl_at(&endpoint, &["endpoint", "status", "--write-out=fields"])?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let field = |name: &str| {
                    let line = text.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
                    line.split_once(": ").map(|(_, value)| value.to_owned())
                };
                if field("MemberID").is_some_and(|id| Some(id) == field("Leader")) {
                    return Ok(Ok(index));
                }
            }
            Ok(Err("no leader".to_owned()))
        })
    }

    pub fn healthy(&self) -> Result<()> {
        wait_for(TIMEOUT, || {
            Ok(self.ok(&["put", "healthy", "yes"]).map(drop).map_err(|error| error.to_string()))
        })
    }

    pub fn ctl(&self, words: &[&str]) -> Result<Output> {
        self.ctl_at(&self.endpoints(), words)
    }

    /// Runs `etcdctl` with these arguments, which must succeed, and returns its output.
    pub fn ok(&self, words: &[&str]) -> Result<String> {
        let output = self.ctl(words)?;
        ensure!(output.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn compact(&self) -> Result<()> {
        let text = self.ok(&["get", "healthy", "--write-out=fields"])?;
        let revision = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap_or_default();
        self.ok(&["compact", revision]).map(drop)
    }

    pub fn put(&self, values: &[(String, String)]) -> Result<()> {
        let mut text = String::from("\n");
        for (key, value) in values {
            text += &format!("put {key} {}\n", serde_json::to_string(value)?);
        }
        text += "\n\n";
        let mut command = self.etcdctl(&self.endpoints(), &["txn"])?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().context("no pipe")?.write_all(text.as_bytes())?;
        ensure!(child.wait()?.success(), "etcdctl txn fails");
        Ok(())
    }

    /// `etcdctl watch` of all keys with `prefix`. It prints three lines per change: event, key and value.
    pub fn watch(&self, prefix: &str) -> Result<Command> {
        let mut command = self.etcdctl(&self.endpoints(), &["watch", "--prefix", prefix])?;
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn etcdctl(&self, endpoints: &str, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(find_program("etcdctl").context("no etcdctl on PATH")?);
        command.env("ETCDCTL_API", "3").args(["--endpoints", endpoints]).args(&self.ctl).args(words);
        Ok(command)
    }

    fn ctl_at(&self, endpoints: &str, words: &[&str]) -> Result<Output> {
        Ok(self.etcdctl(endpoints, words)?.args(["--command-timeout", "3s"]).output()?)
    }
}
