use dcqcn_common::params::{Quantity, Unit};
use dcqcn_support::causes::one_line;

use super::*;
use crate::network::Simulation as _;

fn setup(preset: Preset, settings: &[&str]) -> Setup {
    let mut setup = Setup::new(preset);
    for setting in settings {
        let (key, text) = setting.split_once('=').unwrap();
        setup.set(key, text).unwrap();
    }
    setup
}

#[test]
fn presets_make_valid_scenarios() {
    for preset in Preset::value_variants() {
        let star = Setup { series: true, ..Setup::new(*preset) }.star().unwrap();
        assert_eq!(star.config.scalars.rate_reduce_monitor_period_ns, 0, "{preset:?}");
        let samples = star.duration_ns / star.series.unwrap().interval_ns;
        assert_eq!(samples, SAMPLES, "{preset:?}");
    }
}

#[test]
fn settings_read_back() {
    let setup = Setup::new(Preset::Incast);
    for knob in Setup::knobs(Preset::Staircase).chain([&CLASSES_KNOB]) {
        let mut changed = setup.clone();
        for value in [knob.min, knob.max] {
            (knob.set)(&mut changed, value);
            assert_eq!((knob.get)(&changed), value, "{}", knob.key);
            let text = knob.text(&changed);
            changed.set(knob.key, &text).unwrap();
            assert_eq!((knob.get)(&changed), value, "{} = {text}", knob.key);
        }
    }
    for knob in ROCE_KNOBS {
        let mut changed = setup.clone();
        for value in [knob.min, knob.max] {
            (knob.set)(&mut changed.roce, value);
            let text = knob.text(&changed.roce);
            changed.set(knob.key, &text).unwrap();
            assert_eq!((knob.get)(&changed.roce), value, "{} = {text}", knob.key);
        }
    }
}

/// Stars are not checked for these ranges again.
#[test]
fn values_beyond_range_rejected() {
    fn ends<T>(knob: &Knob<T>) -> impl Iterator<Item = (&'static str, String)> {
        let beyond = [knob.min.checked_sub(1), knob.max.checked_add(1)].into_iter().flatten();
        // A switch reads no number.
        beyond
            .filter(|_| knob.unit != Unit::Switch)
            .map(|value| (knob.key, Quantity(value, knob.unit).to_string()))
    }
    let knobs = Setup::knobs(Preset::Staircase).flat_map(ends);
    for (key, text) in knobs.chain(ROCE_KNOBS.iter().flat_map(ends)) {
        let refused = Setting::new(key, &text).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("{key} = ")), "{refused}");
    }
    for (key, text) in CLASS_KNOBS.iter().flat_map(ends) {
        assert!(set_class(&mut Class::default(), key, &text).is_err(), "{key} = {text}");
    }
    let Setup { roce, tcp, .. } = Setup::new(Preset::Incast);
    for (key, text) in TCP_KNOBS.iter().chain([&GROUP_CLASS]).flat_map(ends) {
        assert!(tcp.clone().set(key, &text).is_err(), "{key} = {text}");
    }
    assert!(roce.clone().set("class", "8").is_err());
}

