//! Prometheus' text format, version 0.0.4, and OpenMetrics, version 1.0.0.

use std::fmt::{Display, Write as _};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus text, supported by all versions.
    Text,
    /// OpenMetrics, on request: it distinguishes complete replies from truncated ones.
    OpenMetrics,
}

impl Format {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers; text by default.
    pub(super) fn preferred(accept: &str) -> Self {
        let best = |format| accept.split(',').filter_map(|range| quality(range, format)).max();
        match (best(Self::OpenMetrics), best(Self::Text)) {
            (Some(metrics), text) if metrics > 0 && Some(metrics) >= text => Self::OpenMetrics,
            _ => Self::Text,
        }
    }
}

/// Preference of one range of an `Accept` header (RFC 9110, 12.5.1) for a format, in thousandths; `None` for other
/// types.
fn quality(range: &str, format: Format) -> Option<u32> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let is_it = match format {
        Format::Text => matches!(media.as_str(), "text/plain" | "text/*" | "*/*"),
        Format::OpenMetrics => media == "application/openmetrics-text",
    };
    if !is_it {
        return None;
    }
    let mut thousandths = 1_000;
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name.trim() {
            "q" => thousandths = (value.trim().parse::<f32>().ok()?.clamp(0.0, 1.0) * 1_000.0) as u32,
            // 0.0.1 is the former name of 1.0.0.
            "version" if format == Format::OpenMetrics && !matches!(value.trim(), "1.0.0" | "0.0.1") => {
                return None;
            }
            _ => {}
        }
    }
    Some(thousandths)
}

/// Metric families in order: the format requires all series of a name to be contiguous.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub(super) const fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Starts a family; its series follow by [`Family::series`].
    pub(super) fn family(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.named(name.to_owned(), help)
    }

    /// Starts a family with a computed name. Counters, which are monotonic until a restart, end in `_total`.
    pub(super) fn named(&mut self, name: String, help: &str) -> Family<'_> {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing into a `String` cannot fail; neither below.
        let _ = match self.format {
            Format::Text => {
                writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", escape(help, false))
            }
            Format::OpenMetrics => {
                // In OpenMetrics, family names lack the suffix of their series.
                let family = name.strip_suffix("_total").unwrap_or(&name);
                writeln!(self.text, "# HELP {family} {}\n# TYPE {family} {kind}", escape(help, true))
            }
        };
        Family { text: &mut self.text, name }
    }

    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

pub(super) struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Family<'_> {
    pub(super) fn series(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.text.push_str(&self.name);
        for (i, (name, label)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{}\"", escape(&label.to_string(), true));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Escapes backslashes and line ends, and quotes in label values.
fn escape(text: &str, quotes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if quotes => escaped.push_str("\\\""),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use Format::{OpenMetrics, Text};

    fn written(format: Format) -> String {
        let mut text = Exposition::new(format);
        let mut family = text.family("a_total", "Counts \"a\" \\ b.\nc");
        family.series(&[], 1);
        family.series(&[("x", &"q\"uo\\te\n\u{e9}"), ("y", &3)], 0.5);
        text.finish()
    }

    #[test]
    fn family_has_help_type_series() {
        let expected = "# HELP a_total Counts \"a\" \\\\ b.\\nc\n# TYPE a_total counter\na_total 1\n\
                        a_total{x=\"q\\\"uo\\\\te\\n\u{e9}\",y=\"3\"} 0.5\n";
        assert_eq!(written(Text), expected);
        let expected = "# HELP a Counts \\\"a\\\" \\\\ b.\\nc\n# TYPE a counter\na_total 1\n\
                        a_total{x=\"q\\\"uo\\\\te\\n\u{e9}\",y=\"3\"} 0.5\n# EOF\n";
        assert_eq!(written(OpenMetrics), expected);
    }

    #[test]
    fn preferred_format_chosen() {
        for (accept, format) in [
            ("", Text),
            ("*/*", Text),
            ("text/plain", Text),
            ("application/openmetrics-text", OpenMetrics),
            // Prometheus 2.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            // A client that prefers text.
            ("text/plain;version=0.0.4;q=0.6, application/openmetrics-text;version=1.0.0;q=0.5", Text),
            ("application/openmetrics-text; version=2.0.0, */*;q=0.1", Text),
            ("application/openmetrics-text;q=0", Text),
            ("application/openmetrics-text;q=x", Text),
        ] {
            assert_eq!(Format::preferred(accept), format, "{accept}");
        }
    }
}
