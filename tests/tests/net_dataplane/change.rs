//! Parameters changed under traffic: every change is whole, no packet pays for it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use dcqcn::attach;
use dcqcn::engine::Hook;
use dcqcn::params::{Key, Role};
use dcqcn_common::params::{Config, Params};
use dcqcn_common::rng;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Bth;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_tests::host::{Host, Pair};
use dcqcn_tests::packets::Roce;
use dcqcn_tests::socket::{RawSocket, SILENCE};

use crate::{MARKING, runnable};

/// Frames in a stream.
const FRAMES: u32 = 20_000;
/// Between two of them: 20,000 take a second at least.
const PAUSE: Duration = Duration::from_micros(50);

/// Sends [`FRAMES`] numbered frames, evenly, over and over until `stop`; returns how many.
fn stream(host: &Host, stop: &AtomicBool) -> Result<u32> {
    let socket = host.socket("a0")?;
    let mut next = Instant::now();
    for psn in 0.. {
        if psn >= FRAMES && stop.load(Ordering::Relaxed) {
            return Ok(psn);
        }
        socket.send(&Roce { psn, payload: 256, ..Roce::default() }.frame())?;
        next += PAUSE;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(0)
}

/// Takes in the frames of the stream until it has ended, shows each to `see`, and returns how many. Panics if one is lost or
/// out of order.
fn count(receiver: &RawSocket, ended: &AtomicBool, mut see: impl FnMut(&[u8])) -> Result<u32> {
    let mut arrived = 0;
    loop {
        let over = ended.load(Ordering::Relaxed);
        match receiver.receive(SILENCE)? {
            Some(frame) => {
                let psn = Bth::parse(&frame[Roce::default().bth()..]).map(|(bth, _)| bth.psn());
                assert_eq!(psn, Some(arrived), "lost, doubled or out of order");
                see(&frame);
                arrived += 1;
            }
            None if over => return Ok(arrived),
            None => {}
        }
    }
}

/// Runs `work` while the stream flows from host 1 to host 2, shows each frame to `see` as it arrives, and panics unless every
/// one does, in order.
fn under_traffic(
    pair: &Pair,
    see: impl FnMut(&[u8]) + Send,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let receiver = pair.b.socket("b0")?;
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, arrived) = thread::scope(|scope| -> Result<_> {
        let sender = scope.spawn(|| stream(&pair.a, &stop));
        let counter = scope.spawn(|| count(&receiver, &ended, see));
        // A panic must end the threads too, or nobody would see it.
        let result = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join();
        ended.store(true, Ordering::Relaxed);
        let arrived = counter.join();
        result.unwrap_or_else(|panic| resume_unwind(panic))?;
        let panicked = |_| anyhow!("a thread panicked");
        Ok((sent.map_err(panicked)??, arrived.map_err(panicked)??))
    })?;
    assert_eq!(arrived, sent);
    eprintln!("{sent} frames, none lost");
    Ok(())
}

/// A deterministic random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = rng::next(self.0);
        let high = u64::from(rng::value(self.0)) << 32;
        self.0 = rng::next(self.0);
        (high | u64::from(rng::value(self.0))) % bound
    }

    /// A value of the parameter's range, small and large ones alike; sometimes one beyond it.
    fn value(&mut self, key: Key) -> u64 {
        let (min, max) = key.range().into_inner();
        match self.below(20) {
            0 => max.saturating_add(1 + self.below(1_000)),
            1 => min,
            2 => max,
            _ => {
                let bits = 64 - (max - min).leading_zeros();
                let scale = (max - min) >> self.below(u64::from(bits.max(1)));
                min + self.below(scale.saturating_add(1))
            }
        }
    }
}

