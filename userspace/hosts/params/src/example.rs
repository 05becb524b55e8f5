//! The example file: all settings with meaning and default, generated from the parameter tables.

use std::fmt::Write;

use clap::ValueEnum;
use dcqcn_common::layout::{CLASSES, DEFAULT_FLOWS, MAX_FLOWS, WAYS};
use dcqcn_common::params::{Config, Unit};

use super::choice::{PacerChoice, QueuesChoice, Role, XdpModeChoice, word, words};
use super::key::Key;
use super::profile::Profile;
use super::save::{assignment, table_and_name};

const HEADER: &str = "\
# dcqcn configuration. `dcqcn attach IFACE --config FILE` and `dcqcn run` read it, `dcqcn config check FILE` checks it.
#
# Settings at the top apply to all interfaces. At the end of the file, [[interface]] selects interfaces for `dcqcn run`.
# Specify only what differs from the defaults. Every setting is listed below with its default, commented out by `#` without
# a space: remove the `#` and change the value. Settings override the profile and the role; options on the command line
# override the file. Sizes are in bytes (K = 1000, Ki = 1024), rates in bit/s.
";

/// An example of the interfaces, and of the daemon's sections.
pub const DAEMON_EXAMPLE: &str = r#"[[interface]]
name = "eth*"            # a name, altname or pattern (* ? [a-f]); of several [[interface]] that match, the first is used
#driver = "mlx5_core"    # also mac, pci, rdma; an interface must match all that are given
role = "host"            # from here on any setting, see `dcqcn config example`
#profile = "auto"        # by link speed: lab up to 1 Gbit/s, paper above
pacer = "auto"
#repair = "programs"     # what is restored if another program removes it: none, programs, or all (with the qdisc)
#inline = "eth1"         # a bump in the wire; needs a name, not a pattern
[interface.parameters]
link_rate = "25gbit"
[interface.wred.3]
kmin = "100KB"

[metrics]
listen = "127.0.0.1:9310"
#top_qps = 20            # series of the busiest flows of each interface (0 to 1000)

[age]
idle = "10min"           # remove flows silent for this time (1s to 7d); default: never

[log]
format = "json"          # or text; `--log-format` overrides it
filter = "info"          # syntax of DCQCN_LOG, which overrides it

[control]                # enables the control socket
#socket = "/run/dcqcn/control"
group = "dcqcn-fleet"    # its members may use the socket; default: root only

[fleet]                  # changes permitted over the socket; default: none
allow = ["wred.*.kmin = 50KB..500KB", "wred.*.kmax = 200KB..2MB", "rpg_ai_rate"]
#state = "/var/lib/dcqcn/fleet.json"
"#;

/// A top-level entry of the file.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub key: &'static str,
    pub doc: &'static str,
    /// Allowed words; empty for a number.
    pub words: fn() -> Vec<String>,
    /// Default, as written in the file.
    pub default: fn() -> String,
}

/// Top-level entries of the file, before the tables of parameters.
pub const ENTRIES: [Entry; 6] = [
    Entry {
        key: "role",
        doc: "host: notification and reaction point (np_enable, rp_enable). switch: congestion point (cp_enable).",
        words: words::<Role>,
        default: quoted::<Role>,
    },
    Entry {
        key: "profile",
        doc: "The DCQCN paper, NVIDIA's firmware, HPCC's simulator, Intel's driver, the paper slowed down; auto: by the link's speed.",
        words: words::<Profile>,
        default: || format!("\"{}\"", word(&Profile::Auto)),
    },
    Entry {
        key: "pacer",
        doc: "Mechanism that enforces rates. auto: fq if the kernel has it, else htb.",
        words: words::<PacerChoice>,
        default: quoted::<PacerChoice>,
    },
    Entry {
        key: "queues",
        doc: "Strict and weighted queues for all traffic, by DSCP. auto: qdisc ets if the kernel has it, else htb.",
        words: words::<QueuesChoice>,
        default: quoted::<QueuesChoice>,
    },
    Entry {
        key: "xdp_mode",
        doc: "XDP mode of an inline attachment. auto: in the driver if possible, else on socket buffers.",
        words: words::<XdpModeChoice>,
        default: quoted::<XdpModeChoice>,
    },
    Entry {
        key: "flows",
        doc: "Flows per table (208 bytes at the RP, 88 at the NP). Default: 65536; 16384 below 10 Gbit/s, 1024 if it only marks.",
        words: Vec::new,
        default: || DEFAULT_FLOWS.to_string(),
    },
];

fn quoted<T: ValueEnum + Default>() -> String {
    format!("\"{}\"", word(&T::default()))
}

pub fn example(config: &Config) -> String {
    let mut text = HEADER.to_owned();
    // Writing into a `String` cannot fail.
    let _ = write_example(&mut text, config);
    text.push_str("\n# The interfaces, and the sections for `dcqcn run`.\n");
    DAEMON_EXAMPLE.lines().for_each(|line| text.extend(["#", line, "\n"]));
    text
}

