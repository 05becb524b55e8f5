//! The package under Debian's systemd, from boot to purge.

use aya::maps::loaded_maps;

use super::super::command::json;
use crate::vm::prelude::*;

const UNIT: &str = "dcqcn.service";
const IFACE: &str = "roce0";
const FILE: &str = "/etc/dcqcn/dcqcn.toml";
/// Emulated, on a busy machine, everything takes ten times as long.
const TIMEOUT: Duration = Duration::from_secs(180);
/// CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF.
const CAPABILITIES: u64 = 1 << 12 | 1 << 38 | 1 << 39;

pub(super) fn run(report: &mut Report) -> Result<()> {
    boot(report)?;
    sh("dpkg --purge dcqcn")?;
    check_no_state(report, "purged after the boot")?;

    // Another process's state must stay unchanged.
    sh(&format!("ip link set {IFACE} up"))?;
    sh(&format!("tc qdisc add dev {IFACE} root handle 9: pfifo limit 77"))?;
    let before = state()?;
    sh("dpkg --install /share/dcqcn-before.deb")?;
    report.equals("installed: the unit", is_active()?, false);
    report.unchanged("installed: the interface", &before, &state()?);
    write("rpg_ai_rate = '5mbit'")?;
    // A configured qdisc is replaced only by a process that can create a namespace for a rehearsal; the service cannot.
    sh(&format!("dcqcn attach {IFACE} --pacer fq --flows 1024 --set link_rate=1gbit"))?;
    sh("systemctl enable --now dcqcn.service")?;
    until("attached", || Ok(serves(1)))?;

    reload(report)?;
    killed(report)?;
    watchdog(report)?;
    upgrade(report)?;
    another_layout(report)?;
    check_removed(report, &before)
}

