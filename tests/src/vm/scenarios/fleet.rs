//! The fleet package under Debian's systemd: its units work unprivileged.

use std::os::unix::fs::MetadataExt as _;

use super::super::command::json;
use super::systemd::{self, until};
use crate::fleet::unjudged_file;
use crate::vm::prelude::*;

const UNITS: [&str; 3] = ["dcqcn-fleet-agent", "dcqcn-fleet-coordinate", "dcqcn-fleet-serve"];
const SOCKET: &str = "/run/dcqcn/control";
/// The page updates once a second; an emulated guest is slow.
const PAGE_SILENCE: Duration = Duration::from_secs(30);
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
const OWN: &str = "\
[[interface]]
name = 'roce*'
flows = 1024
[interface.parameters]
link_rate = '1gbit'
[control]
group = 'dcqcn-fleet'
[fleet]
allow = ['wred.*.kmin = 50KB..500KB', 'wred.*.kmax = 60KB..2MB']
";

pub(super) fn run(report: &mut Report) -> Result<()> {
    let units = "--unit=etcd --unit=dcqcn-fleet-*";
    let log = || sh(&format!("journalctl --no-pager --output=cat --lines=40 {units}")).unwrap_or_default();
    steps(report).with_context(log)
}

fn steps(report: &mut Report) -> Result<()> {
    systemd::wait_until_managed()?;
    ensure!(Path::new("/share/etcd").exists(), "the machine that created this guest has no etcd");
    sh("dpkg --install /share/dcqcn-fleet.deb")?;
    for unit in UNITS {
        let is_active = sh(&format!("systemctl is-active {unit}.service")).is_ok();
        report.equals(&format!("installed: {unit}"), is_active, false);
    }
    fs::write("/etc/dcqcn/dcqcn.toml", OWN)?;
    sh("systemctl restart dcqcn.service")?;
    let is_ready = || Ok(Path::new(SOCKET).exists() && systemd::wait_until_managed().is_ok());
    until("the control socket exists", is_ready)?;
    let owner = sh(&format!("stat --format=%U:%G:%a {SOCKET}"))?;
    report.equals("the socket", owner.trim(), "root:dcqcn-fleet:660");

    // By address, as the guest has no name resolution. A program on an uncached share is read again for each page.
    sh("cp /share/etcd /usr/local/bin/etcd")?;
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    sh(&format!(
        "systemd-run --quiet --unit=etcd /usr/local/bin/etcd --data-dir /var/tmp/etcd --listen-client-urls {client} \
         --advertise-client-urls {client} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \
         --initial-cluster default={peer}"
    ))?;
    let options = "DCQCN_ETCD=http://127.0.0.1:2379\nAGENT_OPTIONS=--label rack=a\nSERVE_OPTIONS=--fleet\n";
    fs::write("/etc/default/dcqcn-fleet", options)?;
    for unit in UNITS {
        sh(&format!("systemctl enable --now {unit}.service"))?;
    }
    until("the agent reports", || Ok(host()?["is_there"] == true))?;
    let (found, name) = (host()?["host"].clone(), sh("uname --nodename")?);
    report.equals("the host's name", &found, name.trim());
    for unit in UNITS {
        rights(report, unit)?;
    }
    rollout(report)?;
    page(report)?;
    killed(report)?;
    check_removed(report)
}

/// A unit's process runs as its user, without privileges.
fn rights(report: &mut Report, unit: &str) -> Result<()> {
    let pid = main_pid(unit)?;
    let user = sh("id --user dcqcn-fleet")?;
    let users = status_field(pid, "Uid:")?;
    let found = users.split_whitespace().next().unwrap_or_default();
    report.check(&format!("{unit}: user"), found, user.trim(), found == user.trim() && found != "0");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        let found = u64::from_str_radix(&status_field(pid, set)?, 16)?;
        report.equals(&format!("{unit}: {set}"), found, 0);
    }
    systemd::confined(report, unit, pid, &[("/usr/x", false), ("/etc/x", false), ("/var/lib/x", false)])
}

