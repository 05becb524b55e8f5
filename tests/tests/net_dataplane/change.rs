//! Parameters changed under traffic: every change is atomic, without packet loss.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;

use dcqcn_tests::prelude::*;

use crate::MARKING;

const FRAMES: u32 = 20_000;
/// Between two of them: 20,000 take a second at least.
const FRAME_INTERVAL: Duration = Duration::from_micros(50);
/// Frames queued for the receiver: fewer than the kernel's limit (`net.core.netdev_max_backlog`, 1000).
const IN_FLIGHT: u32 = 500;

#[derive(Default)]
struct Stream {
    sent: AtomicU32,
    arrived: AtomicU32,
    /// Stop after [`FRAMES`] frames.
    stop: AtomicBool,
    /// No more frames will be sent.
    ended: AtomicBool,
}

impl Stream {
    fn send(&self, host: &Host) -> Result<()> {
        let socket = host.socket("a0")?;
        for psn in 0.. {
            if psn >= FRAMES && self.stop.load(Ordering::Relaxed) {
                break;
            }
            socket.send(&Roce { psn, payload: 256, ..Roce::default() }.frame())?;
            self.sent.store(psn + 1, Ordering::SeqCst);
            thread::sleep(FRAME_INTERVAL);
            // If the receiver is not scheduled, its queue must not overflow.
            let until = Instant::now() + TIMEOUT;
            while psn - self.arrived.load(Ordering::Relaxed).min(psn) > IN_FLIGHT {
                ensure!(Instant::now() < until, "no frames arrive");
                thread::sleep(FRAME_INTERVAL);
            }
        }
        Ok(())
    }

    /// Receives every frame of the stream, and passes each to `inspect`. Panics if one is lost or out of order.
    fn receive(&self, receiver: &RawSocket, mut inspect: impl FnMut(u32, &[u8])) -> Result<u32> {
        let mut arrived = 0;
        loop {
            let is_over = self.ended.load(Ordering::SeqCst);
            if is_over && arrived == self.sent.load(Ordering::SeqCst) {
                return Ok(arrived);
            }
            let Some(frame) = receiver.receive(if is_over { TIMEOUT } else { SILENCE })? else {
                assert!(!is_over, "the last frames are lost");
                continue;
            };
            let psn = Bth::parse(&frame[Roce::default().bth()..]).map(|(bth, _)| bth.psn());
            assert_eq!(psn, Some(arrived), "lost, duplicated or out of order");
            inspect(arrived, &frame);
            arrived += 1;
            self.arrived.store(arrived, Ordering::Relaxed);
        }
    }

    fn reaches(&self, count: u32) -> Result<()> {
        wait_until("the stream has stopped", || Ok(self.sent.load(Ordering::SeqCst) >= count))
    }
}

/// Runs `work` while the stream flows from host 1 to host 2, passes each arriving frame and its number to
/// `inspect`, and panics unless all arrive in order.
fn under_traffic(
    pair: &Pair,
    inspect: impl FnMut(u32, &[u8]) + Send,
    work: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let receiver = pair.b.socket("b0")?;
    let stream = Stream::default();
    let arrived = thread::scope(|scope| -> Result<_> {
        let sender = scope.spawn(|| stream.send(&pair.a));
        let counter = scope.spawn(|| stream.receive(&receiver, inspect));
        // A panic must end the threads too, or it would go unnoticed.
        let result = catch_unwind(AssertUnwindSafe(|| work(&stream)));
        stream.stop.store(true, Ordering::Relaxed);
        let sent = sender.join();
        stream.ended.store(true, Ordering::SeqCst);
        let arrived = counter.join();
        result.unwrap_or_else(|panic| resume_unwind(panic))?;
        let panicked = |_| anyhow!("a thread panicked");
        let arrived = arrived.map_err(panicked)??;
        sent.map_err(panicked)??;
        Ok(arrived)
    })?;
    eprintln!("{arrived} frames, none lost");
    Ok(())
}

