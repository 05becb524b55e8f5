//! IRN's comparison: selective repeat without PFC against RoCE with it.

use anyhow::Result;

use super::flows::{self, Flows};
use crate::lab::{Lab, cells, number, table};

/// Half of the flows are single packets, 15 % are longer than 200 KB (Mittal et al., SIGCOMM'18, section 4.1).
const SIZES: &str = "32 0\n1000 50\n200000 85\n3000000 100\n";
/// IRN's fabric: 54 hosts, a fat tree of switches with six ports, 40 Gbit/s, 2 us per link, 70 % load, packets of 1000
/// bytes, and a buffer of twice the bandwidth-delay product per port.
const COMMON: &str = "--topology fat-tree:6x3x3 --host-link 40gbit --switch-link 40gbit --delay 2us --workload random \
                      --sizes irn-sizes.txt --load 70% --until 20ms --mtu 1000B --ack-every 1 --duration 400ms \
                      --buffer 100MB";
const PFC: &str = "--pfc on --threshold 220KB --headroom 40KB";
const LOSSY: &str = "--pfc off --threshold 240KB";
const ROCE: &str = "--recovery go-back-n";
const IRN: &str = "--recovery selective --window 120KB --timeout 320us";
/// Published result: IRN without PFC is better than RoCE with PFC by 6 to 83 %.
const PUBLISHED: [f64; 2] = [0.06, 0.83];

pub(super) fn sizes() -> (String, String) {
    ("irn-sizes.txt".to_owned(), SIZES.to_owned())
}

/// RoCE with PFC, IRN without and with PFC, and RoCE without PFC, where that completes in time.
pub(super) fn comparison(lab: &Lab) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    let mut all = None;
    for (law, control) in [("none", "--control off"), ("DCQCN", "--profile paper")] {
        let mut base = None;
        for (name, options) in [
            ("RoCE, PFC", format!("{ROCE} {PFC}")),
            ("IRN, no PFC", format!("{IRN} {LOSSY}")),
            ("IRN, PFC", format!("{IRN} {PFC}")),
            ("RoCE, no PFC", format!("{ROCE} {LOSSY}")),
        ] {
            if law == "none" && name == "RoCE, no PFC" {
                continue;
            }
            let command = format!("fabric {COMMON} {options} {control}");
            let (run, flows) = flows::run(lab, &command)?;
            let flows = Flows::of(&[flows]);
            flows.ensure_same(*all.get_or_insert(flows), name)?;
            let own = [
                number(&run, "/fct/slowdown_mean")?,
                number(&run, "/fct/mean_ns")? / 1e6,
                number(&run, "/fct/p99_ns")? / 1e6,
            ];
            let mut row = format!("{law} | {name}");
            for (index, (own, base)) in own.into_iter().zip(*base.get_or_insert(own)).enumerate() {
                let better = 1.0 - own / base;
                row += &format!(" | {own:.2} | {:.0} %", better * 100.0);
                if name == "IRN, no PFC" && !(PUBLISHED[0]..=PUBLISHED[1]).contains(&better) {
                    lab.reject(format!("{law}, figure {index}: better by {:.0} %", better * 100.0));
                }
            }
            rows.push(format!("{row} | {}", cells(&run, "/transport/retransmitted_packets:0")?));
            if law == "DCQCN" && name.ends_with("no PFC") {
                commands.push(command);
            }
        }
    }
    let heading = "control |  | mean slowdown | better | mean FCT, ms | better | p99 FCT, ms | better | packets retransmitted";
    Ok(table(&commands, heading, &rows))
}
