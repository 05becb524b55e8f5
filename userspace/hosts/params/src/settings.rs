//! Settings of an attachment, from the command line and files: changes to the defaults.

use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_common::layout::DSCPS;
use dcqcn_common::params::Config;

use super::choice::{PacerChoice, QueuesChoice, Role, XdpModeChoice, word};
use super::key::{Assignment, Key, SetError};
use super::profile::{Profile, ProfileError};

/// Settings; absent ones have their default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub role: Option<Role>,
    pub profile: Option<Profile>,
    /// Other interface of an inline attachment.
    pub inline: Option<String>,
    pub pacer: Option<PacerChoice>,
    pub queues: Option<QueuesChoice>,
    pub xdp_mode: Option<XdpModeChoice>,
    pub flows: Option<u32>,
    /// Log one in this many packets; `None` = none.
    pub log_packets: Option<u32>,
    /// Parameter changes, in order.
    pub changes: Vec<Assignment>,
}

/// Properties of an interface that are known without settings: detected when attaching, or active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetectedLink {
    pub link_rate_bps: Option<u64>,
    pub wire_overhead_bytes: u64,
    /// `np_other_host`: it forwards frames for other hosts, as a bridge port does.
    pub other_host: bool,
    /// `queue_limit` of the classes with a DSCP: bytes that its shaper queues; 0 = no limit, or unknown.
    pub queue_limit_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(
        "inline = \"{0}\" only marks: set role = \"switch\", and np_enable, rp_enable and fast_cnp to false"
    )]
    InlineOnlyMarks(String),
    #[error(
        "inline = \"{0}\" forwards before any qdisc: set queues = \"none\", or attach each port separately"
    )]
    InlineQueues(String),
    #[error("xdp_mode = \"{0}\" is for inline attachments only: remove it, or set inline")]
    XdpUnused(String),
    #[error(
        "queues = \"{queues}\" and pacer = \"{pacer}\" both replace the root qdisc: set role = \"switch\", or \
         pacer = \"none\""
    )]
    QueuesAndPacer { queues: String, pacer: String },
    #[error(
        "flows = {0} is out of range with pacer = \"htb\": 8 to {HTB_MAX_FLOWS}; lower it, or set pacer = \"fq\""
    )]
    FlowsOfHtb(u32),
    #[error(
        "{key} = {value} needs the {program} program, which this attachment does not have: attach with {remedy}"
    )]
    Program { key: &'static str, value: String, program: &'static str, remedy: &'static str },
}

/// Usual link rates, with which settings are checked if the link's rate is unknown.
const LINKS_MBIT: [u64; 10] =
    [100, 1_000, 10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000];

