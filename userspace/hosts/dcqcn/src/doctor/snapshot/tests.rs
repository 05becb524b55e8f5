use super::*;

#[test]
fn parameters_round_trip() {
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = 25_000_000_000;
    config.scalars.pacer = 1;
    config.wred[3].pmax_ppm = 200_000;
    config.dscp_to_tc[24] = 3;
    let written = parameters(&config);
    assert_eq!(written.len(), 4, "{written:?}");
    assert_eq!(super::config(&written), Ok(config));
}

#[test]
fn invalid_parameters_reported() {
    let of = |key: &str, value: &str| config(&[(key.to_owned(), value.to_owned())].into()).unwrap_err();
    assert!(of("rpg_ai_rat", "1mbit").contains("rpg_ai_rate"));
    assert!(of("rpg_gd", "99").contains("10 to 15"));
    assert!(of("wred.3.kmin", "1GB").contains("above"));
}

#[test]
fn growth_between_samples_counted() {
    let texts = [
        "NIC statistics:\n     rx_prio3_pause: 5\n     other: 1\n",
        "NIC statistics:\n     rx_prio3_pause: 9\n     tx_prio3_pause: 2\n     other: 7\n     bad: x\n",
    ];
    let link = Link { ethtool: Some(texts.map(str::to_owned)), ..Link::default() };
    let grown = link.grown(|name| name.ends_with("_pause"));
    let expected = [("rx_prio3_pause".to_owned(), 4), ("tx_prio3_pause".to_owned(), 2)];
    assert_eq!(grown, expected.into());
    assert_eq!(Link::default().grown(|_| true), BTreeMap::new());
}
