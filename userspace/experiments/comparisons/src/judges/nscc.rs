//! Ultra Ethernet's htsim with its NSCC: incasts through one switch, with and without trimming, and
//! permutations on two tiers.

use anyhow::Result;

use super::htsim::{REPAIRED, comparison_row, files, incast_rows, ours, permutations, theirs};
use super::matrix::{incast_file, incasts};
use crate::lab::{Lab, table};

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
const BYTES: u64 = 2_000_000;
/// Makes it trim arriving packets, instead of the last queued one half of the time.
const ARRIVING: &str = "arriving";
/// Maximum difference of completion times.
const MAX_DIFFERENCE: f64 = 0.05;
/// With more senders, minimum windows overflow the queue and trimming is random: means may differ more.
const FEW: u32 = 32;
const CHANCE_BOUND: f64 = 0.1;

/// N senders to one receiver: nothing is lost.
pub(super) fn incast(lab: &Lab) -> Result<String> {
    let options = format!("{STAR} {DEEP} {COMMON}");
    let rows = incast_rows(lab, STORED, "incast", &options, MAX_DIFFERENCE)?;
    let rows: Vec<String> = rows.iter().map(|(senders, row)| format!("{senders} | {row}")).collect();
    let heading = "N | htsim: mean | ours: mean | **mean** | htsim: last | ours: last | **last** | queue, MB";
    Ok(table(&[command(&options)], heading, &rows))
}

fn command(options: &str) -> String {
    format!("fabric --workload htsim:{} {options}", incast_file(2, BYTES, 1))
}

/// N senders to one receiver, with a queue of one round trip.
pub(super) fn trimming(lab: &Lab) -> Result<String> {
    let options = format!("{STAR} {TRIMMING} {COMMON}");
    let mut rows = Vec::new();
    for (senders, bytes) in incasts().filter(|(_, bytes)| *bytes == BYTES) {
        let case = format!("trimming-{senders}-{bytes}");
        let (flows, own) = ours(lab, &options, &files(senders, bytes))?;
        let mean_bound = if senders <= FEW { MAX_DIFFERENCE } else { CHANCE_BOUND };
        let [arriving, repaired] = [ARRIVING, REPAIRED].map(|variant| theirs(STORED, &case, variant, flows));
        let (arriving, repaired) = (arriving?, repaired?);
        rows.push(format!(
            "{senders} | {} | {} | {:.0} | {} | {:.0} | {}",
            comparison_row(lab, &case, own.mean_us(), arriving.mean_us(), mean_bound),
            comparison_row(lab, &case, own.last_us(), arriving.last_us(), MAX_DIFFERENCE),
            repaired.mean_us(),
            lab.verdict_row(&case, own.mean_us(), repaired.mean_us(), f64::INFINITY),
            repaired.last_us(),
            lab.verdict_row(&case, own.last_us(), repaired.last_us(), f64::INFINITY)
        ));
    }
    let heading = "N | htsim, trims what arrives: mean | ours: mean | **mean** | last | ours: last | **last** | htsim: mean | \
                   mean | last | last";
    Ok(table(&[command(&options)], heading, &rows))
}

/// Permutations, each flow on one path or each packet on its own.
pub(super) fn permutation(lab: &Lab) -> Result<String> {
    let by = |balance| format!("--balance {balance} {DEEP} {COMMON}");
    let modes = [("ECMP", "permutation-ecmp", by("ecmp")), ("sprayed", "permutation-spray", by("spray"))];
    permutations(lab, STORED, &modes)
}