/// At boot, the daemon manages the interface under its udev name, within its resource limits.
fn boot(report: &mut Report) -> Result<()> {
    until("active at boot", is_active)?;
    until("attached at boot", || Ok(serves(1)))?;
    let renamed = Path::new("/sys/class/net/roce0").exists() && !Path::new("/sys/class/net/first0").exists();
    report.equals("boot: the name by udev", renamed, true);
    report.equals("boot: attached and complete", serves(1), true);
    let pid = main_pid()?;
    for set in ["CapBnd:", "CapEff:", "CapPrm:"] {
        let found = u64::from_str_radix(&status_field(pid, set)?, 16)?;
        let (seen, bound) = (format!("{found:x}"), format!("{CAPABILITIES:x} at most"));
        report.check(&format!("boot: {set}"), seen, bound, found & !CAPABILITIES == 0);
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    report.check("boot: open files", files, 65_536, files.contains("65536"));
    let memory = show("MemoryMax")?;
    report.equals("boot: MemoryMax", &memory, "infinity");
    // The service can write only to its own directories.
    let paths = [("/usr/x", false), ("/etc/x", false), ("/root/x", false), ("/run/dcqcn/x", true)];
    confined(report, "boot", pid, &paths)?;
    sh("rm -f /run/dcqcn/x").map(drop)
}

/// A process gets no privileges, is filtered, and writes only where it may.
pub(super) fn confined(report: &mut Report, name: &str, pid: u32, paths: &[(&str, bool)]) -> Result<()> {
    report.equals(&format!("{name}: NoNewPrivs"), status_field(pid, "NoNewPrivs:")?, "1");
    // 2 is a filter.
    report.equals(&format!("{name}: Seccomp"), status_field(pid, "Seccomp:")?, "2");
    for (path, may_write) in paths {
        let written = sh(&format!("nsenter --target={pid} --mount touch {path}")).is_ok();
        report.equals(&format!("{name}: {path} can be written"), written, *may_write);
    }
    Ok(())
}

/// `systemctl reload` applies a valid file, and rejects an invalid one without changes.
fn reload(report: &mut Report) -> Result<()> {
    write("rpg_ai_rate = '7mbit'")?;
    sh("systemctl reload dcqcn.service")?;
    until("the file is active", || Ok(ai_rate()?.contains("7mbit")))?;
    report.contains("reload: rpg_ai_rate", &ai_rate()?, "7mbit");
    write("rpg_ai_rate = '9mbit'\nrpg_ai_rat = '9mbit'")?;
    let refused = sh("systemctl reload dcqcn.service").is_err();
    report.check("bad file: systemctl reload", if refused { "fails" } else { "succeeds" }, "fails", refused);
    let kept = is_active()? && serves(1) && ai_rate()?.contains("7mbit");
    report.equals("bad file: all stays", kept, true);
    write("rpg_ai_rate = '7mbit'").map(drop)?;
    sh("systemctl reload dcqcn.service").map(drop)
}

/// A killed daemon is restarted and takes over; attachments are unchanged.
fn killed(report: &mut Report) -> Result<()> {
    let (pid, since) = (main_pid()?, attached_at()?);
    sh("systemctl kill --signal=KILL dcqcn.service")?;
    again(pid)?;
    report.equals("kill -9: attached since", attached_at()?, since);
    report.equals("kill -9: complete", serves(1), true);
    Ok(())
}

/// A suspended daemon sends no watchdog pings, and is restarted.
fn watchdog(report: &mut Report) -> Result<()> {
    let dir = Path::new("/etc/systemd/system/dcqcn.service.d");
    fs::create_dir_all(dir)?;
    fs::write(dir.join("watchdog.conf"), "[Service]\nWatchdogSec=10s\n")?;
    sh("systemctl daemon-reload")?;
    let pid = main_pid()?;
    sh("systemctl restart dcqcn.service")?;
    again(pid)?;
    let (pid, since) = (main_pid()?, attached_at()?);
    sh(&format!("kill -STOP {pid}"))?;
    again(pid)?;
    let log = sh("journalctl --unit dcqcn.service --output cat --no-pager").unwrap_or_default();
    let timed_out = log.contains("Watchdog timeout");
    report.check("watchdog: the journal", timed_out, "Watchdog timeout", timed_out);
    report.equals("watchdog: attached since", attached_at()?, since);
    report.equals("watchdog: complete", serves(1), true);
    fs::remove_dir_all(dir)?;
    sh("systemctl daemon-reload").map(drop)
}

/// The next version takes over, replacing programs that differ.
fn upgrade(report: &mut Report) -> Result<()> {
    let (pid, since) = (main_pid()?, attached_at()?);
    // Simulates programs of another build.
    let object = attachment()?["object"].as_str().context("no object")?.to_owned();
    for entry in fs::read_dir("/run/dcqcn")?.filter_map(Result::ok) {
        let Ok(journals) = fs::read_dir(entry.path()) else { continue };
        for journal in journals.filter_map(Result::ok).map(|entry| entry.path()) {
            if journal.extension().is_some_and(|extension| extension == "json") {
                let text = fs::read_to_string(&journal)?;
                fs::write(&journal, text.replace(&object, "0123456789abcdef"))?;
            }
        }
    }
    sh("dpkg --install /share/dcqcn.deb")?;
    again(pid)?;
    until("programs replaced", || Ok(attachment()?["object"].as_str() == Some(object.as_str())))?;
    let version = sh("dpkg-query --show --showformat=${Version} dcqcn")?;
    report.check("upgrade: version", &version, "another than 0.0.1", version != "0.0.1");
    report.equals("upgrade: attached since", attached_at()?, since);
    report.equals("upgrade: complete", serves(1), true);
    report.contains("upgrade: parameters", &ai_rate()?, "7mbit");
    Ok(())
}

/// A version with another layout of maps is installed: the previous daemon continues to manage the attachments.
fn another_layout(report: &mut Report) -> Result<()> {
    let (pid, since, attachment) = (main_pid()?, attached_at()?, attachment()?);
    let number = |key: &str| attachment[key].as_u64().with_context(|| key.to_owned());
    let version = number("layout_version")?;
    let path = format!("/run/dcqcn/ns-{}/{}.json", number("netns_cookie")?, number("ifindex")?);
    let lay_out = |from: u64, to: u64| -> Result<()> {
        let text = fs::read_to_string(&path)?;
        let field = |version| format!("\"layout_version\": {version}");
        ensure!(text.contains(&field(from)), "{text}");
        Ok(fs::write(&path, text.replace(&field(from), &field(to)))?)
    };
    lay_out(version, version + 1)?;
    sh("dpkg --install /share/dcqcn.deb")?;
    report.equals("another layout: the daemon", main_pid()?, pid);
    report.equals("another layout: it is active", is_active()?, true);
    lay_out(version + 1, version)?;
    report.equals("another layout: attached since", attached_at()?, since);
    report.equals("another layout: complete", serves(1), true);
    sh("dpkg --install /share/dcqcn.deb")?;
    again(pid)?;
    report.equals("the same layout again: another daemon", serves(1), true);
    Ok(())
}

/// After removal and purge, no state is left, in other namespaces either.
fn check_removed(report: &mut Report, before: &str) -> Result<()> {
    sh("ip netns add pod")?;
    sh("ip link add pod0 type veth peer name pod1")?;
    sh("ip link set pod0 netns pod")?;
    sh("dcqcn --netns pod attach pod0 --pacer none --flows 1024 --set link_rate=1gbit")?;
    // A namespace with a process and without a name, like a container's.
    let _container = Background::start("unshare --net sleep 10000")?;
    let mut pid = String::new();
    until("there is a container", || {
        pid = sh("pgrep --full --exact sleep.10000")?.trim().to_owned();
        Ok(!pid.is_empty())
    })?;
    let inside = format!("nsenter --net=/proc/{pid}/ns/net");
    sh(&format!("{inside} ip link add box0 type veth peer name box1"))?;
    sh(&format!("{inside} dcqcn attach box0 --pacer none --flows 1024 --set link_rate=1gbit"))?;
    report.equals("removed: attachments before", tables(), 3);
    sh("dpkg --remove dcqcn")?;
    report.equals("removed: the unit", is_active()?, false);
    report.equals("removed: its file", Path::new(FILE).exists(), true);
    check_no_state(report, "removed")?;
    report.unchanged("removed: the interface", before, &state()?);
    sh("dpkg --purge dcqcn")?;
    for path in [FILE, "/etc/logrotate.d/dcqcn", "/var/log/dcqcn", "/usr/bin/dcqcn"] {
        report.equals(&format!("purged: {path}"), Path::new(path).exists(), false);
    }
    check_no_state(report, "purged")?;
    report.unchanged("purged: the interface", before, &state()?);
    let units = sh("systemctl list-units --all --no-legend --plain").unwrap_or_default();
    // The scenario's own unit is ordered after the daemon's, so systemd remembers that name only.
    let is_stale = |line: &&str| {
        line.contains("dcqcn") && !line.split_whitespace().skip(1).eq(["not-found", "inactive", "dead", UNIT])
    };
    let left: Vec<&str> = units.lines().filter(is_stale).collect();
    report.check("purged: units", left.join("; "), "none", left.is_empty());
    Ok(())
}

fn check_no_state(report: &mut Report, when: &str) -> Result<()> {
    // Maps are freed a moment after their last user.
    let freed = until("the maps are freed", || Ok(tables() == 0)).is_ok();
    report.check(&format!("{when}: attachments in the kernel"), tables(), 0, freed);
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mounted = mounts.contains("/run/dcqcn/bpf");
    report.equals(&format!("{when}: its file system is mounted"), mounted, false);
    Ok(())
}

/// Number of attachments with maps in the kernel.
pub(super) fn tables() -> usize {
    loaded_maps().filter_map(Result::ok).filter(|map| map.name() == b"PAIRS").count()
}

fn write(parameters: &str) -> Result<()> {
    let text = format!(
        "[[interface]]\nname = 'roce*'\nflows = 1024\npacer = 'fq'\n[interface.parameters]\nlink_rate = '1gbit'\n{parameters}\n"
    );
    fs::write(FILE, text).context(FILE)
}

fn is_active() -> Result<bool> {
    Ok(show("ActiveState")? == "active" && show("SubState")? == "running")
}

fn show(property: &str) -> Result<String> {
    Ok(sh(&format!("systemctl show --value --property={property} {UNIT}"))?.trim().to_owned())
}

fn main_pid() -> Result<u32> {
    let pid = show("MainPID")?.parse().context("a process")?;
    ensure!(pid != 0, "the daemon is not running");
    Ok(pid)
}

fn again(pid: u32) -> Result<()> {
    until("started again", || Ok(is_active()? && main_pid().is_ok_and(|other| other != pid) && serves(1)))
}

fn attachment() -> Result<Value> {
    Ok(json(&format!("dcqcn --json status {IFACE}"))?["attachments"][0].clone())
}

fn attached_at() -> Result<u64> {
    attachment()?["attached_at_ns"].as_u64().context("attached_at_ns")
}

fn ai_rate() -> Result<String> {
    sh(&format!("dcqcn get {IFACE} rpg_ai_rate"))
}

/// Waits until the daemon started at boot manages the interface.
pub(super) fn wait_until_managed() -> Result<()> {
    until("active and attached", || Ok(is_active()? && serves(1)))
}

/// Whether this many attachments exist, and are complete.
fn serves(number: usize) -> bool {
    let whole = |status: Value| {
        let all = status["attachments"].as_array().cloned().unwrap_or_default();
        all.len() == number
            && all.iter().all(|one| {
                one["state"] == "attached" && one["problems"].as_array().is_some_and(Vec::is_empty)
            })
    };
    json("dcqcn --json status").is_ok_and(whole)
}

/// Everything of the interface that an attachment could change.
fn state() -> Result<String> {
    let lines = [
        format!("ip -d link show dev {IFACE}"),
        format!("tc -d qdisc show dev {IFACE}"),
        format!("tc filter show dev {IFACE} ingress"),
        format!("tc filter show dev {IFACE} egress"),
    ];
    Ok(lines.iter().map(|line| sh(line)).collect::<Result<Vec<_>>>()?.join("\n"))
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let waited =
        wait_for(TIMEOUT, || Ok(is_so().unwrap_or(false).then_some(()).ok_or_else(|| format!("not {what}"))));
    waited.with_context(|| {
        let status = sh("systemctl --no-pager --full status dcqcn.service");
        let log = sh("journalctl --no-pager --lines 30 --unit dcqcn.service").unwrap_or_default();
        format!("{}\n{log}", status.unwrap_or_else(|error| error.to_string()))
    })
}
