use super::*;
use crate::measure::default_limits;
use crate::rollout::Forward;
use crate::rollout::simulated::{policy, rates};

/// A healthy minute with `packets` data packets.
fn calm(packets: u64) -> Rates {
    let mut calm = rates(0);
    calm.data_packets = packets;
    for measure in MEASURES {
        let spread = if matches!(measure.source, Source::Events(_)) { 100 } else { 3 };
        calm.of.insert(measure.name.into(), Reading { value: 0, spread });
    }
    calm.of.insert(THROUGHPUT.into(), Reading { value: packets / 60, spread: 3 });
    calm
}

fn with(mut rates: Rates, name: &str, value: u64, spread: u64) -> Rates {
    rates.of.insert(name.into(), Reading { value, spread });
    rates
}

/// Evaluates one changed host, with metrics `before` and `now`, and an unchanged one, with metrics
/// `control.0` and `control.1`.
fn evaluate_with(before: Rates, now: Rates, control: (Rates, Rates)) -> Verdict {
    evaluated_hosts(1, before, now, control)
}

fn evaluated_hosts(number: usize, before: Rates, now: Rates, control: (Rates, Rates)) -> Verdict {
    let (rollout, control, hosts) = case(number, before, now, control);
    evaluate(&rollout, &control, &hosts)
}

fn case(number: usize, before: Rates, now: Rates, control: (Rates, Rates)) -> (Rollout, Control, Hosts) {
    let step = |host: String, wave: usize, state: State| Step {
        host,
        wave,
        target: Target::default(),
        former: Target::default(),
        state,
        before: Some(before.clone()),
        complaints: Vec::new(),
        is_retry: false,
    };
    let names: Vec<String> = (1..=number).map(|number| format!("h{number}")).collect();
    let changed = names.iter().map(|name| step(name.clone(), 0, State::Applied { silent_ms: None }));
    let steps: Vec<Step> = changed.chain([step("other".into(), 1, State::Waiting)]).collect();
    let seen = |rates: &Rates| ReceivedReport {
        report: Report { rates: rates.clone(), ..Report::default() },
        revision: 1,
    };
    let earlier: Hosts = [("other".to_owned(), seen(&control.0))].into();
    let mut hosts: Hosts = names.iter().map(|name| (name.clone(), seen(&now))).collect();
    hosts.insert("other".into(), seen(&control.1));
    let control = Control::of(&steps, 0, &earlier);
    let mut rollout =
        crate::rollout::plan(&Version::default(), &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new());
    (rollout.policy, rollout.steps) = (policy(1, 1, 1), steps);
    rollout.phase = Phase::Forward(Forward::default());
    let drops = Limit { times: 1.5, plus: 10 };
    rollout.policy.gate.limits.insert("interface_drops".into(), drops);
    (rollout, control, hosts)
}

fn evaluated(now: Rates) -> Verdict {
    evaluate_with(calm(100_000), now, (calm(100_000), calm(100_000)))
}

const GOOD: Verdict = Verdict::Good { evaluated: 1, changed: 1, undecided: 0 };
const UNDECIDED: Verdict = Verdict::Good { evaluated: 0, changed: 1, undecided: 1 };
const UNJUDGED: Verdict = Verdict::Good { evaluated: 0, changed: 1, undecided: 0 };

#[test]
fn each_metric_detects_harm() {
    assert_eq!(evaluated(calm(100_000)), GOOD);
    for measure in MEASURES {
        let name = measure.name;
        let now = match measure.source {
            Source::Events(_) => with(calm(100_000), name, 200, 100),
            Source::Level(_) => with(calm(100_000), name, 60, 0),
            Source::Throughput => with(calm(100_000), name, 100_000 / 60 / 2, 3),
        };
        let Verdict::Bad(why) = evaluated(now) else { panic!("{name} is not found") };
        assert!(why.starts_with("h1 has ") && why.contains(&format!("([gate] {name} = ")), "{why}");
    }
}

#[test]
fn rare_event_is_not_harm() {
    for name in ["drops", "rdma_errors", "interface_drops", "marks"] {
        for packets in [1_000, 100_000] {
            // One event, two events, and a burst of fifty.
            for (value, spread) in [(1, 100), (2, 100), (50, 5_000)] {
                let before = (calm(packets), calm(packets));
                let now = with(calm(packets), name, value, spread);
                assert_eq!(evaluate_with(calm(packets), now, before), GOOD, "{value} {name} of {packets}");
            }
        }
    }
    assert!(!default_limits().contains_key("interface_drops"), "off unless requested");
}

#[test]
fn half_throughput_is_harm_unless_shared() {
    let half = with(calm(50_000), THROUGHPUT, 833, 3);
    assert!(matches!(evaluated(half.clone()), Verdict::Bad(_)));
    assert_eq!(evaluated(Rates { queue_pairs: Some(0), ..half.clone() }), GOOD, "the job has ended");
    let slower = (calm(100_000), with(calm(50_000), THROUGHPUT, 833, 3));
    assert_eq!(evaluate_with(calm(100_000), half, slower), GOOD);
    // Bursty traffic may halve by chance.
    let bursty = with(calm(100_000), THROUGHPUT, 1_666, 300);
    let less = with(calm(50_000), THROUGHPUT, 833, 300);
    assert_eq!(evaluate_with(bursty, less, (calm(100_000), calm(100_000))), GOOD);
}

