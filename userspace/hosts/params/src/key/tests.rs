use proptest::prelude::*;

use super::*;

impl Key {
    /// A valid value, chosen by a number.
    pub(crate) fn valid_value(self, number: u64) -> u64 {
        let Allowed { min, max, unit, .. } = self.allowed_values();
        let value = match unit {
            Unit::OneOf(numbers) => numbers[number as usize % numbers.len()],
            _ => min + number % (max - min + 1),
        };
        if self.allowed_values().contains(value) { value } else { 0 }
    }
}

#[test]
fn every_key_and_default_round_trips() {
    let mut count = 0;
    for key in Key::all() {
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.parse_value(&key.text(&Config::DEFAULT)), Ok(key.default()), "{key}");
        let mut config = Config::DEFAULT;
        for value in [*key.range().start(), *key.range().end()] {
            key.set(&mut config, value).unwrap();
            assert_eq!(key.get(&config), value);
            assert_eq!(key.parse_value(&key.text(&config)), Ok(value), "{key}");
        }
        assert!(!key.doc().is_empty());
        count += 1;
    }
    let of_class = WredConfig::SPECS.len() + QueueConfig::SPECS.len() + PfcConfig::SPECS.len() + 1;
    assert_eq!(count, Scalars::SPECS.len() + CLASSES * of_class + DSCPS);
}

#[test]
fn assignments_are_key_and_value() {
    let assignment: Assignment = "wred.3.pmax=0.5%".parse().unwrap();
    assert_eq!((assignment.key.to_string().as_str(), assignment.value), ("wred.3.pmax", 5_000));
    let refused = "rpg_ai_rate 40mbit".parse::<Assignment>().unwrap_err();
    assert_eq!(refused.to_string(), "`rpg_ai_rate 40mbit` is not KEY=VALUE, as in `rpg_ai_rate=40mbit`");
}

#[test]
fn rejected_set_keeps_config() {
    let mut config = Config::DEFAULT;
    set(&mut config, "wred.3.kmax", "1.5MB").unwrap();
    set(&mut config, "link_rate", "1gbit").unwrap();
    set(&mut config, "dscp_to_tc.10", "3").unwrap();
    assert_eq!("wred.3.kmax".parse::<Key>().unwrap().text(&config), "1.5MB");
    assert_eq!((config.wred[3].kmax_bytes, config.dscp_to_tc[10]), (1_500_000, 3));
    let before = config;
    for (key, text, expected) in [
        ("rpg_ai_rat", "1", "unknown parameter `rpg_ai_rat`: did you mean `rpg_ai_rate`?"),
        ("rpg_ai", "1", "did you mean `rpg_ai_rate`?"),
        ("kmin", "1", "unknown parameter `kmin`"),
        ("wred.3.kmn", "1", "did you mean `wred.3.kmin`?"),
        ("wred.9.kmin", "1", "`wred.9.kmin`: wred is numbered 0 to 7"),
        ("dscp_to_tc.64", "1", "numbered 0 to 63"),
        ("tc_to_queue.+1", "1", "numbered 0 to 7"),
        ("zzzzzzzzzzzzzzzzzz", "1", "unknown parameter `zzzzzzzzzzzzzzzzzz`; `dcqcn config example`"),
        ("rpg_time_reset", "55", "rpg_time_reset = `55` has no unit"),
        ("wred.3.kmin", "100", "wred.3.kmin = `100` has no unit: write bytes, as in `100KB`"),
        ("rpg_byte_reset", "1499.0", "rpg_byte_reset = `1499.0` has no unit"),
        ("link_rate", "400000", "link_rate = `400000` has no unit: write a rate, as in `40mbit`"),
        ("rpg_ai_rate", "10bit", "rpg_ai_rate = 10bit is out of range: 1kbit to 800gbit"),
        ("dscp_to_tc.10", "8", "dscp_to_tc.10 = 8 is out of range: 0 to 7"),
        ("rpg_byte_reset", "999B", "rpg_byte_reset = 999B is out of range: 1KB to 10GB, or 0"),
        ("rpg_time_reset", "1ns", "rpg_time_reset = 1ns is out of range: 1us to 10s, or 0"),
        ("wred.3.drain_rate", "1kbit", "wred.3.drain_rate = 1kbit is out of range: 100kbit to 800gbit, or 0"),
        ("alpha_bits", "9", "alpha_bits = 9 is out of range: 10 or 31"),
        ("alpha_bits", "20", "alpha_bits = 20 is out of range: 10 or 31"),
        ("wred.3.kmin", "2MB", "wred.3.kmin = 2MB is above wred.3.kmax = 1.5MB"),
        ("rpg_max_rate", "2gbit", "rpg_max_rate = 2gbit is above the link's 1gbit"),
        ("pacer", "fq", "pacer cannot be set; use `attach --pacer`"),
        ("queues", "ets", "queues cannot be set; use `attach --queues`"),
        ("queue.3.weight", "0", "queue.3.weight = 0 is out of range: 1 to 100"),
        ("queue.8.weight", "1", "`queue.8.weight`: queue is numbered 0 to 7"),
        ("queue.3.scheduler", "wfq", "queue.3.scheduler = "),
        ("rpg_min_rate", "2gbit", "rpg_min_rate = 2gbit is above the link's 1gbit"),
    ] {
        let message = set(&mut config, key, text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(config, before, "{key} = {text}");
    }
}

#[test]
fn plausible_bare_numbers_accepted() {
    for (key, text, value) in [
        ("wred.3.kmin", "1500", 1_500),
        ("wred.3.kmin", "0", 0),
        ("wred.3.kmin", "100B", 100),
        ("wire_overhead", "24", 24),
        ("link_rate", "1000000", 1_000_000),
        ("rpg_ai_rate", "40000bit", 40_000),
        ("cnp_rate", "20", 20),
    ] {
        assert_eq!(key.parse::<Key>().unwrap().parse_value(text), Ok(value), "{key} = {text}");
    }
}

proptest! {
    #[test]
    fn any_name_and_value_handled(name in "[a-z0-9_.]{0,20}", text in "\\PC{0,10}") {
        let mut config = Config::DEFAULT;
        let _ = set(&mut config, &name, &text);
        let _ = set(&mut config, &text, &name);
        prop_assert!(config.validate().is_ok());
    }

    #[test]
    fn every_key_round_trips(at in 0usize..150, seed: u64) {
        let keys: Vec<Key> = Key::all().collect();
        let key = keys[at % keys.len()];
        let value = key.valid_value(seed);
        let mut config = Config::DEFAULT;
        key.set(&mut config, value).unwrap();
        prop_assert_eq!(key.parse_value(&key.text(&config)), Ok(value));
    }
}
