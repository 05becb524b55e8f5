//! Drawing of the screen from the state.

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_common::stats::Stat;
use dcqcn_params::{Key, word};
use dcqcn_support::render::{self, count};
use dcqcn_telemetry::{ClassSample, QpSample, QueueSample, Sample};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::column::Column;
use super::state::{HISTORY, Mode, State, Status};

/// Maximum width of a queue's bar.
const MAX_BAR: usize = 40;
/// Width of the columns next to a bar.
const BAR_MARGIN: usize = 60;
/// Width of the port column, with two ports: `  to` and the interface (IFNAMSIZ).
const PORT_MARGIN: usize = 20;
/// Minimum screen width for sparklines, which would displace more important columns.
const MIN_FOR_HISTORY: usize = 78;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

const KEYS: &str = "? help  q quit  Tab interface  \u{2190}\u{2192} sort  r reverse  e edit  p pause";

const HELP: &str = "\
q, Ctrl-C        quit
?, h             show this help
Tab, Shift-Tab   next, previous interface
\u{2190} \u{2192}, < >         sort by the previous, next column
r                reverse the sort order
\u{2191} \u{2193} PgUp PgDn    scroll the flows; Home, End
e                change a parameter: type part of its name,
                 select with \u{2191} \u{2193} and Enter, type a value, Enter
p, Space         pause, resume
Esc              close

Bars end at 5/4 of Kmax: \u{250a} is Kmin, \u{2503} is Kmax.
RATE is the enforced rate, SENT/s the actual one; HISTORY is
RATE relative to line rate. A flow is identified by its receiver's QP.";

/// Areas of the screen, from top to bottom.
struct Areas {
    title: Rect,
    classes: Rect,
    counters: Rect,
    flows: Rect,
    status: Rect,
}

fn areas(area: Rect, state: &State) -> Areas {
    let of_queues = |sample: &Sample| usize::from(!sample.queues.is_empty());
    let bars = state.sample.as_ref().map_or(0, |sample| bars(sample).count() + of_queues(sample)) + 1;
    // Flows get half of a small screen.
    let bars = u16::try_from(bars).unwrap_or(u16::MAX).min(area.height / 2);
    let status = match &state.status {
        Some(Status::Error(text) | Status::Done(text)) => {
            let width = usize::from(area.width).max(1);
            u16::try_from(text.chars().count().div_ceil(width)).unwrap_or(1).clamp(1, 3)
        }
        None => 1,
    };
    let [title, classes, counters, _, flows, status] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(bars),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(status),
    ])
    .areas(area);
    Areas { title, classes, counters, flows, status }
}

/// Number of flows that fit the screen.
pub(super) fn page(area: Rect, state: &State) -> usize {
    usize::from(areas(area, state).flows.height.saturating_sub(1)).max(1)
}

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let areas = areas(frame.area(), state);
    frame.render_widget(title(state, areas.flows), areas.title);
    if let Some(sample) = &state.sample {
        frame.render_widget(Paragraph::new(classes(sample, areas.classes.width.into())), areas.classes);
        frame.render_widget(counters(sample), areas.counters);
        frame.render_widget(Paragraph::new(flows(state, sample, areas.flows)), areas.flows);
    }
    frame.render_widget(status(state), areas.status);
    match &state.mode {
        Mode::Normal => {}
        Mode::Help => popup(frame, "Keys", HELP.lines().map(Line::from).collect(), 70),
        Mode::Choose { filter, at } => choose(frame, state, filter, *at),
        Mode::Value { key, text } => value(frame, state, *key, text),
    }
}

fn title(state: &State, flows: Rect) -> Line<'_> {
    let mut spans = vec![Span::styled(format!(" dcqcn top  {} ", state.iface()), REVERSED)];
    if state.ifaces.len() > 1 {
        spans.push(Span::raw(format!(" {}/{}", state.at + 1, state.ifaces.len())));
    }
    if let Some(sample) = &state.sample {
        let rate = match sample.line_rate_bps {
            0 => "not known".to_owned(),
            bps => Quantity(bps, Unit::BitsPerSecond).to_string(),
        };
        let qps = visible_range(state, sample, flows);
        let text = format!("  {}  line rate {rate}  pacer {}  {qps}", word(&sample.role), sample.pacer);
        spans.push(Span::raw(text));
    }
    spans.push(Span::styled(format!("  every {}", humantime::format_duration(state.interval)), DIM));
    if state.paused {
        spans.push(Span::styled("  PAUSED", BOLD.fg(Color::Yellow)));
    }
    Line::from(spans)
}

fn visible_range(state: &State, sample: &Sample, flows: Rect) -> String {
    let all = sample.qps.len();
    let page = usize::from(flows.height.saturating_sub(1));
    match state.offset.min(all.saturating_sub(page)) {
        _ if all <= page => count(all, "QP"),
        first => format!("QPs {}-{} of {all}", first + 1, first + page),
    }
}