/// The coordinator rolls a version out, the agent passes it to the daemon, and it becomes active in the kernel.
fn rollout(report: &mut Report) -> Result<()> {
    fs::write("/var/tmp/fleet.toml", unjudged_file("rack = 'a'", "roce*"))?;
    sh("dcqcn-fleet apply /var/tmp/fleet.toml --why test --etcd http://127.0.0.1:2379")?;
    until("the version is active", || Ok(kmin()?.contains("70KB")))?;
    until("the rollout is over", || Ok(status()?["rollout"]["is_over"] == true))?;
    let host = host()?;
    let is_healthy = host["has"] == 1 && host["failing"].as_array().is_some_and(Vec::is_empty);
    let found = format!("has {}, failing {}", host["has"], host["failing"]);
    report.check("rollout: the host", found, "has 1, failing []", is_healthy);
    report.contains("rollout: kmin in the kernel", &kmin()?, "70KB");
    let log = sh("dcqcn log")?;
    report.check("rollout: the audit log", "", "has it", log.contains("fleet 1"));
    Ok(())
}

/// The page answers, with this host and the fleet.
fn page(report: &mut Report) -> Result<()> {
    let request = |path: &str, is_all: &dyn Fn(&str) -> bool| -> Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:9320")?;
        stream.set_read_timeout(Some(PAGE_SILENCE))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        let mut part = [0; 4_096];
        let until = Instant::now() + PAGE_TIMEOUT;
        while !is_all(&answer) && Instant::now() < until {
            let read = stream.read(&mut part).with_context(|| format!("{path}: {answer}"))?;
            if read == 0 {
                break;
            }
            answer += &String::from_utf8_lossy(part.get(..read).unwrap_or_default());
        }
        Ok(answer)
    };
    let html = request("/", &|answer| answer.contains("\r\n\r\n"))?;
    report.contains("page: /", html.lines().next().unwrap_or_default(), "HTTP/1.1 200 ");
    // The first response predates sampling, which continues while a client is connected.
    let host = host()?["host"].as_str().context("a host has a name")?.to_owned();
    let all = ["\"name\":\"roce0\"".to_owned(), format!("\"host\":\"{host}\"")];
    let events = request("/events", &|answer| all.iter().all(|what| answer.contains(what)))?;
    let missing: Vec<_> = all.iter().filter(|what| !events.contains(*what)).collect();
    report.empty("page: missing of roce0 and the host", &missing);
    Ok(())
}

/// A killed agent is restarted; in the meantime the active configuration is unchanged.
fn killed(report: &mut Report) -> Result<()> {
    let agent = UNITS[0];
    let pid = main_pid(agent)?;
    sh(&format!("systemctl kill --signal=KILL {agent}.service"))?;
    until("the agent is started again", || Ok(main_pid(agent).is_ok_and(|other| other != pid)))?;
    report.contains("kill -9: kmin", &kmin()?, "70KB");
    let inode = fs::metadata(SOCKET)?.ino();
    sh("systemctl restart dcqcn.service")?;
    until("the socket was recreated", || Ok(fs::metadata(SOCKET)?.ino() != inode))?;
    until("the host is healthy again", || {
        let host = host()?;
        Ok(host["is_there"] == true
            && host["has"] == 1
            && host["failing"].as_array().is_some_and(Vec::is_empty))
    })?;
    report.contains("daemon started again: kmin", &kmin()?, "70KB");
    Ok(())
}

/// After removal, its units are removed; the daemon and its configuration are unchanged.
fn check_removed(report: &mut Report) -> Result<()> {
    // The package creates the daemon's group.
    fs::write("/etc/dcqcn/dcqcn.toml", OWN.replace("group = 'dcqcn-fleet'\n", ""))?;
    sh("dpkg --purge dcqcn-fleet")?;
    for unit in UNITS {
        let is_active = sh(&format!("systemctl is-active {unit}.service")).is_ok();
        report.equals(&format!("purged: {unit}"), is_active, false);
    }
    report.contains("purged: kmin", &kmin()?, "70KB");
    sh("systemctl restart dcqcn.service")?;
    until("the daemon starts without the package", || Ok(systemd::wait_until_managed().is_ok()))
}

fn status() -> Result<Value> {
    json("dcqcn-fleet --json status --etcd http://127.0.0.1:2379")
}

fn host() -> Result<Value> {
    Ok(status()?["hosts"][0].clone())
}

fn main_pid(unit: &str) -> Result<u32> {
    let pid = sh(&format!("systemctl show --property=MainPID --value {unit}.service"))?.trim().parse()?;
    ensure!(pid != 0, "{unit} does not run");
    Ok(pid)
}

fn kmin() -> Result<String> {
    sh("dcqcn get roce0 wred.3.kmin")
}