/// A value of the parameter's range, small and large ones alike; sometimes one beyond it.
fn any_value(random: &mut fastrand::Rng, key: Key) -> u64 {
    let (min, max) = key.range().into_inner();
    match random.u32(..20) {
        0 => max.saturating_add(1 + random.u64(..1_000)),
        1 => min,
        2 => max,
        _ => {
            let bits = 64 - (max - min).leading_zeros();
            let scale = (max - min) >> random.u32(..bits.max(1));
            min + random.u64(..scale.saturating_add(1))
        }
    }
}

#[test]
fn random_changes_under_traffic_are_atomic() -> Result<()> {
    const CHANGES: usize = 300;
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit", "cp_enable=on"])?;
    let keys: Vec<Key> = Key::all().filter(|key| !key.follows_from_attach()).collect();
    let mut random = fastrand::Rng::with_seed(0x0dc9_c0de);
    let (mut accepted, mut refused) = (0, 0);
    let first = pair.a.attachment("a0")?.maps.params()?;
    let mut model = first.config;
    under_traffic(
        &pair,
        |_, _| {},
        |_| {
            while accepted < CHANGES {
                let changes: Vec<(Key, u64)> = (0..=random.u32(..4))
                    .map(|_| {
                        let key = keys[random.usize(..keys.len())];
                        (key, any_value(&mut random, key))
                    })
                    .collect();
                // `change` must report the config's own error; set without checks, as a broken caller would.
                let edit =
                    |config: &mut Config| changes.iter().for_each(|(key, value)| put(*key, config, *value));
                let mut changed = model;
                edit(&mut changed);
                let valid = changed.validate().is_ok()
                    && (changed.scalars.rp_enable == 0 || changed.line_rate_bps() != 0);
                let result = pair.a.run(|| {
                    attach::change("a0", |config| {
                        edit(config);
                        Ok::<_, attach::Error>(())
                    })
                })?;
                match result {
                    Ok((old, new)) => {
                        assert!(valid, "{changes:?} is invalid and was accepted");
                        assert!(old == model && new == changed);
                        accepted += 1;
                        model = changed;
                    }
                    Err(error) => {
                        assert!(!valid, "{changes:?}: {error}");
                        refused += 1;
                    }
                }
                let params = pair.a.attachment("a0")?.maps.params()?;
                assert!(*params == Params::new(&model, first.port)?, "after {changes:?}");
            }
            Ok(())
        },
    )?;
    eprintln!("{CHANGES} changes, {refused} refused");
    assert!(refused > 20, "too few changes were invalid");
    Ok(())
}

/// Sets a parameter without a range check; the tables store one byte each.
fn put(key: Key, config: &mut Config, value: u64) {
    let byte = value.min(u64::from(u8::MAX)) as u8;
    match key {
        Key::Scalar(spec) => (spec.set)(&mut config.scalars, value),
        Key::Wred(tc, spec) => (spec.set)(&mut config.wred[tc], value),
        Key::DscpToTc(dscp) => config.dscp_to_tc[dscp] = byte,
        Key::TcToQueue(tc) => config.tc_to_queue[tc] = byte,
        Key::Queue(queue, spec) => (spec.set)(&mut config.queue[queue], value),
        Key::Pfc(priority, spec) => (spec.set)(&mut config.pfc[priority], value),
    }
}