impl Settings {
    /// These settings overlaid with `later`, which takes precedence.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        let Self { role, profile, inline, pacer, queues, xdp_mode, flows, log_packets, changes } = later;
        self.changes.retain(|change| !changes.iter().any(|later| later.key == change.key));
        self.changes.extend(changes);
        Self {
            role: role.or(self.role),
            profile: profile.or(self.profile),
            inline: inline.or(self.inline),
            pacer: pacer.or(self.pacer),
            queues: queues.or(self.queues),
            xdp_mode: xdp_mode.or(self.xdp_mode),
            flows: flows.or(self.flows),
            log_packets: log_packets.or(self.log_packets),
            changes: self.changes,
        }
    }

    /// Options of `attach` that are set, as text by their keys in a file; packet logging is temporary and has no key.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        let Self { role, profile, inline, pacer, queues, xdp_mode, flows, log_packets: _, changes: _ } = self;
        let options = [
            ("role", role.map(|role| word(&role))),
            ("profile", profile.map(|profile| word(&profile))),
            ("pacer", pacer.map(|pacer| word(&pacer))),
            ("queues", queues.map(|queues| word(&queues))),
            ("xdp_mode", xdp_mode.map(|mode| word(&mode))),
            ("inline", inline.clone()),
            ("flows", flows.map(|flows| flows.to_string())),
        ];
        options.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }

    /// Rate of the link in bit/s, if set; `link_rate=0` is ignored.
    pub fn link_rate_bps(&self) -> Option<u64> {
        self.assigned("link_rate").filter(|bps| *bps != 0)
    }

    /// Last assigned value of a parameter outside tables.
    fn assigned(&self, name: &str) -> Option<u64> {
        let is_it = |key: Key| matches!(key, Key::Scalar(spec) if spec.key == name);
        self.changes.iter().rev().find(|change| is_it(change.key)).map(|change| change.value)
    }

    /// The configuration: the profile, then role and queues, then the changes. `link_bps` is the link's rate from
    /// another source; a setting takes precedence.
    pub fn config(&self, link_bps: Option<u64>) -> Result<Config, SettingsError> {
        let link_bps = self.link_rate_bps().or(link_bps);
        let mut config = self.profile.unwrap_or_default().config(link_bps)?;
        self.role.unwrap_or_default().apply(&mut config);
        self.queues.unwrap_or_default().apply(&mut config);
        for change in &self.changes {
            change.apply(&mut config)?;
        }
        config.validate().map_err(SetError::Invalid)?;
        Ok(config)
    }

    /// Checks settings to which other sources may add, without an interface.
    ///
    /// `auto`, `lab` and `hpcc` have other values on other links, and the link's rate is known only when attaching: one
    /// usual rate must satisfy all conditions.
    ///
    /// # Errors
    /// No attachment can have these settings.
    pub fn check(&self) -> Result<(), SettingsError> {
        let settings = self.with_attach_defaults();
        settings.check_inline(&settings.config_on_usual_link()?)
    }

    /// As [`Settings::check`], for settings to which `attach` adds only its defaults.
    pub fn check_complete(&self) -> Result<(), SettingsError> {
        let settings = self.with_attach_defaults();
        settings.check_options(&settings.config_on_usual_link()?)
    }

    fn with_attach_defaults(&self) -> Self {
        let role = self.role.or_else(|| self.inline.is_some().then_some(Role::Switch));
        Self { role, profile: self.profile.or(Some(Profile::Auto)), ..self.clone() }
    }

    fn config_on_usual_link(&self) -> Result<Config, SettingsError> {
        let mut refused = None;
        for mbit in LINKS_MBIT {
            match self.config(Some(mbit * 1_000_000)) {
                Ok(config) => return Ok(config),
                // The error of a link that the profile supports is the relevant one.
                Err(error @ SettingsError::Profile(_)) => refused = refused.or(Some(error)),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or_else(|| self.config(None), Err)
    }

    /// Checks options that exclude each other, with the configuration that they result in.
    ///
    /// # Errors
    /// `attach` refuses these settings on every interface.
    pub fn check_options(&self, config: &Config) -> Result<(), SettingsError> {
        self.check_inline(config)?;
        if let (None, Some(mode @ (XdpModeChoice::Driver | XdpModeChoice::Skb))) =
            (&self.inline, self.xdp_mode)
        {
            return Err(SettingsError::XdpUnused(word(&mode)));
        }
        // Nothing is paced without a reaction point.
        let is_paced = config.scalars.rp_enable != 0;
        let pacer = if is_paced { self.pacer.unwrap_or_default() } else { PacerChoice::None };
        let queues = self.queues.unwrap_or_default();
        if queues != QueuesChoice::None && pacer != PacerChoice::None {
            return Err(SettingsError::QueuesAndPacer { queues: word(&queues), pacer: word(&pacer) });
        }
        match self.flows {
            Some(flows) if pacer == PacerChoice::Htb && flows > HTB_MAX_FLOWS => {
                Err(SettingsError::FlowsOfHtb(flows))
            }
            _ => check_programs(config, self.programs(config)),
        }
    }

    /// Programs of an attachment: `xdp`, or `egress`, with `ingress` if it may be an end of connections.
    pub fn programs(&self, config: &Config) -> &'static [&'static str] {
        let is_end = (config.scalars.np_enable | config.scalars.rp_enable) != 0;
        match self.role.unwrap_or_default() {
            _ if self.inline.is_some() => &["xdp"],
            Role::Switch if !is_end => &["egress"],
            _ => &["ingress", "egress"],
        }
    }

    fn check_inline(&self, config: &Config) -> Result<(), SettingsError> {
        let Some(peer) = &self.inline else { return Ok(()) };
        let s = &config.scalars;
        if (s.np_enable | s.rp_enable | s.fast_cnp) != 0 {
            return Err(SettingsError::InlineOnlyMarks(peer.clone()));
        }
        match self.queues.unwrap_or_default() {
            QueuesChoice::None => Ok(()),
            _ => Err(SettingsError::InlineQueues(peer.clone())),
        }
    }

    /// The configuration of an interface: the settings, with `found` as defaults.
    pub fn config_on(&self, found: &DetectedLink) -> Result<Config, SettingsError> {
        let mut config = self.config(found.link_rate_bps)?;
        let s = &mut config.scalars;
        s.link_rate_bps = self.link_rate_bps().or(found.link_rate_bps).unwrap_or(0);
        s.wire_overhead_bytes = self.assigned("wire_overhead").unwrap_or(found.wire_overhead_bytes);
        s.np_other_host = self.assigned("np_other_host").unwrap_or(found.other_host.into());
        // Packets trimmed in another class must not be trimmed again.
        let trimmed = usize::try_from(config.scalars.trim_dscp_value).unwrap_or(DSCPS);
        let trimmed = config.dscp_to_tc.get(trimmed).map(|tc| usize::from(*tc));
        for (tc, wred) in config.wred.iter_mut().enumerate() {
            let is_limit = |key| matches!(key, Key::Wred(of, spec) if of == tc && spec.key == "queue_limit");
            let is_assigned = self.changes.iter().any(|change| is_limit(change.key));
            let is_used = config.dscp_to_tc.iter().any(|used| usize::from(*used) == tc);
            if found.queue_limit_bytes != 0 && is_used && !is_assigned && trimmed != Some(tc) {
                wred.queue_limit_bytes = found.queue_limit_bytes;
            }
        }
        Ok(config)
    }
}