#[test]
fn unknown_spread_is_undecided() {
    let unknown = |packets: u64| with(calm(packets), THROUGHPUT, packets / 60, UNKNOWN_SPREAD);
    let control = (calm(100_000), calm(100_000));
    assert_eq!(evaluated(unknown(50_000)), UNDECIDED, "now");
    assert_eq!(evaluate_with(unknown(100_000), calm(50_000), control.clone()), UNJUDGED, "no baseline");
    let ended = Rates { queue_pairs: Some(0), ..calm(50_000) };
    assert_eq!(evaluate_with(unknown(100_000), ended, control.clone()), GOOD, "the job has ended");
    let marked = with(unknown(100_000), "marks", 20_000, 100);
    assert!(matches!(evaluated(marked), Verdict::Bad(_)), "other metrics are evaluated");
    assert_eq!(evaluated(Rates { queue_pairs: Some(0), ..unknown(50_000) }), GOOD, "the job has ended");
    assert_eq!(evaluate_with(calm(0), unknown(100_000), control), GOOD, "no traffic before");
}

#[test]
fn half_throughput_of_bursty_hosts_is_harm() {
    let bursty = with(calm(100_000), THROUGHPUT, 1_666, 220);
    let less = with(calm(50_000), THROUGHPUT, 833, 220);
    let control = (calm(100_000), calm(100_000));
    let few = evaluated_hosts(3, bursty.clone(), less.clone(), control.clone());
    assert!(matches!(few, Verdict::Good { evaluated: 3, .. }), "{few:?}");
    let Verdict::Bad(why) = evaluated_hosts(20, bursty.clone(), less.clone(), control.clone()) else {
        panic!("not found")
    };
    assert!(why.starts_with("the 20 changed hosts together have 16660 data packets per second"), "{why}");
    let slower = (calm(100_000), with(calm(50_000), THROUGHPUT, 833, 3));
    assert!(matches!(evaluated_hosts(20, bursty.clone(), less.clone(), slower), Verdict::Good { .. }));
    let ended = Rates { queue_pairs: Some(0), ..less };
    assert!(matches!(evaluated_hosts(20, bursty, ended, control), Verdict::Good { .. }), "jobs have ended");
}

#[test]
fn unknown_spread_does_not_hide_the_sum() {
    let bursty = with(calm(100_000), THROUGHPUT, 1_666, 220);
    let less = with(calm(50_000), THROUGHPUT, 833, 220);
    let control = (calm(100_000), calm(100_000));
    let (mut rollout, control, mut hosts) = case(21, bursty, less.clone(), control);
    let unknown = |value| with(calm(100_000), THROUGHPUT, value, UNKNOWN_SPREAD);
    rollout.steps[0].before = Some(unknown(1_666));
    assert!(matches!(evaluate(&rollout, &control, &hosts), Verdict::Bad(_)), "no baseline");
    rollout.steps[0].before = Some(calm(100_000));
    hosts.get_mut("h1").unwrap().report.rates = unknown(833);
    assert!(matches!(evaluate(&rollout, &control, &hosts), Verdict::Bad(_)), "too few samples since");
}

#[test]
fn silence_is_harm_while_queue_pairs_remain() {
    let silent = |queue_pairs| Rates { quiet_ms: 30_000, queue_pairs, ..with(calm(0), THROUGHPUT, 0, 0) };
    for queue_pairs in [Some(4), None] {
        let Verdict::Bad(why) = evaluated(silent(queue_pairs)) else { panic!("silence is not found") };
        assert!(why.starts_with("h1 has had no data packet for 30 s"), "{why}");
    }
    assert_eq!(evaluated(silent(Some(0))), UNJUDGED, "the job has ended");
    let both = (calm(100_000), silent(Some(4)));
    assert_eq!(evaluate_with(calm(100_000), silent(Some(4)), both), UNJUDGED, "everywhere");
    let pauses = Rates { gap_ms: 20_000, ..calm(100_000) };
    assert_eq!(evaluate_with(pauses, silent(Some(4)), (calm(1), calm(1))), UNDECIDED, "as long as before");
}

#[test]
fn metric_missing_in_old_agent_is_skipped() {
    let mut now = with(calm(100_000), "drops", 500, 100);
    now.of.remove("drops");
    assert_eq!(evaluated(now), GOOD);
}

#[test]
fn bound_follows_the_poisson_tail() {
    // P(X >= 3) of mean 0.01 is 1.7e-7, of mean 0.5 is 0.014; P(X >= 150) of mean 100 is 2e-6.
    assert!(exceeds(3.0, 0.01, 1e-4) && !exceeds(3.0, 0.5, 1e-4));
    assert!(exceeds(150.0, 100.0, 1e-4) && !exceeds(120.0, 100.0, 1e-4));
    assert!(!exceeds(5.0, 5.0, 0.5) && !exceeds(0.0, 0.0, 0.5) && exceeds(1.0, 0.0, 1e-9));
}
