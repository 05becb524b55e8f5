//! Ultra Ethernet's htsim with its NSCC: incasts through one switch, with and without trimming, and permutations on two tiers.

use anyhow::Result;

use super::Judged;
use super::data::Means;
use super::flows::Flows;
use super::htsim::{REPAIRED, Rows, files, ours, permutations, theirs};
use super::matrix::{INCASTS, incast_file};
use crate::lab::Lab;

const STORED: &str = include_str!("nscc.csv");
/// htsim's packets and constants: it assumes a round trip over four links, targets 3/4 of it, and marks from 0.2 to 0.8
/// times the resulting bytes in flight. Its ACKs have priority.
const COMMON: &str = "--control nscc --base-rtt 9321ns --target-delay 6991ns --mtu 4000B --header 64B --ack-every 1 \
                      --ack-class 6 --pfc off --duration 3s --buffer 4GB --set wire_overhead=0 \
                      --set wred.3.kmin=24384B --set wred.3.kmax=97536B --set wred.3.pmax=100%";
/// A queue that never overflows, and htsim's default: 29 packets, with trimming beyond.
const DEEP: &str = "--threshold 2GB";
const TRIMMING: &str = "--threshold 117856B --trim 6";
const STAR: &str = "--topology leaf-spine:1x0x130";
/// Bytes of each flow.
const BYTES: u64 = 2_000_000;
/// Makes it trim arriving packets, instead of the last queued one half of the time.
const ARRIVING: &str = "arriving";
/// Maximum difference of completion times.
const MAX_DIFFERENCE: f64 = 0.05;
/// With more senders, minimum windows overflow the queue and trimming is random: means may differ more.
const FEW: u32 = 32;
const CHANCE_BOUND: f64 = 0.1;

/// The incasts, and a row of each.
fn incasts(
    lab: &Lab,
    queue: &str,
    mut row: impl FnMut(&mut Rows, u32, Flows, Means) -> Result<Vec<String>>,
) -> Result<(Rows, String)> {
    let options = format!("{STAR} {queue} {COMMON}");
    let mut rows = Rows::default();
    for (senders, bytes) in INCASTS.into_iter().filter(|(_, bytes)| *bytes == BYTES) {
        let (flows, own) = ours(lab, &options, &files(senders, bytes))?;
        let row = row(&mut rows, senders, flows, own)?;
        rows.rows.push(row);
    }
    Ok((rows, format!("fabric --workload htsim:{} {options}", incast_file(2, BYTES, 1))))
}

/// N senders to one receiver: nothing is lost.
pub(super) fn incast(lab: &Lab) -> Result<Judged> {
    let (rows, command) = incasts(lab, DEEP, |rows, senders, flows, own| {
        let case = format!("incast-{senders}-{BYTES}");
        let theirs = theirs(STORED, &case, REPAIRED, flows)?;
        let mut row = vec![senders.to_string()];
        row.extend(rows.compare(&case, own.mean_us, theirs.mean_us, MAX_DIFFERENCE));
        row.extend(rows.compare(&case, own.last_us, theirs.last_us, MAX_DIFFERENCE));
        row.push(format!("{:.2} / {:.2}", own.max_queue_bytes / 1e6, theirs.max_queue_bytes / 1e6));
        Ok(row)
    })?;
    let heading =
        ["N", "htsim: mean", "ours: mean", "**mean**", "htsim: last", "ours: last", "**last**", "queue, MB"];
    Ok(rows.judged(&[&command], &heading))
}

/// N senders to one receiver, with a queue of one round trip.
pub(super) fn trimming(lab: &Lab) -> Result<Judged> {
    let (rows, command) = incasts(lab, TRIMMING, |rows, senders, flows, own| {
        let case = format!("trimming-{senders}-{BYTES}");
        let mean_bound = if senders <= FEW { MAX_DIFFERENCE } else { CHANCE_BOUND };
        let mut row = vec![senders.to_string()];
        for (variant, bounds) in [(ARRIVING, [mean_bound, MAX_DIFFERENCE]), (REPAIRED, [f64::INFINITY; 2])] {
            let theirs = theirs(STORED, &case, variant, flows)?;
            row.extend(rows.compare(&case, own.mean_us, theirs.mean_us, bounds[0]));
            row.extend(rows.compare(&case, own.last_us, theirs.last_us, bounds[1]));
        }
        // Our result is in the table already.
        row.remove(11);
        row.remove(8);
        Ok(row)
    })?;
    let heading = [
        "N",
        "htsim, trims what arrives: mean",
        "ours: mean",
        "**mean**",
        "last",
        "ours: last",
        "**last**",
        "htsim: mean",
        "mean",
        "last",
        "last",
    ];
    Ok(rows.judged(&[&command], &heading))
}

/// Permutations, each flow on one path or each packet on its own.
pub(super) fn permutation(lab: &Lab) -> Result<Judged> {
    let by = |balance| format!("--balance {balance} {DEEP} {COMMON}");
    let ways = [("ECMP", "permutation-ecmp", by("ecmp")), ("sprayed", "permutation-spray", by("spray"))];
    permutations(lab, STORED, &ways)
}
