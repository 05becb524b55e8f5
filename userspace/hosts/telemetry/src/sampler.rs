//! Readings of one or several interfaces, again and again.

use std::collections::HashMap;

use dcqcn_loader::attach;

use super::{Reading, Sample};

/// Keeps the last reading of each interface, to tell what has happened since.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Empty: all that is attached, whenever it is.
    ifaces: Vec<String>,
    last: HashMap<String, Reading>,
}

impl Sampler {
    /// Looks at `ifaces`, or at all that is attached in this network namespace if none is named.
    #[must_use]
    pub fn new(ifaces: Vec<String>) -> Self {
        Self { ifaces, last: HashMap::new() }
    }

    /// What happened since the last call. An interface that was not there at the last call has no rates yet.
    ///
    /// # Errors
    /// An interface that was named is not attached, or its maps cannot be read.
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

/// The interfaces attached in this network namespace that are still there, by name.
///
/// # Errors
/// As [`attach::list_alive`].
pub fn attached() -> Result<Vec<String>, attach::Error> {
    let mut names: Vec<String> = attach::list_alive()?.into_iter().map(|info| info.iface).collect();
    names.sort_unstable();
    Ok(names)
}
