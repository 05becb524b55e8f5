extern crate std;
use super::*;
use crate::layout::{DEFAULT_FLOWS, WAYS};
use crate::params::{COARSE_ALPHA_BITS, Config, PACER_FQ, PACER_NONE, Params, RP_VARIANT_FIRMWARE};
use crate::rate::Debt;
use crate::wire::bth::Stream;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

const EMPTY: NpSet = NpSet::EMPTY;

const SETS: u32 = DEFAULT_FLOWS / WAYS as u32;

fn mapped(addr: u32) -> [u32; 4] {
    crate::classify::mapped(addr.to_be_bytes())
}

/// A flow of 10.0.0.254's.
fn ipv4(addr: u32, qpn: u32) -> FlowId {
    FlowId { src: mapped(0x0a00_00fe), receiver: QpId { addr: mapped(addr), qpn, vlan: 0 } }
}

pub(super) fn shared_set(set: &mut RpSet) -> Shared {
    // SAFETY: each test has one thread, and uses the result before it uses or drops the set.
    unsafe { Shared::new(set) }
}

/// A packet of `id`, processed as by the hooks. `cnp_sent` identifies the flow here.
fn touch(set: &mut NpSet, id: FlowId, hash: u32, now_ns: u64) -> Selection {
    let selection = set.find(&id, hash);
    if selection.missing {
        set.insert(hash, NpFlow { cnp_sent: u64::from(id.receiver.qpn), ..NpFlow::new(id) });
    }
    set.ways[selection.way].last_seen_ns = now_ns;
    selection
}

proptest! {
    /// At most eight flows, evicted in LRU order; flows of equal hash are still distinguished.
    #[test]
    fn set_is_ordered_by_last_use(
        uses in proptest::collection::vec((0u32..20, 1u64..1_000), 1..300), hashes in 1u32..6, seed: u32,
    ) {
        let mut set = EMPTY;
        let mut now_ns = 0;
        let mut model: Vec<FlowId> = Vec::new();
        for (qpn, gap_ns) in uses {
            now_ns += gap_ns;
            let id = ipv4(0x0a00_0001, qpn);
            let hash = ipv4(0x0a00_0001, qpn % hashes).hash(&HashKeys::new(seed.into()));
            let selection = touch(&mut set, id, hash, now_ns);

            let known = model.iter().position(|&other| other == id);
            prop_assert_eq!(selection.missing, known.is_none());
            if let Some(at) = known {
                model.remove(at);
            } else if model.len() == WAYS {
                model.remove(0);
            }
            model.push(id);

            let used = set.ways.iter().filter(|flow| flow.last_seen_ns != 0);
            let mut inside: Vec<_> = used.map(|flow| (flow.last_seen_ns, flow.id)).collect();
            inside.sort_by_key(|&(seen_ns, _)| seen_ns);
            prop_assert!(inside.iter().map(|&(_, id)| id).eq(model.iter().copied()));
            prop_assert!(set.ways.iter().all(|flow| flow.cnp_sent == u64::from(flow.id.receiver.qpn)));
        }
    }

    /// A flow whose primary way is empty is inserted and found there.
    #[test]
    fn flows_use_primary_way_while_empty(hashes in proptest::collection::vec(any::<u32>(), 1..=WAYS)) {
        let mut set = EMPTY;
        let mut taken = BTreeSet::new();
        for (n, &hash) in (1..).zip(&hashes) {
            let selection = touch(&mut set, ipv4(0x0a00_0001, n), hash, u64::from(n));
            prop_assert!(selection.missing);
            if !taken.contains(&home_way(hash)) {
                prop_assert_eq!(selection.way, home_way(hash));
            }
            prop_assert!(taken.insert(selection.way));
        }
        for (n, &hash) in (1..).zip(&hashes) {
            prop_assert!(!set.find(&ipv4(0x0a00_0001, n), hash).missing);
        }
    }

    /// At most one CNP per interval, and no mark waits longer than that.
    #[test]
    fn cnps_keep_their_distance(
        gaps_ns in proptest::collection::vec(0u64..150_000, 1..200), interval_ns in 0u64..100_000, start_ns: u32,
    ) {
        let mut flow = NpFlow::new(ipv4(0x0a00_0001, 17));
        let mut now_ns = u64::from(start_ns);
        let mut last_ns = None;
        let (mut marked, mut sent) = (0, 0);
        for gap_ns in gaps_ns {
            now_ns += gap_ns;
            let due = last_ns.is_none_or(|last_ns| now_ns - last_ns >= interval_ns);
            prop_assert_eq!(flow.on_ecn_marked(now_ns, interval_ns), due);
            if due {
                last_ns = Some(now_ns);
                sent += 1;
            }
            marked += 1;
            prop_assert_eq!((flow.ecn_marked_packets, flow.cnp_sent), (marked, sent));
            prop_assert_eq!(flow.last_seen_ns, now_ns);
        }
    }
}