#[test]
fn random_changes_under_traffic_are_whole_or_not_at_all() -> Result<()> {
    const CHANGES: usize = 1_000;
    if !runnable("random_changes_under_traffic_are_whole_or_not_at_all", &[])? {
        return Ok(());
    }
    let pair = Pair::new("change")?;
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit", "cp_enable=on"])?;
    let keys: Vec<Key> = Key::all().filter(|key| !key.follows_from_attach()).collect();
    let mut random = Random(0x0dc9_c0de);
    let mut latencies = Vec::new();
    let mut refused = 0;
    let first = pair.a.attachment("a0")?.maps.params()?;
    let mut model = first.config;
    under_traffic(
        &pair,
        |_| {},
        || {
            while latencies.len() < CHANGES {
                let changes: Vec<(Key, u64)> = (0..=random.below(4))
                    .map(|_| {
                        let key = keys[random.below(keys.len() as u64) as usize];
                        (key, random.value(key))
                    })
                    .collect();
                // What the config says of itself is what `change` must say; set without checks, as a broken caller would.
                let edit =
                    |config: &mut Config| changes.iter().for_each(|(key, value)| put(*key, config, *value));
                let mut wanted = model;
                edit(&mut wanted);
                let valid = wanted.validate().is_ok()
                    && (wanted.scalars.rp_enable == 0 || wanted.line_rate_bps() != 0);
                let start = Instant::now();
                let result = pair.a.run(|| {
                    attach::change("a0", |config| {
                        edit(config);
                        Ok::<_, attach::Error>(())
                    })
                })?;
                let latency = start.elapsed();
                match result {
                    Ok((old, new)) => {
                        assert!(valid, "{changes:?} is invalid and was accepted");
                        assert!(old == model && new == wanted);
                        latencies.push(latency);
                        model = wanted;
                    }
                    Err(error) => {
                        assert!(!valid, "{changes:?}: {error}");
                        refused += 1;
                    }
                }
                let params = pair.a.attachment("a0")?.maps.params()?;
                assert!(params == Params::new(&model, first.port)?, "after {changes:?}");
            }
            Ok(())
        },
    )?;
    latencies.sort();
    let [median, slowest] = [CHANGES / 2, CHANGES - 1].map(|at| latencies[at]);
    eprintln!(
        "{CHANGES} changes, {refused} refused; a change takes {median:?} (median), {slowest:?} (slowest)"
    );
    assert!(refused > 20, "the invalid ones were too few to tell");
    Ok(())
}

/// Sets a parameter without a look at its range; the tables have no room for more than a byte.
fn put(key: Key, config: &mut Config, value: u64) {
    let byte = value.min(u64::from(u8::MAX)) as u8;
    match key {
        Key::Scalar(spec) => (spec.set)(&mut config.scalars, value),
        Key::Wred(tc, spec) => (spec.set)(&mut config.wred[tc], value),
        Key::DscpToTc(dscp) => config.dscp_to_tc[dscp] = byte,
        Key::TcToQueue(tc) => config.tc_to_queue[tc] = byte,
    }
}

/// Marking is turned on and off: the first frame that arrives as the new parameters have it tells when they were in force,
/// and none after it is treated by the old ones.
#[test]
fn a_change_is_in_force_within_10_ms_and_loses_nothing() -> Result<()> {
    const CHANGES: usize = 12;
    const BOUND: Duration = Duration::from_millis(10);
    if !runnable("a_change_is_in_force_within_10_ms_and_loses_nothing", &[])? {
        return Ok(());
    }
    let pair = Pair::new("change-live")?;
    // All that meets the queue is marked, and it never drains.
    let marking = [&["link_rate=1gbit", "wred.3.ecn=off"], &MARKING[..]].concat();
    pair.a.attach("a0", Role::Switch, &marking)?;
    let data = Roce::default();
    let ecn_at = data.l3() + 1;
    let (mut marked, turns) = (false, Mutex::new(Vec::new()));
    let see = |frame: &[u8]| {
        let is_marked = frame[ecn_at] & Ecn::CE.bits() == Ecn::CE.bits();
        if is_marked != marked {
            marked = is_marked;
            turns.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
    };
    let mut changes = Vec::new();
    under_traffic(&pair, see, || {
        for n in 0..CHANGES {
            // Fewer than slots a second: none has to wait.
            thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            pair.a.run(|| {
                attach::change("a0", |config| {
                    config.wred[3].ecn = u64::from(n % 2 == 0);
                    Ok::<_, attach::Error>(())
                })
            })??;
            changes.push((began, began.elapsed()));
        }
        Ok(())
    })?;
    let turns = turns.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(turns.len(), CHANGES, "a frame was treated by parameters that had been replaced");
    let mut effects: Vec<Duration> =
        turns.iter().zip(&changes).map(|(turn, (began, _))| *turn - *began).collect();
    let mut calls: Vec<Duration> = changes.iter().map(|(_, call)| *call).collect();
    effects.sort();
    calls.sort();
    eprintln!(
        "from the call to the first frame that shows it: {:?} (best), {:?} (median); the call: {:?}, {:?}",
        effects[0],
        effects[CHANGES / 2],
        calls[0],
        calls[CHANGES / 2]
    );
    // This machine may be busy with other things.
    assert!(effects[0] < BOUND, "{effects:?}");
    Ok(())
}

/// Two parameter sets, neither of which marks the stream; any mixture of them would.
#[test]
fn no_packet_sees_half_a_change() -> Result<()> {
    if !runnable("no_packet_sees_half_a_change", &[])? {
        return Ok(());
    }
    let pair = Pair::new("change-half")?;
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
        |_| {},
        || {
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
    assert!(in_0 > 100 && in_3 > 100, "both sets were in force: {in_0}, {in_3}");
    assert_eq!(
        counters.stat[Stat::CpEcnMarked as usize],
        0,
        "a packet saw one set's class and the other's thresholds"
    );
    Ok(())
}
