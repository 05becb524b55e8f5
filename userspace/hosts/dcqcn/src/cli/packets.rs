//! `events --packets`: shows logged packets.

use std::time::Duration;

use dcqcn_loader::attach;
use dcqcn_loader::packets::Packets;
use dcqcn_support::cli::Output;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_telemetry::PacketRow;

/// Polling interval.
const PERIOD: Duration = Duration::from_millis(50);

/// Shows up to `left` packets of these interfaces (default: all that log packets); `follow` waits for more.
pub(super) fn run(
    out: &mut Output<'_>,
    ifaces: &[String],
    mut left: u64,
    follow: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let is_selected = |info: &attach::Info| {
        if ifaces.is_empty() { info.log_packets.is_some() } else { ifaces.contains(&info.iface) }
    };
    let infos = attach::list()?.into_iter().filter(is_selected);
    let mut sources = infos
        .map(|info| Ok((Packets::open(&info)?, info.iface)))
        .collect::<Result<Vec<_>, attach::Error>>()?;
    if sources.is_empty() {
        anyhow::bail!("packet logging is not attached here; `dcqcn attach IFACE --log-packets` enables it");
    }
    loop {
        for (packets, iface) in &mut sources {
            for row in packets.read().iter().filter_map(|line| PacketRow::read(iface, line)) {
                if left == 0 {
                    return out.finish();
                }
                out.line(&row)?;
                left -= 1;
            }
        }
        out.finish()?;
        if left == 0 || !follow || interrupt.sleep(PERIOD)? {
            return Ok(());
        }
    }
}
