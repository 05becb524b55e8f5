//! The configuration file of `attach`, `config` and `run`, read for interfaces of this host.

use std::path::Path;

use anyhow::Context as _;
use dcqcn_daemon::daemon::config::{self, Config};
use dcqcn_netlink::Netlink;
use dcqcn_params::Settings;
use dcqcn_support::file::read_text;

pub(super) struct ConfigFile {
    name: String,
    pub(super) config: Config,
}

impl ConfigFile {
    /// Reads the file, and the properties of this host's interfaces if it selects interfaces.
    ///
    /// # Errors
    /// The file cannot be read or is invalid, or the kernel cannot list interfaces.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut file = Self::parse(path)?;
        if !file.config.interfaces.is_empty() {
            let netlink = Netlink::connect()?;
            file.config.read_links(&netlink, &netlink.links()?)?;
        }
        Ok(file)
    }

    /// As [`ConfigFile::read`], without this host's interfaces.
    pub(super) fn parse(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = read_text(path).with_context(|| format!("cannot read {name}"))?;
        let config = config::parse(&name, &text)?;
        Ok(Self { name, config })
    }

    pub(super) fn settings(&self, iface: &str) -> anyhow::Result<Settings> {
        let name = &self.name;
        self.config.settings(iface).with_context(|| {
            format!("no [[interface]] in {name} matches {iface}; add one with name = \"{iface}\"")
        })
    }
}
