//! Installs an fq before attaching, so that attaching and detaching replace no qdisc and kill no QP.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::kernel_has_qdisc;
use dcqcn_params::PacerChoice;
use dcqcn_support::file::{create_public_dir, existing};

use super::find::find;
use super::state_dir::{StateDir, file_error};
use super::{Error, probe};
use crate::dataplane::Sizes;
use crate::pacer::{self, FqLimits, Placement};

/// systemd-networkd's state files, by interface index; they name the interface's .network file.
const NETWORKD_LINKS: &str = "/run/systemd/netif/links";
/// Directory of the administrator's .network files.
const NETWORKD_FILES: &str = "/etc/systemd/network";

/// Installs a permanent fq with the limits that pacing needs; keeps a suitable one. Returns what was done.
///
/// # Errors
/// [`Error::Interrupts`], unless `may_interrupt`; the interface has a shaper, or is attached with the htb pacer or with
/// queues; or the kernel has no fq.
pub fn prepare(iface: &str, may_interrupt: bool) -> Result<String, Error> {
    let netlink = Netlink::connect()?;
    let link = netlink.link(iface)?;
    if let Ok(record) = find(&StateDir::here()?, iface) {
        let what = match (record.info.pacer.as_str(), record.info.queues.as_str()) {
            ("htb", _) => Some("the htb pacer"),
            (_, "none") => None,
            _ => Some("queues"),
        };
        if let Some(what) = what {
            return Err(Error::OwnQdisc { iface: iface.to_owned(), what });
        }
    }
    let placement = pacer::choose_placement(&netlink, &link, PacerChoice::Fq)?;
    if let Placement::Kept(note) = placement {
        return Ok(note);
    }
    require_fq(iface)?;
    if !may_interrupt {
        probe::check_interrupt(&netlink, &link, "installing an fq", None)?;
    }
    let mut config = Config::DEFAULT;
    config.scalars.pacer = PACER_FQ;
    let flows = Sizes::default().rp_flows;
    pacer::install(&netlink, link.index, &placement, &config, flows, &mut Vec::new())?;
    Ok(format!("fq {} installed", FqLimits::of(flows)))
}

/// Writes a drop-in that makes systemd-networkd install that fq; returns its path.
pub fn write_networkd(iface: &str) -> Result<PathBuf, Error> {
    let link = Netlink::connect()?.link(iface)?;
    require_fq(iface)?;
    write_drop_in(Path::new(NETWORKD_LINKS), Path::new(NETWORKD_FILES), iface, link.index)
}

fn require_fq(iface: &str) -> Result<(), Error> {
    if kernel_has_qdisc("fq")? { Ok(()) } else { Err(Error::NoFq { iface: iface.to_owned() }) }
}

fn write_drop_in(links: &Path, files: &Path, iface: &str, ifindex: u32) -> Result<PathBuf, Error> {
    let state = links.join(ifindex.to_string());
    let text = existing(fs::read_to_string(&state)).map_err(file_error(&state))?.unwrap_or_default();
    let file = text.lines().find_map(|line| line.strip_prefix("NETWORK_FILE=")).map(Path::new);
    let Some(name) = file.and_then(Path::file_name) else {
        return Err(Error::NotOfNetworkd { iface: iface.to_owned() });
    };
    let directory = files.join(format!("{}.d", name.to_string_lossy()));
    let path = directory.join("dcqcn.conf");
    // systemd-networkd is another user.
    let written = create_public_dir(&directory)
        .and_then(|()| fs::write(&path, fair_queueing()))
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)));
    written.map(|()| path.clone()).map_err(|source| Error::File { path, source })
}

/// `[FairQueueing]` section, see systemd.network(5).
fn fair_queueing() -> String {
    let FqLimits { limit, flow_limit, orphan_mask, buckets_log } = FqLimits::of(Sizes::default().rp_flows);
    format!(
        "# Written by `dcqcn prepare`: attaching then replaces no qdisc.\n[FairQueueing]\nParent=root\nPacketLimit={limit}\n\
         FlowLimit={flow_limit}\nBuckets={}\nOrphanMask={orphan_mask}\n",
        1_u64 << buckets_log
    )
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::{Mode, umask};

    use super::*;

    #[test]
    fn drop_in_is_next_to_the_interfaces_file() {
        let dir = tempfile::tempdir().unwrap();
        let (links, files) = (dir.path().join("links"), dir.path().join("network"));
        fs::create_dir(&links).unwrap();
        let refused = write_drop_in(&links, &files, "eth0", 2).unwrap_err().to_string();
        assert!(refused.contains("does not manage it"), "{refused}");
        fs::write(
            links.join("2"),
            "ADMIN_STATE=configured\nNETWORK_FILE=/usr/lib/systemd/network/10-eth.network\n",
        )
        .unwrap();
        // On a thread with its own umask.
        let write = || {
            unshare(CloneFlags::CLONE_FS).unwrap();
            umask(Mode::from_bits_truncate(0o077));
            write_drop_in(&links, &files, "eth0", 2).unwrap()
        };
        let path = thread::scope(|scope| scope.spawn(write).join()).unwrap();
        for (path, expected) in [(files.as_path(), 0o755), (path.parent().unwrap(), 0o755), (&path, 0o644)] {
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, expected, "{}: {mode:o}", path.display());
        }
        assert_eq!(path, files.join("10-eth.network.d/dcqcn.conf"));
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("[FairQueueing]\nParent=root\nPacketLimit="), "{text}");
    }
}
