//! Input events of a trace: one per line, `t_ns,cnp`, `t_ns,send,BYTES` or `t_ns,sample`.
//!
//! Lines are read one by one, so memory does not grow with the file.

use std::io::{self, BufRead, Read as _};

/// Latest time of an event, ns: 146 years, so that sums of times in machine and pacer fit.
pub(crate) const MAX_TIME_NS: u64 = 1 << 62;
/// Maximum bytes of one `send`: a tebibyte.
pub(crate) const MAX_SEND_BYTES: u64 = 1 << 40;
/// Maximum length of a line with comments, bytes. Longer lines are not a list of events.
const MAX_LINE: usize = 4_096;
/// Optional header of a file; its last field may be omitted.
const HEADER: [&str; 3] = ["t_ns", "event", "bytes"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub time_ns: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cnp,
    Send {
        /// Bytes, layer 2; 1 to `MAX_SEND_BYTES`.
        bytes: u64,
    },
    /// None: only its state is shown.
    Sample,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cnp => "cnp",
            Self::Send { .. } => "send",
            Self::Sample => "sample",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("`{}` is not an event: expected `t_ns,cnp`, `t_ns,send,BYTES` or `t_ns,sample`", .0.escape_debug())]
    Fields(String),
    #[error("{column} `{}`: expected a whole number of {unit}, {min} to {max}", text.escape_debug())]
    Number { column: &'static str, text: String, unit: &'static str, min: u64, max: u64 },
    #[error("event `{}`: expected `cnp`, `send` or `sample`", .0.escape_debug())]
    Event(String),
    #[error("bytes `{}`: expected none, a `{event}` has no bytes", text.escape_debug())]
    NoBytes { event: &'static str, text: String },
    #[error(
        "t_ns `{time_ns}`: expected {last_ns} or later, the time of the previous event; sort the events by time"
    )]
    Order { time_ns: u64, last_ns: u64 },
    #[error("longer than {MAX_LINE} bytes: expected `t_ns,cnp`, `t_ns,send,BYTES` or `t_ns,sample`")]
    TooLong,
    #[error(
        "bytes `{bytes}`: expected {min} or more, the headers of a RoCEv2 packet, with the engine \
         `kernel`; the engine `reference` accepts any"
    )]
    TooShort { bytes: u64, min: u64 },
}

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{file}:{line}: {problem}")]
    Line { file: String, line: u64, problem: Problem },
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: io::Error },
}

/// Events, read line by line.
#[derive(Debug)]
pub struct Events<R> {
    reader: R,
    file: String,
    line: u64,
    text: Vec<u8>,
    header_may_come: bool,
    last_ns: u64,
}

impl<R: BufRead> Events<R> {
    /// The events in `reader`, called `file` in messages.
    pub(crate) fn new(file: &str, reader: R) -> Self {
        Self { reader, file: file.to_owned(), line: 0, text: Vec::new(), header_may_come: true, last_ns: 0 }
    }

    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, InputError> {
        while self.next_line()? {
            let text = String::from_utf8_lossy(&self.text);
            // Some spreadsheets begin with a byte order mark.
            let text = if self.line == 1 { text.trim_start_matches('\u{feff}') } else { &text };
            let content = text.split('#').next().unwrap_or_default().trim();
            if content.is_empty() || (std::mem::take(&mut self.header_may_come) && is_header(content)) {
                continue;
            }
            let event = parse(content).and_then(|event| in_order(event, self.last_ns));
            let event = event.map_err(|problem| self.wrong(problem))?;
            self.last_ns = event.time_ns;
            return Ok(Some(event));
        }
        Ok(None)
    }

    pub(crate) fn wrong(&self, problem: Problem) -> InputError {
        InputError::Line { file: self.file.clone(), line: self.line, problem }
    }

    /// Reads a line; `false` at the end.
    fn next_line(&mut self) -> Result<bool, InputError> {
        self.text.clear();
        self.line += 1;
        let mut limited = self.reader.by_ref().take(MAX_LINE as u64 + 1);
        let read = limited.read_until(b'\n', &mut self.text);
        let read = read.map_err(|source| InputError::Read { file: self.file.clone(), source })?;
        if read > MAX_LINE {
            return Err(self.wrong(Problem::TooLong));
        }
        Ok(read != 0)
    }
}

fn is_header(line: &str) -> bool {
    let mut fields = line.split(',').map(str::trim);
    let is_header = HEADER.iter().zip(&mut fields).all(|(name, field)| field.eq_ignore_ascii_case(name));
    is_header && fields.next().is_none() && line.contains(',')
}

fn in_order(event: Event, last_ns: u64) -> Result<Event, Problem> {
    let time_ns = event.time_ns;
    if time_ns < last_ns { Err(Problem::Order { time_ns, last_ns }) } else { Ok(event) }
}

fn parse(line: &str) -> Result<Event, Problem> {
    let mut fields = line.split(',').map(str::trim);
    let (Some(time), Some(event), bytes, None) =
        (fields.next(), fields.next(), fields.next().unwrap_or_default(), fields.next())
    else {
        return Err(Problem::Fields(line.to_owned()));
    };
    let time_ns = number(time, "t_ns", "nanoseconds", 0, MAX_TIME_NS)?;
    let kind = match event {
        "send" => Kind::Send { bytes: number(bytes, "bytes", "bytes", 1, MAX_SEND_BYTES)? },
        "cnp" => Kind::Cnp,
        "sample" => Kind::Sample,
        _ => return Err(Problem::Event(event.to_owned())),
    };
    match kind {
        Kind::Cnp | Kind::Sample if !bytes.is_empty() => {
            Err(Problem::NoBytes { event: kind.name(), text: bytes.to_owned() })
        }
        _ => Ok(Event { time_ns, kind }),
    }
}

