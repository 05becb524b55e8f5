//! The pacers: a flow that was cut is paced at its rate, another is not, and a paused one waits.

use std::collections::HashMap;
use std::ops::Range;

use dcqcn_common::hooks::HTB_FIRST_FLOW;
use dcqcn_loader::attach::Attachment;
use dcqcn_loader::pacer::htb::Classes;
use dcqcn_tests::pauses;
use dcqcn_tests::prelude::*;

/// One cut of alpha = 1 halves it.
const LINE_BPS: f64 = 60e6;
const WINDOW: Duration = Duration::from_secs(1);
/// Attempts, as other load may occupy the CPUs of senders, shaper and receiver.
const ATTEMPTS: u32 = 15;

/// Attaches with the HTB pacer, so that a cut rate stays constant.
fn attach(host: &Host) -> Result<()> {
    let changes = ["link_rate=60mbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B"];
    let mut request = request("a0", Role::Host, &changes)?;
    request.settings.pacer = Some(PacerChoice::Htb);
    host.attach_as(&request).map(drop)
}

/// Sends `data` each time, at the maximum rate of the interface or with pauses.
fn sender(host: &Host, data: &Roce, pause: Duration) -> Result<impl FnMut() -> Result<()> + use<>> {
    let socket = host.socket("a0")?;
    // Queue some 30 frames, then wait for the queue.
    socket.limit_send_buffer(64 << 10)?;
    let frame = data.frame();
    Ok(move || -> Result<()> {
        socket.send(&frame)?;
        thread::sleep(pause);
        Ok(())
    })
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
    let pair = new_pair!("htb");
    attach(&pair.a)?;
    let (cut, other) = (Roce::default(), Roce { dest_qpn: 0x12, ..Roce::default() });
    let receiver = pair.b.socket("b0")?;
    // As `dcqcn run` does.
    let Attachment { info, mut maps } = pair.a.attachment("a0")?;
    let netlink = pair.a.netlink()?;
    let mut classes = Classes::take_over(&netlink, info.ifindex)?;
    let update = move || -> Result<()> {
        let cuts = maps.cuts()?;
        classes.update(&netlink, || &maps, &cuts)?;
        thread::sleep(Duration::from_millis(1));
        Ok(())
    };
    while_repeating([update], || measure(&pair, &receiver, &cut, &other))
}

/// Rates of `cut` before its cut, of `cut` and a moderate `other` after it, and of `other` alone.
fn measure(pair: &Pair, receiver: &RawSocket, cut: &Roce, other: &Roce) -> Result<()> {
    let fast = |data| sender(&pair.a, data, Duration::ZERO);
    while_repeating([fast(cut)?], || shares(receiver, "before any cut", &[(cut, 0.9..1.1)]))?;
    let moderate = sender(&pair.a, other, Duration::from_millis(2))?;
    while_repeating([fast(cut)?, moderate], || {
        pair.b.socket("b0")?.send(&cut.cnp(None, CNP_TOS))?;
        wait_for_class(&pair.a)?;
        // The cut flow gets half of the line, the other its load: 8.7 kbit every 2 ms or more, 7 % of the line.
        shares(receiver, "after one cut, next to another,", &[(cut, 0.45..0.55), (other, 0.03..0.08)])
    })?;
    while_repeating([fast(other)?], || shares(receiver, "alone", &[(other, 0.9..1.1)]))
}

/// PFC frames of the neighbour delay paced packets.
#[test]
fn neighbour_pause_holds_its_queue() -> Result<()> {
    require!("fq");
    let observed = pauses::run("pfc")?;
    assert_eq!(observed.wrong(), [""; 0], "{observed:?}");
    Ok(())
}
