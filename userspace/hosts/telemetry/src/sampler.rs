//! Periodic samples of one or several interfaces.

use std::collections::HashMap;

use dcqcn_loader::attach;

use super::{Reading, Sample};

/// Stores the last reading of each interface, for the differences.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Empty: all attached interfaces, including later ones.
    ifaces: Vec<String>,
    last: HashMap<String, Reading>,
}

impl Sampler {
    /// A sampler of `ifaces`, or of all interfaces attached in this network namespace if empty.
    pub fn new(ifaces: Vec<String>) -> Self {
        Self { ifaces, last: HashMap::new() }
    }

    /// Activity since the last call. An interface without a previous reading has no rates yet.
    ///
    /// # Errors
    /// A named interface is not attached, or its maps cannot be read.
    pub fn sample(&mut self) -> Result<Vec<Sample>, attach::Error> {
        let names = if self.ifaces.is_empty() { attached()? } else { self.ifaces.clone() };
        let mut samples = Vec::new();
        let mut last = HashMap::new();
        for name in names {
            let reading = match Reading::take(&name) {
                // Detached since it was listed.
                Err(attach::Error::NotAttached { .. }) if self.ifaces.is_empty() => continue,
                reading => reading?,
            };
            samples.push(Sample::new(self.last.get(&name), &reading));
            last.insert(name, reading);
        }
        self.last = last;
        Ok(samples)
    }
}

/// Existing interfaces attached in this network namespace, by name.
pub fn attached() -> Result<Vec<String>, attach::Error> {
    let mut names: Vec<String> = attach::list_alive()?.into_iter().map(|info| info.iface).collect();
    names.sort_unstable();
    Ok(names)
}