#[test]
fn clock_step_back_answers_nothing() {
    let mut flow = NpFlow::new(ipv4(0x0a00_0001, 17));
    assert!(flow.on_ecn_marked(1_000_000, 50_000));
    // Another CPU's clock, read a little earlier.
    assert!(!flow.on_ecn_marked(999_000, 50_000));
    assert!(flow.on_ecn_marked(1_050_000, 50_000));
}

/// An empty slot is not the flow of QP 0 at address 0.
#[test]
fn empty_set_contains_no_flow() {
    for seed in [0, 1, 0x9e37_79b9, u32::MAX] {
        let selection = { EMPTY }.find(&FlowId::NONE, FlowId::NONE.hash(&HashKeys::new(seed.into())));
        assert!(selection.missing);
    }
}

/// Flow identities have patterns in practice; their sets must not.
#[test]
fn flows_spread_uniformly_over_sets() {
    type Flow = fn(u32) -> FlowId;
    const fn ipv6(addr: [u32; 4]) -> FlowId {
        FlowId { src: [0xfd00_u32.to_be(), 0, 0, 1], receiver: QpId { addr, qpn: 0x11, vlan: 0 } }
    }
    let patterns: [(&str, Flow); 9] = [
        ("one peer, QPNs in sequence", |i| ipv4(0x0a00_0002, 0x11 + i)),
        ("one peer, every other QPN", |i| ipv4(0x0a00_0002, 2 * i)),
        ("one peer, QPNs 256 apart", |i| ipv4(0x0a00_0002, (i << 8 | i >> 16) & 0x00ff_ffff)),
        ("peers in sequence, one QPN", |i| ipv4(0x0a00_0000 + i, 0x11)),
        ("a /16 network per QPN", |i| ipv4(0x0a00_0000 | (i & 0xff), 0x100 + (i >> 8))),
        ("senders in sequence, one receiver", |i| FlowId {
            src: mapped(0x0a01_0000 + i),
            ..ipv4(0x0a00_0002, 0x11)
        }),
        ("either way between 256 hosts", |i| FlowId {
            src: mapped(0x0a00_0000 | (i & 0xff)),
            ..ipv4(0x0a00_0000 | (i >> 8), 0x11)
        }),
        ("IPv6 peers in sequence", |i| ipv6([0xfd00_u32.to_be(), 0, 0, i.to_be()])),
        ("IPv6 networks in sequence", |i| ipv6([0xfd00_u32.to_be(), i.to_be(), 0, 1])),
    ];
    for (name, flow) in patterns {
        for seed in [0, 1, 0xdead_beef_u64] {
            let mut load = [0u32; SETS as usize];
            let mut tags = BTreeSet::new();
            for i in 0..DEFAULT_FLOWS {
                let hash = flow(i).hash(&HashKeys::new(seed));
                load[set_index(hash, SETS - 1) as usize] += 1;
                tags.insert(tag(hash));
            }
            let mean = f64::from(DEFAULT_FLOWS) / f64::from(SETS);
            let chi_square: f64 = load.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
            // Mean SETS - 1, standard deviation sqrt(2 (SETS - 1)); six of them are one chance in 10^9.
            let degrees = f64::from(SETS - 1);
            assert!(chi_square < degrees + 6.0 * (2.0 * degrees).sqrt(), "{name}, seed {seed}: {chi_square}");
            // Two flows share a tag with probability 2^-31; there are 2^31 pairs, so expect 1.
            assert!(DEFAULT_FLOWS - tags.len() as u32 <= 8, "{name}, seed {seed}: {} tags", tags.len());
        }
    }
}