/// Marking is turned on and off: the new parameters apply to every frame that starts after the call of a
/// change, the old ones to none.
#[test]
fn change_effective_on_return() -> Result<()> {
    // Fewer than there are slots: no thread waits.
    const CHANGES: usize = 12;
    let pair = new_pair!();
    // Every packet behind another is marked, and the queue never drains.
    let marking = [&["link_rate=1gbit", "wred.3.ecn=off"], &MARKING[..]].concat();
    pair.a.attach("a0", Role::Switch, &marking)?;
    let data = Roce::default();
    let ecn_at = data.l3() + 1;
    let (mut marked, mut turns) = (false, Vec::new());
    let inspect = |psn: u32, frame: &[u8]| {
        let is_marked = frame[ecn_at] & Ecn::CE.bits() == Ecn::CE.bits();
        if is_marked != marked {
            marked = is_marked;
            turns.push(psn);
        }
    };
    let mut changes = Vec::new();
    under_traffic(&pair, inspect, |stream| {
        let mut sent = 100;
        for n in 0..CHANGES {
            stream.reaches(sent)?;
            let before = stream.sent.load(Ordering::SeqCst);
            pair.a.run(|| {
                attach::change("a0", |config| {
                    config.wred[3].ecn = u64::from(n % 2 == 0);
                    Ok::<_, attach::Error>(())
                })
            })??;
            // The frame of this number may have been in flight already; later ones were not.
            let after = stream.sent.load(Ordering::SeqCst);
            changes.push(before..=after + 1);
            sent = after + 100;
        }
        stream.reaches(sent)
    })?;
    assert_eq!(turns.len(), CHANGES, "a frame was processed with replaced parameters: {turns:?}");
    for (turn, change) in turns.iter().zip(&changes) {
        assert!(change.contains(turn), "the first frame that shows the change of {change:?} is {turn}");
    }
    Ok(())
}

/// Two parameter sets, neither of which marks the stream; any mixture of them would.
#[test]
fn no_packet_sees_partial_change() -> Result<()> {
    let pair = new_pair!();
    let slow: Vec<_> = ["0", "3"].map(|tc| format!("wred.{tc}.drain_rate=1mbit")).into();
    let changes: Vec<_> = ["link_rate=1gbit"].into_iter().chain(slow.iter().map(String::as_str)).collect();
    let class = |tc: u8| {
        move |config: &mut Config| {
            let (used, other) = if tc == 0 { (0, 3) } else { (3, 0) };
            config.dscp_to_tc[26] = tc;
            // The class in use marks nothing; the other would mark everything.
            config.wred[used].kmin_bytes = 1_000_000_000;
            config.wred[used].kmax_bytes = 1_000_000_000;
            config.wred[other].kmin_bytes = 0;
            config.wred[other].kmax_bytes = 0;
            Ok::<_, attach::Error>(())
        }
    };
    pair.a.attach("a0", Role::Switch, &changes)?;
    pair.a.run(|| attach::change("a0", class(0)))??;
    let mut switched = 0;
    under_traffic(
        &pair,
        |_, _| {},
        |_| {
            let until = Instant::now() + Duration::from_secs(2);
            pair.a.run(|| {
                while Instant::now() < until {
                    attach::change("a0", class(if switched % 2 == 0 { 3 } else { 0 }))?;
                    switched += 1;
                }
                Ok::<_, attach::Error>(())
            })??;
            Ok(())
        },
    )?;
    let counters = pair.a.counters("a0", Hook::Egress)?;
    let [in_0, in_3] = [0, 3].map(|tc| counters.class[tc].packets);
    eprintln!("{switched} changes; {in_0} packets under one set, {in_3} under the other");
    assert!(in_0 > 100 && in_3 > 100, "both sets were active: {in_0}, {in_3}");
    assert_eq!(counters.stat[Stat::CpEcnMarked as usize], 0, "parameters of both sets were mixed");
    Ok(())
}

/// A daemon reads them every second for each of hundreds of ports.
#[test]
fn unchanged_parameters_copied_once() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Switch, &["link_rate=1gbit"])?;
    let maps = pair.a.attachment("a0")?.maps;
    let first = maps.params()?;
    assert!(Arc::ptr_eq(&first, &maps.params()?));
    // By other handles, as of other processes.
    for mbps in [7, 8, 7] {
        pair.a.set("a0", &[&format!("rpg_ai_rate={mbps}mbit")])?;
        let changed = maps.params()?;
        assert_eq!(changed.config.scalars.rpg_ai_rate_bps, mbps * 1_000_000);
        assert!(Arc::ptr_eq(&changed, &maps.params()?));
    }
    Ok(())
}