fn write_example(text: &mut String, config: &Config) -> std::fmt::Result {
    for Entry { key, doc, words, default } in &ENTRIES {
        let allowed = match words() {
            words if words.is_empty() => format!("{WAYS} to {MAX_FLOWS}"),
            words => words.join(", "),
        };
        writeln!(text, "\n# {doc}\n# Allowed: {allowed}.\n#{key} = {}", default())?;
    }
    let mut table = String::new();
    for key in Key::all().filter(|key| !key.follows_from_attach()) {
        let key_name = key.to_string();
        let (of, name) = table_and_name(&key_name);
        if of != table {
            of.clone_into(&mut table);
            writeln!(text, "{}\n[{table}]", heading(of))?;
        }
        if matches!(key, Key::Scalar(_) | Key::Wred(0, _) | Key::Queue(0, _) | Key::Pfc(0, _)) {
            describe(text, key)?;
        }
        if !matches!(key, Key::DscpToTc(_)) || key.get(config) != 0 {
            writeln!(text, "#{}", assignment(name, key, key.get(config)))?;
        }
    }
    Ok(())
}

fn heading(table: &str) -> String {
    let last = CLASSES - 1;
    match table {
        "wred.0" => {
            format!("\n# WRED per traffic class: [wred.0] to [wred.{last}] have the same parameters.\n")
        }
        "dscp_to_tc" => {
            format!("\n# Traffic class of each DSCP, 0 to {last}; unlisted ones are in class 0.")
        }
        "tc_to_queue" => format!("\n# Queue of each traffic class, 0 to {last}."),
        "queue.0" => format!(
            "\n# Queues, unless `queues` is none: [queue.0] to [queue.{last}] have the same parameters.\n"
        ),
        "pfc.0" => {
            format!("\n# PFC: [pfc.0] to [pfc.{last}], one for each priority, have the same parameters.\n")
        }
        _ => String::new(),
    }
}

/// The comment above a parameter: meaning, range, default, and effect of a larger value.
fn describe(text: &mut String, key: Key) -> std::fmt::Result {
    writeln!(text, "\n# {}", key.doc())?;
    let default = match key.unit() {
        Unit::Switch | Unit::Choice(_) => String::new(),
        _ => format!(" Default: {}.", key.default_text()),
    };
    writeln!(text, "# Allowed: {}.{default}", key.allowed())?;
    if !key.larger().is_empty() {
        writeln!(text, "# Larger: {}", key.larger())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dcqcn_common::flow::{NpSet, RpSet};
    use dcqcn_common::layout::DSCPS;

    use super::super::{Settings, parse};
    use super::*;

    /// The example with every setting active.
    fn active_lines(example: &str) -> String {
        let setting = |line: &str| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
            _ => line.to_owned(),
        };
        // Without interfaces, which override the settings.
        let settings = example.split("#[[interface]]").next().unwrap_or(example);
        settings.lines().map(setting).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn example_equals_defaults() {
        let text = example(&Config::DEFAULT);
        assert_eq!(parse("example", &text), Ok(Settings::default()));
        let settings = parse("example", &active_lines(&text)).unwrap();
        assert_eq!(settings.config(None), Ok(Config::DEFAULT));
        assert_eq!((settings.role, settings.profile), (Some(Role::Host), Some(Profile::Auto)));
        assert_eq!((settings.pacer, settings.xdp_mode), (Some(PacerChoice::Auto), Some(XdpModeChoice::Auto)));
        assert_eq!(settings.flows, Some(DEFAULT_FLOWS));
        // All parameters but `pacer` and `queues`; of the DSCPs, the two outside class 0.
        assert_eq!(settings.changes.len(), Key::all().count() - 2 - (DSCPS - 2));
    }

    #[test]
    fn profile_example_equals_profile() {
        let lab = Profile::Lab.config(Some(200_000_000)).unwrap();
        let settings = parse("lab", &active_lines(&example(&lab))).unwrap();
        assert_eq!(settings.config(None), Ok(lab));
    }

    #[test]
    fn example_lines_short_and_complete() {
        let text = example(&Config::DEFAULT);
        for line in text.lines() {
            assert!(line.chars().count() <= 130, "{line}");
        }
        let ai = "# Step of additive increase (paper: R_AI, 40 Mbit/s).\n# Allowed: 1kbit to 800gbit. \
                  Default: 40mbit.\n# Larger: Faster growth, deeper queue, less stable.\n#rpg_ai_rate = \"40mbit\"\n";
        assert!(text.contains(ai), "{text}");
        let [rp, np] = [size_of::<RpSet>(), size_of::<NpSet>()].map(|bytes| bytes / WAYS);
        let flows = format!("({rp} bytes at the RP, {np} at the NP). Default: {DEFAULT_FLOWS};");
        assert!(text.contains(&flows), "{text}");
    }
}
