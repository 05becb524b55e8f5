extern crate std;
use super::*;
use crate::params::{Params, Port};
use std::collections::BTreeSet;
use std::string::ToString;

const GBIT: u64 = 1_000 * MBIT;

impl Config {
    /// The defaults as modified by `set`.
    pub(crate) fn with(set: impl FnOnce(&mut Self)) -> Self {
        let mut config = Self::DEFAULT;
        set(&mut config);
        config
    }

    /// The defaults with scalars as modified by `set`.
    pub(crate) fn with_scalars(set: impl FnOnce(&mut Scalars)) -> Self {
        Self::with(|config| set(&mut config.scalars))
    }

    /// The parameters of a port with the smallest tables.
    pub(crate) fn params(&self) -> Params {
        Params::new(self, Port::new(1, 1, 1)).unwrap()
    }
}

fn with(set: impl FnOnce(&mut Config)) -> Config {
    Config::with(set)
}

fn scalars(set: impl FnOnce(&mut Scalars)) -> Config {
    Config::with_scalars(set)
}

#[test]
fn defaults_are_valid_at_any_link_rate() {
    for link_rate_bps in [0, 10 * MBIT, GBIT, 40 * GBIT, MAX_RATE_BPS] {
        assert_eq!(scalars(|s| s.link_rate_bps = link_rate_bps).validate(), Ok(()), "{link_rate_bps}");
    }
}