#[test]
fn setting_names_are_unique() {
    let mut names: Vec<_> = setting_names().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn loop_delay_equals_four_link_delays() {
    for (text, ns) in [("85us", 85_000), ("4us", 4_000), ("4003ns", 4_000)] {
        let star = setup(Preset::Incast, &[&format!("loop-delay={text}")]).star().unwrap();
        assert_eq!(2 * (star.sender_delay_ns + star.receiver_delay_ns), ns);
    }
}

#[test]
fn parameters_and_short_names_set_the_config() {
    let setup = setup(
        Preset::Incast,
        &["kmax=1MB", "pmax=10%", "rpg_ai_rate=10mbit", "profile=hpcc", "link=100g", "sender-link=25g"],
    );
    let star = setup.star().unwrap();
    let config = star.config;
    assert_eq!((config.wred[3].kmax_bytes, config.wred[3].pmax_ppm), (1_000_000, 100_000));
    assert_eq!(config.scalars.rpg_ai_rate_bps, 10_000_000);
    assert_ne!(config.scalars.rp_variant, RP_VARIANT_PAPER);
    assert_eq!((star.port_rate_bps, star.sender_rate_bps), (100 * GBIT, 25 * GBIT));
}

#[test]
fn rate_reduce_guard_active_if_set() {
    let star = setup(Preset::Incast, &["rate_reduce_monitor_period=40us"]).star().unwrap();
    assert_eq!(star.config.scalars.rate_reduce_monitor_period_ns, 40_000);
}

#[test]
fn staircase_has_one_step_per_flow() {
    let star = setup(Preset::Staircase, &["flows=4", "step=50ms"]).star().unwrap();
    let stairs: Vec<_> = star.groups.iter().map(|group| (group.flows, group.start_ns / MS)).collect();
    assert_eq!(stairs, [(2, 0), (1, 50), (1, 100)]);
}

#[test]
fn classes_off_one_queue_no_marks() {
    let on = setup(Preset::Coexist, &[]).star().unwrap();
    assert_eq!((on.groups[0].class, on.groups[1].class, on.control), (3, 0, true));
    assert_eq!([3, 0].map(|class| on.classes[class].limit_bytes), [Some(6_000_000); 2]);
    let off = setup(Preset::Coexist, &["classes=off"]).star().unwrap();
    assert_eq!((off.groups[0].class, off.groups[1].class, off.control), (0, 0, false));
    assert!(off.config.wred.iter().all(|wred| wred.ecn == 0));
}

#[test]
fn message_sizes_offer_their_load() {
    let mut setup = setup(Preset::Incast, &["flows=10", "load=50%", "link=10g"]);
    setup.roce.sizes = vec![SizeWeight { bytes: 1_000, weight: 3 }, SizeWeight { bytes: 9_000, weight: 1 }];
    let star = setup.star().unwrap();
    // 3000 bytes on average, 0.5 Gbit/s per flow.
    let Work::Messages { mean_gap_ns, .. } = star.groups[0].work else { panic!("{star:?}") };
    assert_eq!(mean_gap_ns, 48_000);
    setup.set("size", "1MB").unwrap();
    assert!(setup.star().unwrap_err().to_string().contains("more than one of"));
}

#[test]
fn error_names_the_value_and_its_range() {
    for (key, text, expected) in [
        ("flows", "0", "flows = 0 is out of range: 1 to 60000"),
        ("link", "1", "link = 1bit is out of range: 100kbit to 800gbit"),
        ("delay", "5s", "delay = 5s is out of range: 0ns to 1s"),
        ("marking", "middle", "marking = `middle` is not one of ingress, egress"),
        ("flws", "2", "unknown setting `flws`: did you mean `flows`?"),
        ("rpg_ai_rat", "2", "unknown setting `rpg_ai_rat`: did you mean `rpg_ai_rate`?"),
        ("size", "0B", "size = 0B is out of range: 1B to 1000GB"),
        ("kmax", "1", "wred.3.kmax"),
        ("profile", "papr", "profile = `papr` is not one of paper"),
    ] {
        match Setting::new(key, text) {
            Err(refused) => assert!(refused.to_string().starts_with(expected), "{refused}"),
            // 1 byte is a valid Kmax.
            Ok(setting) => assert_eq!(setting.to_string(), "kmax=1"),
        }
    }
    for (settings, expected) in [
        (&["start=1s", "duration=10ms"][..], "start of group `roce` = 1s is out of range: 0ns to 9999.999us"),
        (
            &["jitter=10s"],
            "start of group `roce`, with its jitter = 10s is out of range: 0ns to 299999.999us",
        ),
        (&["stop=50ms"], "all flows stop before the warm-up of 100ms ends"),
    ] {
        let refused = one_line(&setup(Preset::Incast, settings).star().unwrap_err());
        assert!(refused.contains(expected), "{refused}");
    }
    let late = one_line(&setup(Preset::Incast, &["warm-up=1s"]).star().unwrap_err());
    assert!(late.contains("warm-up = 1s is out of range"), "{late}");
}

#[test]
fn unread_parameters_have_no_effect() {
    let ends = |key: &Key| {
        let (low, high) = key.range().into_inner();
        [low, key.default(), high].map(|value| Assignment { key: *key, value })
    };
    let other_class = |key: &Key| {
        let text = key.to_string();
        text.contains('.') && !text.contains(".3")
    };
    let keys: Vec<Key> = Key::all().filter(|key| is_unread(&key.to_string())).collect();
    assert!(keys.len() > UNREAD.len());
    for key in keys.iter().filter(|key| !other_class(key)) {
        let outcome = |change| {
            let mut setup = setup(Preset::Incast, &["flows=4", "duration=1ms"]);
            setup.changes.push(change);
            let star = setup.star().ok()?;
            Some(star.run(1, &mut |_| std::ops::ControlFlow::Continue(())).unwrap())
        };
        let outcomes: Vec<_> = ends(key).into_iter().filter_map(outcome).collect();
        assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]), "{key}");
    }
    let refuse = |changes: &[&str]| {
        refuse_unread(&changes.iter().map(|change| change.parse().unwrap()).collect::<Vec<Assignment>>())
    };
    let refused = refuse(&["rpg_ai_rate=1mbit", "pfc.3.xoff=1KB"]).unwrap_err().to_string();
    assert_eq!(refused, "pfc.3.xoff has no effect in a simulation; omit it");
    assert!(refuse(&["rpg_ai_rate=1mbit", "wred.3.kmin=1KB", "tail_loss_probe_floor=1ms"]).is_ok());
}