/// A bar for each class and port.
fn bars(sample: &Sample) -> impl Iterator<Item = (&ClassSample, &str, u64)> {
    sample.classes.iter().flat_map(|class| {
        sample.ports.iter().zip(&class.depth_bytes).map(move |(port, depth)| (class, port.as_str(), *depth))
    })
}

fn classes(sample: &Sample, width: usize) -> Vec<Line<'static>> {
    let several = sample.ports.len() > 1;
    let margin = BAR_MARGIN + if several { PORT_MARGIN } else { 0 };
    let bar_width = width.saturating_sub(margin).min(MAX_BAR);
    let bar_title = if bar_width > 4 { "QUEUE" } else { "" };
    let head = format!(
        " TC  {bar_title:<bar_width$} {:>8} {:>8} {:>8} {:>9} {:>8} {:>7}",
        "DEPTH", "KMIN", "KMAX", "PACKETS/s", "MARKED/s", "MARKED"
    );
    let mut lines = vec![Line::styled(head, BOLD)];
    for (class, port, depth) in bars(sample) {
        let threshold = |bytes| if class.ecn { render::bytes(bytes) } else { "off".to_owned() };
        let color = match depth {
            _ if !class.ecn || depth <= class.kmin_bytes => Color::Green,
            depth if depth <= class.kmax_bytes => Color::Yellow,
            _ => Color::Red,
        };
        let margin = format!(
            " {:>8} {:>8} {:>8} {:>9.0} {:>8.0} {:>6.2}%{}",
            render::bytes(depth),
            threshold(class.kmin_bytes),
            threshold(class.kmax_bytes),
            class.packets_per_s,
            class.ecn_marked_packets_per_s,
            class.ecn_marked_ratio * 100.0,
            if several { format!("  to {port}") } else { String::new() },
        );
        lines.push(Line::from(vec![
            Span::raw(format!(" {:>2}  ", class.tc)),
            Span::styled(bar(class, depth, bar_width), Style::new().fg(color)),
            Span::raw(margin),
        ]));
    }
    lines.extend(own_queues(sample));
    lines
}

/// The port's own queues, if any, on one line.
fn own_queues(sample: &Sample) -> Option<Line<'static>> {
    let mut spans = vec![Span::raw(" queues".to_owned())];
    for QueueSample { queue, depth_bytes, drops_per_s, .. } in &sample.queues {
        spans.push(Span::raw(format!("  {queue}: {}", render::bytes((*depth_bytes).into()))));
        if *drops_per_s > 0.0 {
            spans.push(Span::styled(format!(" {drops_per_s:.0} drops/s"), Style::new().fg(Color::Red)));
        }
    }
    (spans.len() > 1).then(|| Line::from(spans))
}

/// Depth compared with Kmin and Kmax.
fn bar(class: &ClassSample, depth: u64, width: usize) -> String {
    let end = class.kmax_bytes.saturating_mul(5) / 4;
    let column = |bytes: u64| match end {
        0 => 0,
        end => (u128::from(bytes.min(end)) * width as u128 / u128::from(end)) as usize,
    };
    let filled = if depth == 0 { 0 } else { column(depth).max(1) };
    let cell = |at: usize| match at {
        at if class.ecn && at == column(class.kmax_bytes) => '\u{2503}',
        at if class.ecn && at == column(class.kmin_bytes) => '\u{250a}',
        at if at < filled => '\u{2588}',
        _ => '\u{b7}',
    };
    (0..width).map(cell).collect()
}

fn counters(sample: &Sample) -> Line<'static> {
    let per_s = |name: &str, stat| format!("  {name} {:.0}/s", sample.counters_per_s.get(stat));
    let text = [
        per_s("CE seen", Stat::NpEcnMarked),
        per_s("CNPs sent", Stat::NpCnpSent),
        per_s("handled", Stat::RpCnpHandled),
        per_s("ignored", Stat::RpCnpIgnored),
    ];
    Line::raw(text.concat().replacen("  ", " ", 1))
}

