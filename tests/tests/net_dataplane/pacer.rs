//! The HTB pacer: a flow that was cut is paced at its rate, another is not.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use dcqcn_common::hooks::HTB_FIRST_FLOW;
use dcqcn_common::wire::bth::Bth;
use dcqcn_loader::attach::{Attachment, Request};
use dcqcn_loader::pacer::htb::Classes;
use dcqcn_params::{PacerChoice, Role, Settings};
use dcqcn_tests::host::{Host, Pair, request};
use dcqcn_tests::packets::Roce;
use dcqcn_tests::require;
use dcqcn_tests::retry::{wait, while_busy};
use dcqcn_tests::socket::RawSocket;

use crate::CNP_TOS;

/// One cut of alpha = 1 halves it.
const LINE_BPS: f64 = 60e6;
/// Duration of a rate measurement.
const WINDOW: Duration = Duration::from_secs(1);
/// Attempts, as other load may occupy the CPUs of senders, shaper and receiver.
const ATTEMPTS: u32 = 15;

/// Attaches with the HTB pacer, so that a cut rate stays constant.
fn attach(host: &Host) -> Result<()> {
    let changes = ["link_rate=60mbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B"];
    let request = request("a0", Role::Host, &changes)?;
    let settings = Settings { pacer: Some(PacerChoice::Htb), ..request.settings };
    host.attach_as(&Request { settings, ..request })?;
    Ok(())
}

/// Maintains the classes until `stop`, as `dcqcn run` does.
fn keep_classes(host: &Host, stop: &AtomicBool) -> Result<()> {
    let Attachment { info, mut maps } = host.attachment("a0")?;
    let netlink = host.netlink()?;
    let mut classes = Classes::take_over(&netlink, info.ifindex)?;
    while !stop.load(Ordering::Relaxed) {
        let cuts = maps.cuts()?;
        classes.update(&netlink, || &maps, &cuts)?;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends `data` at the maximum rate of the interface, or with pauses, until `stop`.
fn blast(host: &Host, data: &Roce, pause: Duration, stop: &AtomicBool) -> Result<()> {
    let socket = host.socket("a0")?;
    // Queue some 30 frames, then wait for the queue.
    socket.limit_send_buffer(64 << 10)?;
    let frame = data.frame();
    while !stop.load(Ordering::Relaxed) {
        socket.send(&frame)?;
        thread::sleep(pause);
    }
    Ok(())
}

/// Bits per second that arrive, layer 2, by QPN.
fn rates(socket: &RawSocket) -> Result<HashMap<u32, f64>> {
    // Packets queued in the socket before do not count.
    let old = Instant::now() + Duration::from_millis(300);
    while Instant::now() < old {
        socket.receive(Duration::from_millis(1))?;
    }
    let mut bytes: HashMap<u32, usize> = HashMap::new();
    let start = Instant::now();
    while start.elapsed() < WINDOW {
        if let Some(frame) = socket.receive(Duration::from_millis(1))? {
            let bth = frame.get(Roce::default().bth()..).and_then(Bth::parse).context("not RoCE")?.0;
            *bytes.entry(bth.dest_qpn()).or_default() += frame.len();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(bytes.into_iter().map(|(qpn, bytes)| (qpn, bytes as f64 * 8.0 / seconds)).collect())
}

/// Checks the flows' shares of the link, from [`rates`].
fn shares(receiver: &RawSocket, when: &str, expected: &[(&Roce, Range<f64>)]) -> Result<()> {
    while_busy(ATTEMPTS, || {
        let rates = rates(receiver)?;
        for (data, range) in expected {
            let share = rates.get(&data.dest_qpn).copied().unwrap_or(0.0) / LINE_BPS;
            eprintln!("share of the line {when}: {share:.3}");
            ensure!(range.contains(&share), "{when} it has {share:.3} of the line, expected {range:?}");
        }
        Ok(())
    })
}

/// The class of a flow, which the pacer creates at the first cut, with half of the line rate.
fn wait_for_class(host: &Host) -> Result<()> {
    let index = host.index("a0")?;
    wait(|| {
        let classes = host.netlink()?.classes(index)?;
        let of_flow =
            classes.iter().find(|class| (HTB_FIRST_FLOW..0xffff).contains(&u32::from(class.handle.minor())));
        let is_cut = of_flow.and_then(|class| class.ceil_bps) == Some(LINE_BPS as u64 / 2);
        Ok(is_cut.then_some(()).ok_or_else(|| format!("{classes:?}")))
    })
}

#[test]
fn only_cut_flow_is_paced() -> Result<()> {
    require!("only_cut_flow_is_paced", "htb");
    let pair = Pair::new("pacer")?;
    attach(&pair.a)?;
    let (cut, other) = (Roce::default(), Roce { dest_qpn: 0x12, ..Roce::default() });
    let receiver = pair.b.socket("b0")?;
    let stop_pacer = AtomicBool::new(false);
    thread::scope(|scope| -> Result<_> {
        let pacer = scope.spawn(|| keep_classes(&pair.a, &stop_pacer));
        let measured = measure(&pair, &receiver, &cut, &other);
        stop_pacer.store(true, Ordering::Relaxed);
        pacer.join().map_err(|_| anyhow!("the pacer panicked"))??;
        measured
    })
}

/// Rates of `cut` before its cut, of `cut` and a moderate `other` after it, and of `other` alone.
fn measure(pair: &Pair, receiver: &RawSocket, cut: &Roce, other: &Roce) -> Result<()> {
    let while_sending = |senders: &[(&Roce, Duration)], work: &dyn Fn() -> Result<()>| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let start = |&(data, pause): &(&Roce, Duration)| {
                let (data, stop, host) = (data.clone(), &stop, &pair.a);
                scope.spawn(move || blast(host, &data, pause, stop))
            };
            let senders: Vec<_> = senders.iter().map(start).collect();
            let result = work();
            stop.store(true, Ordering::Relaxed);
            for sender in senders {
                sender.join().map_err(|_| anyhow!("a sender panicked"))??;
            }
            result
        })
    };
    while_sending(&[(cut, Duration::ZERO)], &|| shares(receiver, "before any cut", &[(cut, 0.9..1.1)]))?;
    let moderate = Duration::from_millis(2);
    while_sending(&[(cut, Duration::ZERO), (other, moderate)], &|| {
        pair.b.socket("b0")?.send(&cut.cnp(None, CNP_TOS))?;
        wait_for_class(&pair.a)?;
        // The cut flow gets half of the line, the other its load: 8.7 kbit every 2 ms or more, 7 % of the line.
        shares(receiver, "after one cut, next to another,", &[(cut, 0.45..0.55), (other, 0.03..0.08)])
    })?;
    while_sending(&[(other, Duration::ZERO)], &|| shares(receiver, "alone", &[(other, 0.9..1.1)]))
}