/// Rejects parameters that enable a function whose program is not one of `programs`.
pub fn check_programs(config: &Config, programs: &[impl AsRef<str>]) -> Result<(), SettingsError> {
    let s = &config.scalars;
    let has = |program: &str| programs.iter().any(|name| name.as_ref() == program);
    let egress_or_inline = if has("xdp") { "xdp" } else { "egress" };
    let needs = [
        ("cp_enable", s.cp_enable, egress_or_inline, "role = \"switch\""),
        ("fast_cnp", s.fast_cnp, "egress", "role = \"switch\""),
        ("np_enable", s.np_enable, "ingress", "role = \"host\""),
        ("rp_enable", s.rp_enable, "ingress", "role = \"host\""),
        ("tail_loss_probe", s.tail_loss_probe, "ingress", "role = \"host\""),
        ("trim_nak", s.trim_nak, "ingress", "role = \"host\""),
        ("rp_enable", s.rp_enable, "egress", "role = \"host\""),
    ];
    let Some((key, value, program, remedy)) =
        needs.into_iter().find(|(_, value, program, _)| *value != 0 && !has(program))
    else {
        return Ok(());
    };
    let value = key.parse::<Key>().map_or_else(|_| value.to_string(), |key| key.text(config));
    Err(SettingsError::Program { key, value, program, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(changes: &[&str]) -> Settings {
        let changes = changes.iter().map(|change| change.parse().unwrap()).collect();
        Settings { changes, ..Settings::default() }
    }

    #[test]
    fn later_settings_take_precedence() {
        let parameters = changes(&["rpg_ai_rate=10mbit", "wred.3.kmax=1MB"]);
        let file = Settings { role: Some(Role::Switch), flows: Some(1_024), ..parameters };
        let all = file.then(Settings { pacer: Some(PacerChoice::Htb), ..changes(&["rpg_ai_rate=20mbit"]) });
        assert_eq!((all.role, all.flows), (Some(Role::Switch), Some(1_024)));
        assert_eq!(all.pacer, Some(PacerChoice::Htb));
        let config = all.config(None).unwrap();
        assert_eq!((config.scalars.cp_enable, config.scalars.rpg_ai_rate_bps), (1, 20_000_000));
        assert_eq!(config.wred[3].kmax_bytes, 1_000_000);
    }

    #[test]
    fn changes_override_role_and_profile() {
        let lab = Settings { profile: Some(Profile::Lab), ..changes(&["link_rate=250mbit", "cp_enable=on"]) };
        let config = lab.config(Some(10_000_000_000)).unwrap();
        assert_eq!((config.scalars.rpg_time_reset_ns, config.scalars.cp_enable), (4_400_000, 1));
        let unknown = Settings { profile: Some(Profile::Lab), ..Settings::default() };
        assert!(unknown.config(None).unwrap_err().to_string().contains("link_rate=200mbit"));
    }

    /// Settings take precedence, including a 0; others have the detected value.
    #[test]
    fn detected_values_fill_gaps() {
        let (link_rate_bps, wire_overhead_bytes, queue_limit_bytes) = (Some(25_000_000_000), 24, 100_000);
        let found =
            DetectedLink { link_rate_bps, wire_overhead_bytes, queue_limit_bytes, ..DetectedLink::default() };
        let on = |assigned: &[&str]| {
            let s = changes(assigned).config_on(&found).unwrap().scalars;
            (s.link_rate_bps, s.wire_overhead_bytes)
        };
        assert_eq!(on(&[]), (25_000_000_000, 24));
        assert_eq!(on(&["wire_overhead=0", "link_rate=10gbit"]), (10_000_000_000, 0));
        assert_eq!(on(&["link_rate=0", "wire_overhead=4"]), (25_000_000_000, 4));
        let limits = |assigned: &[&str]| {
            changes(assigned).config_on(&found).unwrap().wred.map(|wred| wred.queue_limit_bytes)
        };
        assert_eq!(limits(&[]), [100_000, 0, 0, 100_000, 0, 0, 100_000, 0]);
        let trims = limits(&["wred.3.queue_limit=0", "trim_dscp_value=10", "dscp_to_tc.10=5"]);
        assert_eq!(trims, [100_000, 0, 0, 0, 0, 0, 100_000, 0], "trimmed packets are not trimmed again");
    }

    #[test]
    fn check_accepts_any_supported_link() {
        let with = |profile, assigned: &[&str]| Settings { profile, ..changes(assigned) };
        for settings in [
            with(Some(Profile::Hpcc), &[]),
            with(Some(Profile::Lab), &[]),
            // On links of 25 Gbit/s only.
            with(Some(Profile::Hpcc), &["wred.3.kmin=350KB", "wred.4.kmax=150KB"]),
            // Below the lowest rate of `paper`, not of `lab`.
            with(None, &["rate_to_set_on_first_cnp=500kbit"]),
        ] {
            assert_eq!(settings.check(), Ok(()), "{settings:?}");
        }
        for (settings, expected) in [
            (with(Some(Profile::Hpcc), &["link_rate=1gbit"]), "of 10gbit and more, this one has 1gbit"),
            (
                with(Some(Profile::Lab), &["wred.3.kmin=1MB"]),
                "wred.3.kmin = 1MB is above wred.3.kmax = 200KB",
            ),
            (with(None, &["wred.3.kmin=1MB"]), "wred.3.kmin = 1MB is above wred.3.kmax = 200KB"),
        ] {
            let refused = settings.check().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    fn parsed(text: &str) -> Settings {
        crate::parse("x", text).unwrap()
    }

    #[test]
    fn check_rejects_inline_beyond_marking() {
        let inline = |text: &str| parsed(&format!("inline = 'eth1'\n{text}"));
        assert_eq!(inline("").check(), Ok(()));
        for text in ["role = 'host'", "queues = 'auto'", "[parameters]\nfast_cnp = true"] {
            let refused = inline(text).check().unwrap_err().to_string();
            assert!(refused.starts_with("inline = \"eth1\""), "{refused}");
        }
    }

    #[test]
    fn complete_check_rejects_what_attach_refuses() {
        for (text, expected) in [
            ("queues = 'auto'", "queues = \"auto\" and pacer = \"auto\" both replace"),
            ("queues = 'auto'\npacer = 'htb'", "queues = \"auto\" and pacer = \"htb\" both replace"),
            ("xdp_mode = 'skb'", "xdp_mode = \"skb\" is for inline attachments only"),
            (
                "flows = 32769\npacer = 'htb'",
                "flows = 32769 is out of range with pacer = \"htb\": 8 to 32768",
            ),
            ("role = 'switch'\n[parameters]\ntrim_nak = true", "trim_nak = true needs the ingress program"),
        ] {
            let refused = parsed(text).check_complete().unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
            assert_eq!(parsed(text).check(), Ok(()), "another source may add the role or inline: {text}");
        }
        for text in [
            "",
            "flows = 32768\npacer = 'htb'",
            "flows = 1048576\npacer = 'htb'\nrole = 'switch'",
            "queues = 'auto'\nrole = 'switch'",
            "queues = 'auto'\npacer = 'none'",
            "inline = 'eth1'\nxdp_mode = 'skb'",
        ] {
            assert_eq!(parsed(text).check_complete(), Ok(()), "{text}");
        }
    }

    #[test]
    fn settings_validated_after_all_changes() {
        assert!(changes(&["wred.0.kmin=1MB", "wred.0.kmax=2MB"]).config(None).is_ok());
        let refused = changes(&["wred.0.kmin=1MB"]).config(None).unwrap_err();
        assert!(refused.to_string().contains("above wred.0.kmax"));
    }
}
