//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

/// What its content type is.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What kind of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows, until it starts anew. Its name ends in `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Families of metrics one after the other: all series of a name stand together, as the format wants them.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a family; its series follow by [`Family::series`].
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        self.named(name.to_owned(), kind, help)
    }

    /// The same, where the name is made.
    pub(super) fn named(&mut self, name: String, kind: Kind, help: &str) -> Family<'_> {
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing into a `String` cannot fail; neither below.
        let _ = writeln!(self.0, "# HELP {name} {}\n# TYPE {name} {kind}", escape(help, false));
        Family { text: &mut self.0, name }
    }

    /// The whole.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// A family that is being written.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Family<'_> {
    /// Adds a series.
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

/// Backslashes and line ends, and in label values quotes too, stand behind a backslash.
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

    #[test]
    fn a_family_is_help_type_and_series() {
        let mut text = Exposition::default();
        let mut family = text.family("a_total", Kind::Counter, "Counts \"a\" \\ b.\nc");
        family.series(&[], 1);
        family.series(&[("x", &"q\"uo\\te\n\u{e9}"), ("y", &3)], 0.5);
        let expected = "# HELP a_total Counts \"a\" \\\\ b.\\nc\n# TYPE a_total counter\na_total 1\n\
                        a_total{x=\"q\\\"uo\\\\te\\n\u{e9}\",y=\"3\"} 0.5\n";
        assert_eq!(text.finish(), expected);
    }
}