fn number(text: &str, column: &'static str, unit: &'static str, min: u64, max: u64) -> Result<u64, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|value| digits && (min..=max).contains(value));
    value.ok_or_else(|| Problem::Number { column, text: text.to_owned(), unit, min, max })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Event>, String> {
        let mut events = Events::new("events.csv", text);
        let mut all = Vec::new();
        while let Some(event) = events.next_event().map_err(|error| error.to_string())? {
            all.push(event);
        }
        Ok(all)
    }

    fn event(time_ns: u64, kind: Kind) -> Event {
        Event { time_ns, kind }
    }

    #[test]
    fn csv_dialects_accepted() {
        let text = "\u{feff}# made by hand\r\n\r\n T_NS, event ,bytes\r\n0,cnp\r\n 10 , send , 1000 # one packet\n\
                    10,sample,\n#\n4611686018427387904,cnp";
        let expected = [
            event(0, Kind::Cnp),
            event(10, Kind::Send { bytes: 1_000 }),
            event(10, Kind::Sample),
            event(MAX_TIME_NS, Kind::Cnp),
        ];
        assert_eq!(read(text.as_bytes()), Ok(expected.to_vec()));
        assert_eq!(read(b"t_ns,event\n1,cnp\n"), Ok(vec![event(1, Kind::Cnp)]));
        assert_eq!(read(b"\n# nothing\n"), Ok(vec![]));
        assert_eq!(read(b""), Ok(vec![]));
    }

    #[test]
    fn bad_line_reports_position_and_format() {
        let events = "expected `t_ns,cnp`, `t_ns,send,BYTES` or `t_ns,sample`";
        let time = "expected a whole number of nanoseconds, 0 to 4611686018427387904";
        let bytes = "expected a whole number of bytes, 1 to 1099511627776";
        for (line, reason) in [
            ("7", format!("`7` is not an event: {events}")),
            ("\u{1b}[2J", format!("`\\u{{1b}}[2J` is not an event: {events}")),
            ("1,send,5,6", format!("`1,send,5,6` is not an event: {events}")),
            ("x,cnp", format!("t_ns `x`: {time}")),
            (",cnp", format!("t_ns ``: {time}")),
            ("-1,cnp", format!("t_ns `-1`: {time}")),
            ("+1,cnp", format!("t_ns `+1`: {time}")),
            ("1.5,cnp", format!("t_ns `1.5`: {time}")),
            ("4611686018427387905,cnp", format!("t_ns `4611686018427387905`: {time}")),
            ("99999999999999999999,cnp", format!("t_ns `99999999999999999999`: {time}")),
            ("9,CNP!", "event `CNP!`: expected `cnp`, `send` or `sample`".into()),
            ("9,", "event ``: expected `cnp`, `send` or `sample`".into()),
            ("9,send", format!("bytes ``: {bytes}")),
            ("9,send,0", format!("bytes `0`: {bytes}")),
            ("9,send,1KB", format!("bytes `1KB`: {bytes}")),
            ("9,send,1099511627777", format!("bytes `1099511627777`: {bytes}")),
            ("9,cnp,3", "bytes `3`: expected none, a `cnp` has no bytes".into()),
            (
                "4,cnp",
                "t_ns `4`: expected 5 or later, the time of the previous event; sort the events by time"
                    .into(),
            ),
            ("t_ns,event,bytes", format!("t_ns `t_ns`: {time}")),
        ] {
            let text = format!("# first\n5,sample\n{line}\n9,cnp\n");
            assert_eq!(read(text.as_bytes()), Err(format!("events.csv:3: {reason}")), "{line}");
        }
        let endless = [b"5,cnp\n".as_slice(), &[b'1'; 5_000]].concat();
        assert_eq!(read(&endless), Err(format!("events.csv:2: longer than 4096 bytes: {events}")));
        assert!(read(b"1,\xff\n").is_err_and(|message| message.starts_with("events.csv:1: event")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_parsed_or_rejected(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&text);
        }

        #[test]
        fn events_read_back(times in proptest::collection::vec((0u64..=MAX_TIME_NS, 0u64..=MAX_SEND_BYTES), 0..20)) {
            let mut times = times;
            times.sort_unstable();
            let events: Vec<_> = times.into_iter().map(|(time_ns, bytes)| event(time_ns, match bytes {
                0 => Kind::Cnp,
                bytes if bytes % 3 == 0 => Kind::Sample,
                bytes => Kind::Send { bytes },
            })).collect();
            let mut text = String::new();
            for Event { time_ns, kind } in &events {
                text += &match kind {
                    Kind::Send { bytes } => format!("{time_ns},send,{bytes}\n"),
                    kind => format!("{time_ns},{}\n", kind.name()),
                };
            }
            prop_assert_eq!(read(text.as_bytes()), Ok(events));
        }
    }
}