/// Invariants of every entry of a parameter table.
fn check_specs<T: Copy>(specs: &'static [Spec<T>], default: &T) {
    for spec in specs {
        let Spec { key, allowed: Allowed { min, max, unit, .. }, .. } = *spec;
        assert!(key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{key}");
        assert!(spec.doc.trim().ends_with('.') && !spec.doc.contains("  "), "{key}: {}", spec.doc);
        assert!(spec.larger.is_empty() || spec.larger.ends_with('.'), "{key}: {}", spec.larger);
        assert!(min < max && (min..=max).contains(&spec.default), "{key}");
        assert_eq!((spec.get)(default), spec.default, "{key}");
        match unit {
            Unit::Switch => assert_eq!((min, max), (0, 1), "{key}"),
            Unit::Choice(words) => assert_eq!((min, max), (0, words.len() as u64 - 1), "{key}"),
            Unit::OneOf(numbers) => {
                assert!(numbers.is_sorted(), "{key}");
                assert_eq!((numbers.first(), numbers.last()), (Some(&min), Some(&max)), "{key}");
            }
            Unit::PartsPerMillion => assert_eq!(max, 1_000_000, "{key}"),
            Unit::Bytes | Unit::BitsPerSecond | Unit::Nanoseconds | Unit::Count => {}
        }
        // Each setter writes the field that its getter reads, and no other.
        let mut changed = *default;
        (spec.set)(&mut changed, u64::MAX);
        for other in specs {
            let expected = if other.key == key { u64::MAX } else { other.default };
            assert_eq!((other.get)(&changed), expected, "{key} sets {}", other.key);
        }
    }
}

#[test]
fn specs_complete_and_unique() {
    check_specs(Scalars::SPECS, &Scalars::DEFAULT);
    check_specs(WredConfig::SPECS, &WredConfig::DEFAULT);
    check_specs(QueueConfig::SPECS, &QueueConfig::DEFAULT);
    check_specs(PfcConfig::SPECS, &PfcConfig::DEFAULT);
    let keys = Scalars::SPECS.iter().map(|s| s.key).chain(WredConfig::SPECS.iter().map(|s| s.key));
    let keys = keys.chain(QueueConfig::SPECS.iter().map(|s| s.key));
    assert_eq!(keys.clone().collect::<BTreeSet<_>>().len(), keys.count());
    // A field without a spec could not be set.
    assert_eq!(size_of::<Scalars>(), 8 * Scalars::SPECS.len());
    assert_eq!(size_of::<WredConfig>(), 8 * WredConfig::SPECS.len());
    assert_eq!(size_of::<QueueConfig>(), 8 * QueueConfig::SPECS.len());
    assert_eq!(size_of::<PfcConfig>(), 8 * PfcConfig::SPECS.len());
}

/// Values just outside a parameter's range are rejected by name; the limits themselves are not.
fn check_ranges<T>(
    specs: &'static [Spec<T>],
    name: impl Fn(&'static str) -> Name,
    put: impl Fn(&Spec<T>, u64) -> Config,
) {
    for spec in specs {
        let Spec { key, allowed, .. } = *spec;
        let Allowed { min, max, .. } = allowed;
        for value in [min.checked_sub(1), max.checked_add(1), Some(u64::MAX)].into_iter().flatten() {
            let refused = put(spec, value).validate();
            let name = name(key);
            assert_eq!(refused, Err(Invalid::Range { name, value, allowed }));
            assert!(refused.is_err_and(|invalid| invalid.to_string().contains(key)));
        }
        for value in [min, max] {
            let result = put(spec, value).validate();
            let is_refused = matches!(result, Err(Invalid::Range { .. }));
            assert!(!is_refused, "{key} = {value}: {result:?}");
        }
    }
}

#[test]
fn every_parameter_has_range() {
    check_ranges(Scalars::SPECS, Name::Scalar, |spec, value| scalars(|s| (spec.set)(s, value)));
    for row in 0..CLASSES {
        let name = |table| move |key| Name::Row(table, row as u8, key);
        let put = |spec: &Spec<_>, value| with(|c| (spec.set)(&mut c.wred[row], value));
        check_ranges(WredConfig::SPECS, name(Table::Wred), put);
        let put = |spec: &Spec<_>, value| with(|c| (spec.set)(&mut c.queue[row], value));
        check_ranges(QueueConfig::SPECS, name(Table::Queue), put);
        let put = |spec: &Spec<_>, value| with(|c| (spec.set)(&mut c.pfc[row], value));
        check_ranges(PfcConfig::SPECS, name(Table::Pfc), put);
    }
}

#[test]
fn number_between_listed_ones_rejected() {
    assert!(scalars(|s| s.alpha_bits = 20).validate().is_err());
    assert_eq!(scalars(|s| s.alpha_bits = COARSE_ALPHA_BITS).validate(), Ok(()));
}

#[test]
fn own_queues_exclude_another_qdisc() {
    let both = scalars(|s| (s.queues, s.priority_major) = (1, 1)).validate().unwrap_err().to_string();
    assert!(both.starts_with("priority_major = 1 names the classes of another qdisc"), "{both}");
}

#[test]
fn trimmed_packets_need_another_class() {
    let trims = |dscp| {
        with(|c| (c.scalars.trim_dscp_value, c.wred[3].queue_limit_bytes) = (dscp, 100_000)).validate()
    };
    let refused = trims(26).unwrap_err();
    assert_eq!(refused, Invalid::TrimmedClass { dscp: 26, tc: 3 });
    assert!(refused.to_string().ends_with("set dscp_to_tc.26 to a class of its own"), "{refused}");
    assert_eq!([trims(48), trims(TRIM_OFF)], [Ok(()); 2]);
}

#[test]
fn trims_limited_to_share_of_link() {
    let trims = |link_rate_bps, trim_dscp_value, trim_share_ppm| {
        scalars(|s| {
            (s.link_rate_bps, s.trim_dscp_value, s.trim_share_ppm) =
                (link_rate_bps, trim_dscp_value, trim_share_ppm);
        })
        .trims()
    };
    // 100 Mbit/s of 1,024 bits each; 1 Mbit/s of one a second would be less than one.
    assert_eq!(trims(GBIT, 48, 100_000), Limit::new(97_656, 977));
    assert_eq!(trims(100_000, 48, 1_000), Limit::new(1, 1));
    assert_eq!(trims(0, 48, 100_000).gap_ns, 0, "an unknown rate has no share");
    assert_eq!(trims(GBIT, TRIM_OFF, 100_000).gap_ns, 0);
    assert!(trims(MAX_RATE_BPS, 0, 1_000_000).gap_ns > 0);
}

/// Where 0 means off or unknown, the range starts above it.
#[test]
fn nonzero_below_range_rejected() {
    let refused = |config: Config, wanted: &'static str, lowest: u64| match config.validate() {
        Err(Invalid::Range { name: Name::Scalar(key) | Name::Row(Table::Wred, 7, key), allowed, .. }) => {
            assert_eq!((key, allowed.min_nonzero), (wanted, lowest));
            assert!(allowed.to_string().ends_with(", or 0"), "{allowed}");
        }
        other => panic!("{wanted}: {other:?}"),
    };
    for value in [1, MIN_RATE_BPS - 1] {
        refused(scalars(|s| s.link_rate_bps = value), "link_rate", MIN_RATE_BPS);
        refused(scalars(|s| s.rpg_max_rate_bps = value), "rpg_max_rate", MIN_RATE_BPS);
        refused(with(|c| c.wred[7].drain_rate_bps = value), "drain_rate", MIN_RATE_BPS);
        let first = scalars(|s| s.rate_to_set_on_first_cnp_bps = value);
        refused(first, "rate_to_set_on_first_cnp", MIN_RATE_BPS);
    }
    for value in [1, US - 1] {
        refused(scalars(|s| s.rpg_time_reset_ns = value), "rpg_time_reset", US);
    }
    for bytes in [1, MIN_BYTE_RESET - 1] {
        refused(scalars(|s| s.rpg_byte_reset_bytes = bytes), "rpg_byte_reset", MIN_BYTE_RESET);
    }
    let smallest = with(|c| {
        let s = &mut c.scalars;
        (s.rpg_min_rate_bps, s.link_rate_bps, s.rpg_max_rate_bps) =
            (MIN_RATE_BPS, MIN_RATE_BPS, MIN_RATE_BPS);
        (s.rpg_time_reset_ns, s.rpg_byte_reset_bytes) = (US, MIN_BYTE_RESET);
        c.wred[7].drain_rate_bps = MIN_RATE_BPS;
    });
    assert_eq!(smallest.validate(), Ok(()));
    let off = scalars(|s| (s.rpg_time_reset_ns, s.rpg_byte_reset_bytes) = (0, 0));
    assert_eq!(off.validate(), Ok(()));
}

#[test]
fn thresholds_are_in_order() {
    let thresholds =
        |kmin, kmax| with(|c| (c.wred[3].kmin_bytes, c.wred[3].kmax_bytes) = (kmin, kmax)).validate();
    assert_eq!(thresholds(9_000, 9_000), Ok(()));
    assert_eq!(thresholds(0, 0), Ok(()));
    let name = |key| Name::Row(Table::Wred, 3, key);
    let refused = check_order(name("kmin"), 9_001, "kmax", 9_000, Unit::Bytes);
    assert!(refused.is_err());
    assert_eq!(thresholds(9_001, 9_000), refused);
}

#[test]
fn tables_name_existing_classes_and_queues() {
    let allowed = Allowed { min: 0, min_nonzero: 0, max: 7, unit: Unit::Count };
    let refused = |name, value| Err(Invalid::Range { name, value, allowed });
    for index in 0..DSCPS {
        assert_eq!(with(|c| c.dscp_to_tc[index] = 7).validate(), Ok(()));
        let refused = refused(Name::Entry(Table::DscpToTc, index as u8), 8);
        assert_eq!(with(|c| c.dscp_to_tc[index] = 8).validate(), refused);
    }
    for index in 0..CLASSES {
        assert_eq!(with(|c| c.tc_to_queue[index] = 7).validate(), Ok(()));
        let refused = refused(Name::Entry(Table::TcToQueue, index as u8), 255);
        assert_eq!(with(|c| c.tc_to_queue[index] = 255).validate(), refused);
    }
}

/// Packets that the pacer holds are not congestion.
#[test]
fn pacing_port_does_not_mark_by_its_backlog() {
    let marks = |s: &mut Scalars| (s.cp_enable, s.queue_source) = (1, QUEUE_SOURCE_BACKLOG);
    let paces = |s: &mut Scalars| (s.rp_enable, s.pacer) = (1, PACER_FQ);
    let both = scalars(|s| (marks(s), paces(s)).0);
    assert_eq!(both.validate(), Err(Invalid::OwnBacklog));
    assert_eq!(scalars(marks).validate(), Ok(()));
    assert_eq!(scalars(paces).validate(), Ok(()));
}

#[test]
fn rates_are_in_order() {
    let rates = |link, max, min| {
        scalars(|s| (s.link_rate_bps, s.rpg_max_rate_bps, s.rpg_min_rate_bps) = (link, max, min)).validate()
    };
    let above = |key, rate_bps, link_rate_bps| Err(Invalid::AboveLink { key, rate_bps, link_rate_bps });
    assert_eq!(rates(GBIT, GBIT, GBIT), Ok(()));
    assert_eq!(rates(GBIT, GBIT + 1, GBIT), above("rpg_max_rate", GBIT + 1, GBIT));
    assert_eq!(rates(GBIT, 0, GBIT + 1), above("rpg_min_rate", GBIT + 1, GBIT));
    let low = Name::Scalar("rpg_min_rate");
    let refused = check_order(low, 501 * MBIT, "rpg_max_rate", 500 * MBIT, Unit::BitsPerSecond);
    assert!(refused.is_err());
    assert_eq!(rates(GBIT, 500 * MBIT, 501 * MBIT), refused);
    assert_eq!(rates(0, 500 * MBIT, 501 * MBIT), refused);
    assert_eq!(rates(0, 0, MAX_RATE_BPS), Ok(()));
}

#[test]
fn line_and_drain_rate_default_to_link() {
    let line = |link, max| scalars(|s| (s.link_rate_bps, s.rpg_max_rate_bps) = (link, max)).line_rate_bps();
    assert_eq!([line(0, 0), line(GBIT, 0), line(0, GBIT), line(GBIT, 40 * GBIT)], [0, GBIT, GBIT, GBIT]);
    assert_eq!(line(40 * GBIT, GBIT), GBIT);
    let drain = |link, own, tc| {
        with(|c| (c.scalars.link_rate_bps, c.wred[3].drain_rate_bps) = (link, own)).drain_rate_bps(tc)
    };
    assert_eq!([drain(GBIT, 7, 3), drain(GBIT, 7, 2), drain(GBIT, 0, 3), drain(0, 7, 2)], [7, GBIT, GBIT, 0]);
}

#[test]
fn dscp_26_and_48_have_separate_classes() {
    let Config { dscp_to_tc, tc_to_queue, .. } = Config::DEFAULT;
    for (dscp, &tc) in dscp_to_tc.iter().enumerate() {
        let expected = match dscp {
            26 => 3,
            48 => 6,
            _ => 0,
        };
        assert_eq!((tc, tc_to_queue[usize::from(tc)]), (expected, expected), "{dscp}");
    }
    assert_eq!(dscp_to_tc[Scalars::DEFAULT.cnp_dscp as usize], 6);
}

#[test]
fn xoff_must_exceed_xon() {
    let bounds = |xoff, xon| with(|c| (c.pfc[3].xoff, c.pfc[3].xon) = (xoff, xon)).validate();
    assert_eq!(bounds(20_000, 20_000), Ok(()));
    let (low, high) = (Name::Row(Table::Pfc, 3, "xon"), "xoff");
    let refused = Err(Invalid::Order { low, low_value: 20_001, high, high_value: 20_000, unit: Unit::Bytes });
    assert_eq!(bounds(20_000, 20_001), refused);
}

#[test]
fn watchdog_restoration_defaults_to_double() {
    let watchdog = |detection_ns, restoration_ns, action| {
        scalars(|s| {
            (s.pfc_wd_detection_time_ns, s.pfc_wd_restoration_time_ns) = (detection_ns, restoration_ns);
            s.pfc_wd_action = action;
        })
        .watchdog()
    };
    assert_eq!(watchdog(0, 500 * MS, PFC_WD_DROP), None);
    let expected = |restoration_ns, action| Some(Watchdog { detection_ns: 200 * MS, restoration_ns, action });
    assert_eq!(watchdog(200 * MS, 0, PFC_WD_FORWARD), expected(400 * MS, StormAction::Forward));
    assert_eq!(watchdog(200 * MS, 500 * MS, PFC_WD_DROP), expected(500 * MS, StormAction::Drop));
}
