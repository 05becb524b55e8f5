//! Sweeps: settings with several values each, and all their combinations.

use super::knobs::SetupError;
use super::presets::Setting;

/// Maximum number of combinations of one sweep.
pub(crate) const MAX_RUNS: usize = 10_000;

/// A setting and its values, as in `kmax=200KB,400KB,1MB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting with each value, in order.
    pub settings: Vec<Setting>,
}

impl std::str::FromStr for Axis {
    type Err = SetupError;

    fn from_str(text: &str) -> Result<Self, SetupError> {
        Self::parse(text, "kmax=200KB,400KB,1MB", ',', |Setting { key, text }| {
            Setting::new(key, text).map(|_| ())
        })
    }
}

impl Axis {
    /// Reads `KEY=VALUE,VALUE,...`, as in `example`.
    pub(crate) fn parse(
        text: &str,
        example: &str,
        separator: char,
        check: impl FnMut(&Setting) -> Result<(), SetupError>,
    ) -> Result<Self, SetupError> {
        let is_given = |(key, values): &(&str, &str)| !key.trim().is_empty() && !values.trim().is_empty();
        let (key, values) = text
            .split_once('=')
            .filter(is_given)
            .ok_or_else(|| SetupError(format!("`{text}` is not KEY=VALUE,VALUE,..., as in `{example}`")))?;
        let setting = |text: &str| Setting { key: key.trim().to_owned(), text: text.trim().to_owned() };
        let settings: Vec<Setting> = values.split(separator).map(setting).collect();
        settings.iter().try_for_each(check)?;
        Ok(Self { settings })
    }
}

/// All combinations of the axes' values; the last axis changes fastest. Without axes, a single empty one.
///
/// # Errors
/// There are too many combinations, or an axis is given twice.
pub fn combinations(axes: &[Axis]) -> Result<Vec<Vec<Setting>>, SetupError> {
    let key = |axis: &Axis| axis.settings.first().map(|setting| setting.key.clone()).unwrap_or_default();
    for (index, axis) in axes.iter().enumerate() {
        let name = key(axis);
        if axes.iter().take(index).any(|before| key(before) == name) {
            return Err(SetupError(format!(
                "`{name}` is swept twice; specify all its values in one --sweep"
            )));
        }
    }
    let mut combinations = vec![Vec::new()];
    for axis in axes {
        let count = combinations.len() * axis.settings.len();
        if count > MAX_RUNS {
            return Err(SetupError(format!(
                "the sweep has at least {count} combinations; the maximum is {MAX_RUNS}"
            )));
        }
        let longer = |before: &Vec<Setting>| {
            let before = before.clone();
            axis.settings.iter().map(move |setting| before.iter().cloned().chain([setting.clone()]).collect())
        };
        combinations = combinations.iter().flat_map(longer).collect();
    }
    Ok(combinations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_sweep_axis_changes_fastest() {
        let axes: Vec<Axis> =
            ["flows=2,4", "kmax=200KB, 1MB"].iter().map(|text| text.parse().unwrap()).collect();
        let all: Vec<String> = combinations(&axes)
            .unwrap()
            .iter()
            .map(|settings| settings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(all, ["flows=2 kmax=200KB", "flows=2 kmax=1MB", "flows=4 kmax=200KB", "flows=4 kmax=1MB"]);
        assert_eq!(combinations(&[]), Ok(vec![Vec::new()]));
    }

    #[test]
    fn invalid_axes_rejected() {
        for (text, expected) in [
            ("kmax", "is not KEY=VALUE,VALUE"),
            ("kmax=", "is not KEY=VALUE,VALUE"),
            ("flows=2,none", "flows = `none`"),
            ("flws=2", "did you mean `flows`?"),
        ] {
            let refused = text.parse::<Axis>().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        let axis: Axis = "seed=1,2".parse().unwrap();
        assert!(combinations(&[axis.clone(), axis]).unwrap_err().to_string().contains("swept twice"));
        let many: Axis = format!("seed={}", vec!["1"; 101].join(",")).parse().unwrap();
        let other: Axis = format!("flows={}", vec!["1"; 101].join(",")).parse().unwrap();
        assert!(combinations(&[many, other]).unwrap_err().to_string().contains("the maximum is 10000"));
    }
}