fn flows(state: &State, sample: &Sample, area: Rect) -> Vec<Line<'static>> {
    if sample.qps.is_empty() {
        return vec![Line::styled(format!(" no flow has left {} yet", sample.iface), DIM)];
    }
    let page = usize::from(area.height.saturating_sub(1));
    let first = state.offset.min(sample.qps.len().saturating_sub(page));
    let shown: Vec<&QpSample> = sample.qps.iter().skip(first).take(page).collect();
    // IPv6 addresses are longer.
    let addresses = shown.iter().map(|qp| Column::Receiver.cell(qp).chars().count());
    let receiver = addresses.max().unwrap_or(0).max(Column::Receiver.width());
    let width_of = |column: Column| if column == Column::Receiver { receiver } else { column.width() };
    let width = usize::from(area.width);
    let spark = width >= MIN_FOR_HISTORY;
    let columns = columns(state.sort, if spark { width - HISTORY - 2 } else { width }, width_of);
    let pad = |column: Column, text: &str| {
        let width = width_of(column);
        if column.is_words() { format!("  {text:<width$}") } else { format!("  {text:>width$}") }
    };
    let mut head: Vec<Span<'static>> = Vec::new();
    for column in &columns {
        let sorted = *column == state.sort;
        let style = if sorted { BOLD.add_modifier(Modifier::REVERSED) } else { BOLD };
        let arrow = if state.descending { '\u{25bc}' } else { '\u{25b2}' };
        let title = if sorted { format!("{}{arrow}", column.title()) } else { column.title().to_owned() };
        head.push(Span::styled(pad(*column, &title), style));
    }
    if spark {
        head.push(Span::styled("  HISTORY", BOLD));
    }
    let mut lines = vec![Line::from(head)];
    for qp in shown {
        let mut text: String = columns.iter().map(|column| pad(*column, &column.cell(qp))).collect();
        if spark {
            text.push_str("  ");
            text.push_str(&sparkline(state.history(&qp.id()), sample.line_rate_bps));
        }
        let style = if qp.row.state == "line-rate" { Style::new() } else { Style::new().fg(Color::Yellow) };
        lines.push(Line::styled(text, style));
    }
    lines
}

/// Columns that fit, including the sort column.
fn columns(sort: Column, width: usize, width_of: impl Fn(Column) -> usize) -> Vec<Column> {
    let mut left = width;
    let mut fit = Vec::new();
    let others = Column::BY_WEIGHT.into_iter().filter(|column| *column != sort);
    for column in std::iter::once(sort).chain(others) {
        let Some(rest) = left.checked_sub(width_of(column) + 2) else {
            break;
        };
        left = rest;
        fit.push(column);
    }
    Column::ALL.into_iter().filter(|column| fit.contains(column)).collect()
}

/// Rate in eighths of the line rate.
fn sparkline(rates: impl Iterator<Item = f32>, line_rate_bps: u64) -> String {
    const EIGHTHS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let step = |rate: f32| {
        // Within 0 to 8: the rate is at most the line rate.
        let eighths = (rate * 8.0 / line_rate_bps.max(1) as f32).ceil() as usize;
        EIGHTHS.get(eighths.clamp(1, 8) - 1).copied().unwrap_or(' ')
    };
    rates.map(step).collect()
}

fn status(state: &State) -> Paragraph<'_> {
    match &state.status {
        Some(Status::Error(text)) => {
            Paragraph::new(text.as_str()).style(Style::new().fg(Color::Red)).wrap(Wrap { trim: true })
        }
        Some(Status::Done(text)) => Paragraph::new(text.as_str()).style(Style::new().fg(Color::Green)),
        None => Paragraph::new(Line::styled(format!(" {KEYS}"), DIM)),
    }
}

fn popup(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>, width: u16) {
    let area = frame.area();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2).min(area.height);
    let width = width.saturating_add(2).min(area.width);
    let window = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, window);
    let block = Block::bordered().title(format!(" {title} "));
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), window);
}

fn choose(frame: &mut Frame<'_>, state: &State, filter: &str, at: usize) {
    let choices = State::choices(filter);
    let rows = usize::from(frame.area().height.saturating_sub(6)).clamp(1, 16);
    let first = at.saturating_sub(rows / 2).min(choices.len().saturating_sub(rows));
    let mut lines = vec![Line::raw(format!("name contains: {filter}_")), Line::raw("")];
    for (i, key) in choices.iter().enumerate().skip(first).take(rows) {
        let value = state.config.map_or_else(String::new, |config| key.text(&config));
        let text = format!(" {:<40} {value:>14} ", key.to_string());
        lines.push(if i == at { Line::styled(text, REVERSED) } else { Line::raw(text) });
    }
    if choices.is_empty() {
        lines.push(Line::raw(" no matching parameter"));
    }
    popup(frame, "Change a parameter", lines, 60);
}

fn value(frame: &mut Frame<'_>, state: &State, key: Key, text: &str) {
    const WIDTH: usize = 70;
    let now = state.config.map_or_else(String::new, |config| key.text(&config));
    let mut lines = wrapped(key.doc(), WIDTH);
    if !key.larger().is_empty() {
        lines.extend(wrapped(&format!("Larger: {}", key.larger()), WIDTH));
    }
    lines.extend(wrapped(&format!("Allowed: {}.{}", key.allowed(), key.written()), WIDTH));
    lines.push(Line::raw(""));
    lines.push(Line::styled(format!("{key} = {text}_   (now {now})"), BOLD));
    popup(frame, "Enter applies, Esc cancels", lines, WIDTH as u16);
}

/// Wraps `text` to lines of at most `width`.
fn wrapped(text: &str, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let remaining = lines.last().map_or(0, |line| width.saturating_sub(line.chars().count()));
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if remaining > word.chars().count() => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(Line::raw).collect()
}