#[test]
fn idle_flow_evicted() {
    let mut set = EMPTY;
    let ids: Vec<_> = (0..WAYS as u32).map(|qpn| ipv4(0x0a00_0002, qpn)).collect();
    for (now_ns, id) in (100..).zip(&ids) {
        touch(&mut set, *id, id.hash(&HashKeys::new(1)), now_ns);
    }
    // The first flow is used again.
    touch(&mut set, ids[0], ids[0].hash(&HashKeys::new(1)), 200);
    assert_eq!(set.expire(104), 3);
    assert_eq!(set.expire(104), 0);
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(set.find(id, id.hash(&HashKeys::new(1))).missing, (1..4).contains(&index), "{index}");
    }
    // A new flow evicts no flow in use.
    let newcomer = ipv4(0x0a00_0002, 99);
    let selection = touch(&mut set, newcomer, newcomer.hash(&HashKeys::new(1)), 300);
    assert!(selection.missing);
    let in_use = ids.iter().enumerate().filter(|(index, _)| !(1..4).contains(index));
    for (index, id) in in_use {
        assert!(!set.find(id, id.hash(&HashKeys::new(1))).missing, "{index}");
    }
}

/// Maps outlive the programs that filled them: a changed hash would no longer find the flows.
#[test]
fn hash_values_are_stable() {
    let hash = |qpn, seed| ipv4(0x0a00_0002, qpn).hash(&HashKeys::new(seed));
    assert_eq!([hash(17, 1), hash(18, 1), hash(17, 2)], [3_376_224_869, 618_528_260, 943_356_428]);
}

#[test]
fn hash_yields_set_tag_and_home() {
    assert_eq!([0, 1, 2, 3].map(tag), [1, 1, 3, 3], "0 marks an empty slot");
    assert_eq!([0, 2, 6, 0x1_0000].map(|hash| set_index(hash, 0xff)), [0, 1, 3, 0]);
    assert_eq!([0, 1 << 29, 0x1fff_ffff, u32::MAX].map(home_way), [0, 1, 0, 7]);
}

#[test]
fn unlocked_set_and_flow_are_at_rest() {
    assert!(EMPTY.is_at_rest() && !NpSet { lock: 1, ..EMPTY }.is_at_rest());
    assert!(!RpHot { lock: 4, ..RpHot::EMPTY }.is_held() && RpHot { lock: 5, ..RpHot::EMPTY }.is_held());
}

#[test]
fn new_flow_in_use_before_first_packet() {
    let p = params();
    let mut set = RpSet::EMPTY;
    let shared = shared_set(&mut set);
    let id = ipv4(0x0a00_0001, 17);
    let way = enter(shared, &id, id.fingerprint(&HashKeys::new(5)), &p.rp, 100).unwrap().way;
    assert_eq!(shared.peek(way).in_use_until_ns(), 100);
}

