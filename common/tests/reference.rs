//! The reference pages of parameters and counters, generated from their tables by `cargo xtask docs`.

use std::path::Path;
use std::{env, fs};

use dcqcn_common::params::{PfcConfig, Quantity, QueueConfig, Scalars, Spec, WredConfig};
use dcqcn_common::stats::Stat;

/// Compares a page with its file, or writes it.
fn page(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    let failed = |error| panic!("{}: {error}", path.display());
    if env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap_or_else(failed);
    }
    let stored = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(stored == text, "{} differs from the code: run `cargo xtask docs`", path.display());
}

/// First parameter of each section, and its title.
const SECTIONS: [(&str, &str); 6] = [
    ("cp_enable", "Points of DCQCN, the link, and the congestion point"),
    ("min_time_between_cnps", "Notification point"),
    ("rp_variant", "Reaction point"),
    ("pacer", "Pacing"),
    ("event_rate", "Event log"),
    ("trim_dscp_value", "Trimming"),
];

/// A cell of a table, with bars escaped.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

fn row<T>(prefix: &str, spec: &Spec<T>) -> String {
    format!(
        "| `{prefix}{}` | {} | {} | {} | {} |\n",
        spec.key,
        spec.allowed,
        Quantity(spec.default, spec.allowed.unit),
        cell(spec.doc),
        cell(spec.larger)
    )
}

fn rows<T>(prefix: &str, specs: &[Spec<T>]) -> String {
    specs.iter().map(|spec| row(prefix, spec)).collect()
}

const HEADING: &str = "| parameter | allowed | default | meaning | larger |\n|---|---|---|---|---|\n";

#[test]
fn parameter_reference_matches_code() {
    let mut text = "\
# Parameters
*For operators, and for comparison with NICs and switches; written by `cargo xtask docs` from the code.*

Names are those of NVIDIA's NICs and of SONiC where these have one. `dcqcn set IFACE KEY=VALUE` changes any of them under traffic,
`dcqcn get` shows them; a file has them in `[parameters]`, `[wred.TC]`, `[queue.N]` and `[pfc.N]` ([configuration files](configuration.md)). Quantities
are written with their unit: `100KB` (1,000 bytes to a KB), `64KiB`, `40mbit`, `25gbit`, `55us`, `2ms`, `1%`. A bare number of bytes
or bit/s must be 0, or at least 1,500 bytes (unless the largest value is less) or 1,000,000 bit/s. The defaults are profile
`paper`'s; [profiles](../how-to/choose-a-profile.md) have others.
"
    .to_owned();
    for spec in Scalars::SPECS {
        if let Some((_, title)) = SECTIONS.iter().find(|(first, _)| *first == spec.key) {
            text += &format!("\n## {title}\n\n{HEADING}");
        }
        text += &row("", spec);
    }
    for (first, _) in SECTIONS {
        assert!(Scalars::SPECS.iter().any(|spec| spec.key == first), "{first}");
    }
    text += &format!("\n## WRED of a traffic class\n\nTC is 0 to 7.\n\n{HEADING}");
    text += &rows("wred.TC.", WredConfig::SPECS);
    text += &format!(
        "\n## Queue of a port\n\nN is 0 to 7. They need an interface attached with `--queues` ([queues](../how-to/queues.md)); \
         queue 6 is `strict` by default.\n\n{HEADING}"
    );
    text += &rows("queue.N.", QueueConfig::SPECS);
    text += &format!(
        "\n## PFC of a priority\n\nN is 0 to 7; the queue defaults to N ([PFC](../how-to/pfc.md)).\n\n{HEADING}"
    );
    text += &rows("pfc.N.", PfcConfig::SPECS);
    text += "
## Tables

| parameter | allowed | default | meaning |
|---|---|---|---|
| `dscp_to_tc.DSCP` | 0 to 7 | 26: 3, 48: 6, others: 0 | traffic class of a DSCP, 0 to 63 |
| `tc_to_queue.TC` | 0 to 7 | 3: 3, 6: 6, others: 0 | queue of a traffic class |
";
    page("parameters.md", &text);
}

#[test]
fn counter_reference_matches_code() {
    let mut text = "\
# Counters
*For operators who read `dcqcn counters`, the metrics or `dcqcn top`; written by `cargo xtask docs` from the code.*

Each is counted per hook (TC ingress, TC egress, XDP) since the attachment. `np_ecn_marked_roce_packets`, `np_cnp_sent`,
`rp_cnp_handled` and `rp_cnp_ignored` have the meaning of mlx5's counters of the same name. As a metric each is
`dcqcn_COUNTER_total` ([metrics](metrics.md)).

| counter | counts |
|---|---|
"
    .to_owned();
    for stat in Stat::ALL {
        text += &format!("| `{}` | {} |\n", stat.label(), cell(stat.doc()));
    }
    text += "
For each traffic class a congestion point counts `packets`, `bytes`, `ect_packets` (ECT or CE on arrival) and
`ecn_marked_packets` (marked here): `dcqcn queues`.
";
    page("counters.md", &text);
}