#[test]
fn settings_without_effect_found() {
    for (preset, settings, flag, needs) in [
        (Preset::Incast, &["xoff=1MB"][..], "--xoff", "--pfc on"),
        (Preset::Incast, &["xon=1KB", "pfc=off"], "--xon", "--pfc on"),
        (Preset::Incast, &["outstanding=4"], "--outstanding", "--block"),
        (Preset::Incast, &["tcp-law=dctcp"], "--tcp-law", "--tcp"),
        (Preset::Incast, &["load=20%"], "--load", "--flow-sizes"),
        (Preset::Incast, &["step=1ms"], "--step", "`sim staircase` with 3 flows or more"),
        (Preset::Incast, &["classes=on"], "--classes", "`sim coexist`"),
        (Preset::Incast, &["sample=1ms"], "--sample", "--csv or --plot"),
        (Preset::Incast, &["wred.4.kmax=1MB"], "wred.4.kmax", "ECN-capable flows in class 4"),
        (Preset::Incast, &["tcp=1", "wred.0.kmax=1MB"], "wred.0.kmax", "ECN-capable flows in class 0"),
        (Preset::Incast, &["control=off", "rpg_ai_rate=1mbit"], "rpg_ai_rate", "--control on"),
        (Preset::Incast, &["control=off", "profile=nvidia"], "--profile", "--control on"),
        (
            Preset::Incast,
            &["tail_loss_probe_floor=1ms"],
            "tail_loss_probe_floor",
            "`sim fabric --recovery probe`",
        ),
        (Preset::Coexist, &["classes=off", "kmax=1MB"], "wred.3.kmax", "ECN-capable flows in class 3"),
    ] {
        let found = setup(preset, settings).without_effect();
        assert_eq!(found, [(flag.to_owned(), needs.to_owned())], "{settings:?}");
    }
    for (preset, settings) in [
        (Preset::Incast, &["pfc=on", "xoff=1MB", "xon=1KB", "block=1KB", "outstanding=4"][..]),
        (Preset::Incast, &["tcp=1", "tcp-law=dctcp", "wred.0.kmax=1MB", "kmin=1KB", "profile=nvidia"]),
        (Preset::Coexist, &["outstanding=8", "tcp-law=dctcp", "classes=off"]),
        (Preset::Staircase, &["step=1ms", "sample=1ms"]),
    ] {
        assert_eq!(setup(preset, settings).without_effect(), [], "{settings:?}");
    }
}