/// A lookup before the slot was reused cannot lock the new flow, even if it is the same flow again.
#[test]
fn reused_slot_has_new_generation() {
    let p = params();
    let mut set = RpSet::EMPTY;
    let shared = shared_set(&mut set);
    let id = ipv4(0x0a00_0001, 17);
    let fingerprint = id.fingerprint(&HashKeys::new(5));
    let enter = |now_ns| enter(shared, &id, fingerprint, &p.rp, now_ns).unwrap().way;
    let way = enter(1);
    let seen = shared.find_at(way, fingerprint).unwrap();
    shared.lock_flow(way, fingerprint, seen).unwrap().set_departure(Stream::Requests, 1);
    assert!(shared.lock_flow(way, fingerprint, seen).is_ok(), "it is the same flow after a packet");
    assert_eq!(shared.expire(10), 1);
    assert!(shared.find_at(way, fingerprint).is_none());
    assert_eq!(enter(20), way);
    assert_eq!(shared.lock_flow(way, fingerprint, seen).map(drop), Err(LookupError::Evicted));
    let again = shared.find_at(way, fingerprint).unwrap();
    assert!(shared.lock_flow(way, fingerprint, again).is_ok());
    // The prefetching store changes nothing, however often the slot is reused.
    for now_ns in (1_000..1_000_000).step_by(1_000) {
        shared
            .lock_flow(way, fingerprint, shared.find_at(way, fingerprint).unwrap())
            .unwrap()
            .set_departure(Stream::Requests, now_ns);
        assert_eq!(shared.expire(now_ns + 100), 1);
        enter(now_ns + 200);
        shared.fetch_home(hash(fingerprint));
        assert!(shared.find_at(way, fingerprint).is_some());
    }
}

/// Reuse takes two steps. A lookup that sees the new word with the old fingerprint does not get the new flow.
#[test]
fn lookup_during_reuse_misses_next_flow() {
    let mut set = RpSet::EMPTY;
    (set.hot[3].lock, set.hot[3].fingerprint) = (HELD_OF_THE_NEXT, 17);
    let shared = shared_set(&mut set);
    let seen = shared.find_at(3, 17).unwrap();
    (set.hot[3].lock, set.hot[3].fingerprint) = (HELD_OF_THE_NEXT - 1, 18);
    let shared = shared_set(&mut set);
    assert_eq!(shared.lock_flow(3, 17, seen).map(drop), Err(LookupError::Evicted));
    assert!(shared.lock_flow(3, 18, seen).is_ok(), "and its lock is free again");
}

/// A lock's word while the next flow is being inserted.
const HELD_OF_THE_NEXT: u32 = 3;

/// Without the seed, it is unpredictable which flows share a set.
#[test]
fn seed_changes_set_sharing() {
    let set = |qpn, seed| set_index(ipv4(0x0a00_0002, qpn).hash(&HashKeys::new(seed)), SETS - 1);
    let together: Vec<_> = (0..1 << 20).filter(|&qpn| set(qpn, 1) == set(0, 1)).collect();
    assert!(together.len() > 64, "{}", together.len());
    let apart: BTreeSet<_> = together.iter().map(|&qpn| set(qpn, 2)).collect();
    assert!(apart.len() * 10 > together.len() * 9, "{} of {}", apart.len(), together.len());
}

/// The `n`th fingerprint with this hash: inverts [`hash`](super::hash).
fn fingerprint_of(hash: u32, n: u32) -> u64 {
    // The multiplier's inverse modulo 2^64.
    let mixed = (u64::from(hash) << 32 | u64::from(n)).wrapping_mul(0x96de_1b17_3f11_9089);
    mixed ^ (mixed >> 32)
}

fn params() -> Params {
    Config::with_scalars(|s| (s.link_rate_bps, s.pacer) = (100_000_000_000, PACER_FQ)).params()
}

proptest! {
    /// A set of the RP table holds eight flows. A new flow in a full set replaces the one idle for longest, if any;
    /// flows that were cut recently or have queued packets stay.
    #[test]
    fn shared_set_reuses_idle_slot(
        uses in proptest::collection::vec((0u32..20, 1u64..2_000_000, 0u32..10), 1..300), hashes in 1u32..6, seed: u64,
    ) {
        let p = params();
        let keys = HashKeys::new(seed);
        let mut set = RpSet::EMPTY;
        let shared = shared_set(&mut set);
        let mut model: Vec<(FlowId, u64)> = Vec::new();
        let mut now_ns = 1;
        for (qpn, gap_ns, cnp) in uses {
            now_ns += gap_ns;
            let id = ipv4(0x0a00_0001, qpn);
            let hash = ipv4(0x0a00_0001, qpn % hashes).hash(&keys);
            let fingerprint = fingerprint_of(hash, qpn);
            assert_eq!(super::hash(fingerprint), hash);
            let known = model.iter().position(|(other, _)| *other == id);
            let entered = enter(shared, &id, fingerprint, &p.rp, now_ns);
            let silent = entered.map(|entered| entered.silent_since_ns);
            let free = model.iter().enumerate().min_by_key(|(_, (_, until_ns))| *until_ns);
            match (known, free) {
                (Some(_), _) => prop_assert_eq!(silent, Ok(None)),
                (None, Some((oldest, (_, until_ns)))) if model.len() == WAYS => {
                    if *until_ns > now_ns {
                        prop_assert_eq!(entered, Err(LookupError::Evicted));
                        continue;
                    }
                    prop_assert!(matches!(silent, Ok(Some(1..))));
                    model.remove(oldest);
                    model.push((id, 0));
                }
                (None, _) => {
                    prop_assert_eq!(silent, Ok(Some(0)));
                    model.push((id, 0));
                }
            }
            let Ok(Slot { way, .. }) = entered else { continue };
            prop_assert_eq!(shared.find_at(home_way(hash), fingerprint).is_some(), way == home_way(hash));
            let Some(seen) = shared.find_at(way, fingerprint) else { panic!("it is there") };
            let Ok(mut flow) = shared.lock_flow(way, fingerprint, seen) else { panic!("the lock is uncontended") };
            if cnp == 0 {
                flow.on_cnp(&p.rp, now_ns, &mut { Debt::NONE });
            }
            let _ = flow.on_send(&p, now_ns, 1_000, &mut { Debt::NONE });
            flow.set_departure(Stream::Requests, now_ns);
            let Some(entry) = model.iter_mut().find(|(other, _)| *other == id) else { panic!("entered above") };
            entry.1 = shared.peek(way).in_use_until_ns();
            drop(flow);
            prop_assert!(shared.find_at(way, fingerprint_of(hash, qpn + 20)).is_none());
        }
        let is_idle = |(_, until_ns): &&(FlowId, u64)| *until_ns < now_ns;
        let idle = model.iter().filter(is_idle).count();
        prop_assert_eq!(shared.expire(now_ns) as usize, idle);
        prop_assert_eq!(shared.expire(now_ns), 0);
        prop_assert!(set.lock == 0 && !set.hot.iter().any(RpHot::is_held));
        let left: BTreeSet<_> = set.flows().map(|(_, flow)| flow.id.receiver.qpn).collect();
        let expected: BTreeSet<_> =
            model.iter().filter(|entry| !is_idle(entry)).map(|(id, _)| id.receiver.qpn).collect();
        prop_assert_eq!(left, expected);
    }

    /// A flow that passes unpaced at line rate has the same rates ever after as one that is charged for each packet.
    #[test]
    fn unpaced_flow_keeps_its_rates(
        steps in proptest::collection::vec((0u64..300_000, 0u32..12, 64u64..9_000), 1..300), firmware: bool, clamp in 0u64..=1,
    ) {
        let mut config = params().config;
        if firmware {
            config.scalars.rate_reduce_monitor_period_ns = 4_000;
            config.scalars.rp_variant = RP_VARIANT_FIRMWARE;
        }
        (config.scalars.rpg_byte_reset_bytes, config.scalars.pacer) = (40_000, PACER_NONE);
        config.scalars.clamp_tgt_rate_after_time_inc = clamp;
        let p = Params::new(&config, params().port).unwrap();
        let id = ipv4(0x0a00_0001, 17);
        let fingerprint = 5;
        let mut set = RpSet::EMPTY;
        set.hot[0] = RpHot::new(fingerprint, &p.rp);
        let shared = shared_set(&mut set);
        let (mut charged, mut debt, mut now_ns, mut cnps) = (RpFlow::new(id, &p.rp), Debt::NONE, 1, Cnps::NONE);
        for (gap_ns, what, bytes) in steps {
            now_ns += gap_ns;
            let seen = shared.find_at(0, fingerprint).unwrap();
            if what == 0 {
                shared.lock_flow(0, fingerprint, seen).unwrap().on_cnp(&p.rp, now_ns, &mut debt);
                charged.hot.on_cnp(&mut cnps, &p.rp, now_ns, &mut debt);
            } else {
                if !shared.pass_unpaced(0, fingerprint, &p.rp, now_ns, Some((Stream::Requests, 1, bytes))) {
                    let _ = shared.lock_flow(0, fingerprint, seen).unwrap().on_send(&p, now_ns, bytes, &mut debt);
                }
                let _ = charged.hot.on_send(&p, now_ns, bytes, &mut debt);
            }
            let flow = shared.lock_flow(0, fingerprint, seen).unwrap();
            prop_assert_eq!(flow.rates(), charged.hot.rates());
            prop_assert_eq!((flow.packets, flow.bytes), (charged.hot.packets, charged.hot.bytes));
        }
    }

    /// A packet without due events needs only a peek, which leaves the flow as a full advance would, whatever happened
    /// before and whichever parameters changed.
    #[test]
    fn peek_equals_full_advance(
        steps in proptest::collection::vec((0u64..30_000, 0u32..12, 64u64..9_000), 1..300), firmware: bool, coarse: bool,
    ) {
        let mut slow = params();
        if firmware {
            slow.config.scalars.rate_reduce_monitor_period_ns = 4_000;
            slow.config.scalars.rp_variant = RP_VARIANT_FIRMWARE;
            slow.config.scalars.alpha_bits = if coarse { COARSE_ALPHA_BITS } else { slow.config.scalars.alpha_bits };
        }
        slow.config.scalars.rpg_byte_reset_bytes = 40_000;
        slow = Params::new(&slow.config, slow.port).unwrap();
        let mut other = slow;
        (other.config.scalars.rpg_time_reset_ns, other.config.scalars.rpg_max_rate_bps) = (20_000, 40_000_000_000);
        other = Params::new(&other.config, other.port).unwrap();
        let mut fast = RpFlow::new(ipv4(0x0a00_0001, 17), &slow.rp);
        let mut slow_path = fast;
        let mut debt = Debt::NONE;
        let (mut p, mut now_ns) = (slow, 1);
        for (gap_ns, what, bytes) in steps {
            now_ns += gap_ns;
            match what {
                0 => {
                    for flow in [&mut fast, &mut slow_path] {
                        flow.on_cnp(&p.rp, now_ns, &mut debt);
                    }
                }
                1 => p = other,
                _ => {
                    subprogram::advance(&mut slow_path.hot, &p.rp, now_ns, &mut debt);
                    prop_assert_eq!(
                        fast.hot.on_send(&p, now_ns, bytes, &mut debt),
                        slow_path.hot.on_send(&p, now_ns, bytes, &mut debt)
                    );
                }
            }
            // A target above a lowered line rate is corrected later. (If the line rate rises first, it stays.)
            let caught_up = |flow: &RpFlow| {
                let mut flow = *flow;
                subprogram::advance(&mut flow.hot, &p.rp, now_ns, &mut { Debt::NONE });
                flow
            };
            prop_assert_eq!(caught_up(&fast), caught_up(&slow_path));
        }
    }
}
