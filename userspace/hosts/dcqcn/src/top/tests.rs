//! Tests of `dcqcn top`, and its picture in the documentation: the screen buffer as SVG, with five flows simulated by
//! the data plane's own functions. `cargo xtask docs` regenerates it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use dcqcn_common::flow::RpFlow;
use dcqcn_common::layout::Counters;
use dcqcn_common::params::{Params, Port};
use dcqcn_common::rate::Debt;
use dcqcn_common::rng;
use dcqcn_common::stats::Stat;
use dcqcn_common::wred::Wred;
use dcqcn_params::Profile;
use dcqcn_telemetry::{Reading, Sample, reading};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::column::Column;
use super::state::{Action, HISTORY, Mode, State, Status};
use super::view;

fn state(flows: u32) -> State {
    let ifaces = ["eth0", "eth1"].map(String::from).to_vec();
    let mut state = State::new(ifaces, 0, Duration::from_secs(1));
    let (before, now) = (reading("eth0", 1_000, flows), reading("eth0", 2_000, flows));
    state.show(Sample::new(None, &before), before.params.config);
    state.show(Sample::new(Some(&before), &now), now.params.config);
    state
}

/// The characters of a screen.
fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(width.into());
    let row = |cells: &[Cell]| {
        let text: String = cells.iter().map(Cell::symbol).collect();
        format!("{}\n", text.trim_end())
    };
    rows.map(row).collect()
}

fn press(state: &mut State, code: KeyCode) -> Action {
    state.press(KeyEvent::new(code, KeyModifiers::NONE), 10)
}

fn write(state: &mut State, text: &str) {
    for c in text.chars() {
        assert_eq!(press(state, KeyCode::Char(c)), Action::None);
    }
}

/// Compares a screen with a file, character by character.
fn golden(name: &str, screen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/golden").join(name);
    if env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, screen).unwrap();
    }
    assert_eq!(screen, fs::read_to_string(&path).unwrap(), "{name}; DCQCN_WRITE_GOLDEN=1 regenerates it");
}

#[test]
fn large_screen_shows_everything() {
    golden("large.txt", &screen(&state(4), 154, 16));
}

#[test]
fn small_screen_shows_key_columns() {
    golden("small.txt", &screen(&state(4), 80, 12));
    for (width, height) in [(1, 1), (3, 30), (30, 2), (20, 8), (500, 3)] {
        for mode in [
            Mode::Normal,
            Mode::Help,
            Mode::Choose { filter: String::new(), at: 100 },
            Mode::Value { key: "rpg_ai_rate".parse().unwrap(), text: "1".repeat(200) },
        ] {
            let mut state = state(40);
            (state.mode, state.offset) = (mode, usize::MAX);
            state.show_error("x".repeat(1_000));
            screen(&state, width, height);
        }
    }
}

#[test]
fn empty_screen_states_the_reason() {
    assert!(screen(&state(0), 80, 12).contains("\n no flow has left eth0 yet\n"));
    let mut lost = state(3);
    lost.lose(&dcqcn_loader::attach::Error::NotAttached { iface: "eth0".into() });
    let screen = screen(&lost, 80, 12);
    assert!(screen.starts_with(" dcqcn top  eth0  1/2  every 1s\n"), "{screen}");
    assert!(screen.contains("eth0 is not attached") && !screen.contains("10.0.0.1"), "{screen}");
}

#[test]
fn ten_thousand_flows_render_one_page() {
    let mut state = state(10_000);
    let page = screen(&state, 150, 40);
    assert_eq!(page.lines().filter(|line| line.starts_with("  10.")).count(), 31);
    assert!(screen(&state, 150, 40).contains("QPs 1-31 of 10000"));
    press(&mut state, KeyCode::End);
    assert_eq!(state.offset, 9_990);
    assert!(screen(&state, 150, 19).contains("QPs 9991-10000 of 10000"));
    press(&mut state, KeyCode::PageUp);
    press(&mut state, KeyCode::Up);
    assert_eq!(state.offset, 9_979);
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::PageDown);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.offset, 11);
}

#[test]
fn columns_sort_both_ways() {
    let mut state = state(20);
    let mut seen = Vec::new();
    for _ in Column::ALL {
        seen.push(state.sort);
        for descending in [true, false] {
            assert_eq!(state.descending, descending);
            let qps = &state.sample.as_ref().unwrap().qps;
            let pairs = qps.windows(2).map(|pair| state.sort.compare(&pair[0], &pair[1]));
            assert!(
                pairs.clone().all(|order| order.is_gt() == descending && order.is_ne()),
                "{:?}",
                state.sort
            );
            press(&mut state, KeyCode::Char('r'));
        }
        let title = state.sort.title();
        assert!(screen(&state, 60, 16).contains(&format!("{title}\u{25bc}")), "{title}");
        press(&mut state, KeyCode::Right);
    }
    seen.sort_by_key(|column| Column::ALL.iter().position(|other| other == column));
    assert_eq!(seen, Column::ALL);
    press(&mut state, KeyCode::Left);
    assert_eq!(state.sort, Column::Stage);
}

#[test]
fn parameter_chosen_typed_and_set() {
    let mut state = state(4);
    press(&mut state, KeyCode::Char('e'));
    write(&mut state, "wred.3.k");
    press(&mut state, KeyCode::Down);
    golden("choose.txt", &screen(&state, 90, 16));
    press(&mut state, KeyCode::Enter);
    write(&mut state, "15KB");
    assert_eq!(press(&mut state, KeyCode::Enter), Action::Set("wred.3.kmax=15KB".parse().unwrap()));
    for _ in 0..3 {
        press(&mut state, KeyCode::Backspace);
    }
    write(&mut state, "0us");
    assert_eq!(press(&mut state, KeyCode::Enter), Action::None);
    assert!(matches!(&state.status, Some(Status::Error(text)) if text.contains("has the wrong unit")));
    golden("value.txt", &screen(&state, 90, 18));
    for _ in 0..5 {
        press(&mut state, KeyCode::Backspace);
    }
    write(&mut state, "250KB");
    let Action::Set(assignment) = press(&mut state, KeyCode::Enter) else {
        panic!("{:?}", state.mode);
    };
    let old = state.config.unwrap();
    let mut new = old;
    assignment.apply(&mut new).unwrap();
    state.changed(assignment.key, &old, &new);
    assert_eq!(state.mode, Mode::Normal);
    assert!(screen(&state, 80, 16).contains("wred.3.kmax: 200KB -> 250KB"));
    // The next key removes the message.
    press(&mut state, KeyCode::Down);
    assert!(screen(&state, 80, 16).contains("? help"));
}

#[test]
fn rejection_keeps_typed_text() {
    let mut state = state(4);
    let key = "rpg_max_rate".parse().unwrap();
    state.mode = Mode::Value { key, text: "2gbit".into() };
    state.show_error("nothing was changed: rpg_max_rate = 2gbit is above the link's 1gbit".into());
    let screen = screen(&state, 80, 20);
    assert!(
        screen.contains("rpg_max_rate = 2gbit_") && screen.contains("above the link's 1gbit"),
        "{screen}"
    );
    press(&mut state, KeyCode::Esc);
    assert_eq!((&state.mode, &state.status), (&Mode::Normal, &None));
}

#[test]
fn fixed_or_unknown_parameters_not_editable() {
    assert!(State::choices("").len() > 100 && State::choices("pacer").is_empty());
    assert_eq!(State::choices("KMIN").len(), 8);
    let mut state = state(1);
    press(&mut state, KeyCode::Char('e'));
    write(&mut state, "nothing");
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    assert!(screen(&state, 80, 16).contains("no matching parameter"));
    press(&mut state, KeyCode::Esc);
    // Without a configuration there are no parameters to change.
    state.forget();
    press(&mut state, KeyCode::Char('e'));
    assert_eq!(state.mode, Mode::Normal);
}

#[test]
fn help_lists_keys() {
    let mut state = state(1);
    press(&mut state, KeyCode::Char('?'));
    assert!(screen(&state, 100, 30).contains("Shift-Tab"));
    press(&mut state, KeyCode::Esc);
    assert!(!screen(&state, 100, 30).contains("Shift-Tab"));
    press(&mut state, KeyCode::Char('p'));
    assert!(state.paused && screen(&state, 100, 30).contains("PAUSED"));
    press(&mut state, KeyCode::Char(' '));
    assert!(!state.paused);
    assert_eq!(press(&mut state, KeyCode::Tab), Action::Switch(1));
    assert_eq!(press(&mut state, KeyCode::BackTab), Action::Switch(-1));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    state.mode = Mode::Choose { filter: String::new(), at: 0 };
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(ctrl_c, 10), Action::Quit);
}

#[test]
fn sparkline_shows_recent_rates() {
    let mut state = state(2);
    let (mut now, removed) = (reading("eth0", 3_000, 2), reading("eth0", 3_000, 2).rp[0].id);
    for _ in 0..HISTORY + 5 {
        state.show(Sample::new(None, &now), now.params.config);
    }
    let id = state.sample.as_ref().unwrap().qps[0].id();
    assert_eq!(state.history(&id).count(), HISTORY);
    now.rp.retain(|flow| flow.id != removed);
    state.show(Sample::new(None, &now), now.params.config);
    now = reading("eth0", 3_000, 2);
    state.show(Sample::new(None, &now), now.params.config);
    let counts: Vec<usize> =
        state.sample.as_ref().unwrap().qps.iter().map(|qp| state.history(&qp.id()).count()).collect();
    assert!(counts.contains(&1) && counts.contains(&HISTORY), "{counts:?}");
}

/// Size of a cell in pixels, about that of a monospaced font of 14 px.
const CELL: (u32, u32) = (9, 19);
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d8dee9";

/// Converts a screen to SVG. Bars and thresholds are shapes, because fonts join block characters differently.
fn svg(buffer: &Buffer) -> String {
    let (width, height) = (u32::from(buffer.area.width), u32::from(buffer.area.height));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\">\n\
         <rect width=\"{w}\" height=\"{h}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"14\" xml:space=\"preserve\">\n",
        w = (width + 2) * CELL.0,
        h = (height + 1) * CELL.1,
    );
    for (y, row) in (0..).zip(buffer.content().chunks(width as usize)) {
        let mut x = 0;
        for run in row.chunk_by(|a, b| a.style() == b.style() && is_drawn(a) == is_drawn(b)) {
            draw(&mut text, run, (x + 1) * CELL.0, y * CELL.1 + CELL.1 / 2);
            x += run.len() as u32;
        }
    }
    text + "</g>\n</svg>\n"
}

/// Whether a cell is part of a bar, a sparkline or a threshold.
fn is_drawn(cell: &Cell) -> bool {
    matches!(cell.symbol().chars().next(), Some('\u{2581}'..='\u{2588}' | '\u{2503}' | '\u{250a}'))
}

/// Cells of one style with their upper left corner at (`x`, `y`).
fn draw(text: &mut String, run: &[Cell], x: u32, y: u32) {
    let Some(first) = run.first() else { return };
    let (mut ink, mut paper) = (color(first.fg), None);
    if first.modifier.contains(Modifier::REVERSED) {
        (ink, paper) = (BACKGROUND, Some(FOREGROUND));
    }
    let opacity = if first.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let width = run.len() as u32 * CELL.0;
    // Writing into a `String` cannot fail.
    if let Some(paper) = paper {
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{paper}\"/>",
            CELL.1
        );
    }
    if is_drawn(first) {
        for (at, cell) in (x..).step_by(CELL.0 as usize).zip(run) {
            let _ = writeln!(text, "{}", block(cell.symbol(), at, y, ink));
        }
        return;
    }
    let symbols: String = run.iter().map(Cell::symbol).collect();
    let words = symbols.trim_end();
    if words.trim_start().is_empty() {
        return;
    }
    let bold = if first.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        text,
        "<text x=\"{x}\" y=\"{}\" textLength=\"{}\" fill=\"{ink}\"{bold}{opacity}>{}</text>",
        y + CELL.1 - 5,
        words.chars().count() as u32 * CELL.0,
        words.replace('&', "&amp;").replace('<', "&lt;")
    );
}

/// A block in eighths, or a vertical line.
fn block(symbol: &str, x: u32, y: u32, ink: &str) -> String {
    let (width, height) = CELL;
    match symbol.chars().next() {
        Some(symbol @ '\u{2581}'..='\u{2588}') => {
            let high = height * (u32::from(symbol) - 0x2580) / 8;
            let y = y + height - high;
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{high}\" fill=\"{ink}\"/>")
        }
        symbol => {
            let (stroke, dashes) =
                if symbol == Some('\u{2503}') { (3, "") } else { (1, " stroke-dasharray=\"3\"") };
            let (x, below) = (x + width / 2, y + height);
            format!(
                "<line x1=\"{x}\" x2=\"{x}\" y1=\"{y}\" y2=\"{below}\" stroke=\"{ink}\" stroke-width=\"{stroke}\"{dashes}/>"
            )
        }
    }
}

fn color(color: Color) -> &'static str {
    match color {
        Color::Green => "#8fc97a",
        Color::Yellow => "#e5c07b",
        Color::Red => "#e06c75",
        _ => FOREGROUND,
    }
}

/// A port of 1 Gbit/s and its flows, packet by packet.
struct Loop {
    now: Reading,
    /// Not in the table before its first packet.
    waiting: Vec<RpFlow>,
    /// Bits that each flow may send.
    credit_bits: Vec<u64>,
    random: u64,
}

const PACKET_BYTES: u64 = 4_096;
/// Transmission time of a packet on the link.
const STEP_NS: u64 = PACKET_BYTES * 8;
const SECOND: u64 = 1_000_000_000;

impl Loop {
    fn new() -> Self {
        let mut now = reading("eth0", 0, 5);
        let mut config = Profile::Lab.config(Some(SECOND)).unwrap();
        (config.scalars.link_rate_bps, config.scalars.cp_enable) = (SECOND, 1);
        now.params = Params::new(&config, Port::new(1, 8_192, 8_192)).unwrap();
        now.counters.fill(Counters::ZERO);
        let rp = now.params.rp;
        let mut waiting: Vec<RpFlow> = now.rp.drain(..).map(|flow| RpFlow::new(flow.id, &rp)).collect();
        waiting.reverse();
        Self { now, waiting, credit_bits: Vec::new(), random: 1 }
    }

    /// Advances the simulation by a second, in which one more flow starts.
    fn second(&mut self) {
        let Self { now, waiting, credit_bits, random } = self;
        now.rp.extend(waiting.pop());
        credit_bits.resize(now.rp.len(), 0);
        let (params, end_ns) = (now.params, now.at_ns + SECOND);
        let (wred, limits) = (Wred::new(&params.config.wred[3]), params.config.scalars);
        let mut debt = Debt::NONE;
        while now.at_ns < end_ns {
            now.at_ns += STEP_NS;
            let at_ns = now.at_ns;
            now.depth_bytes[3] = now.depth_bytes[3].saturating_sub(PACKET_BYTES);
            for (flow, credit_bits) in now.rp.iter_mut().zip(&mut *credit_bits) {
                flow.hot.advance(&params.rp, at_ns, &mut debt);
                *credit_bits += flow.hot.rates()[0] * STEP_NS / SECOND;
                while *credit_bits >= PACKET_BYTES * 8 {
                    *credit_bits -= PACKET_BYTES * 8;
                    flow.hot.on_send(&params, at_ns, PACKET_BYTES, &mut debt);
                    let depth_bytes = &mut now.depth_bytes[3];
                    *depth_bytes += PACKET_BYTES;
                    *random = rng::next(*random);
                    let drawn = || wred.draw(*depth_bytes, rng::value(*random));
                    let marked = wred.certain(*depth_bytes).unwrap_or_else(drawn);
                    let class = &mut now.counters[2].class[3];
                    class.packets += 1;
                    class.ecn_marked_packets += u64::from(marked);
                    if marked && at_ns - flow.cnps.last_ns >= limits.min_time_between_cnps_ns {
                        let cut = flow.on_cnp(&params.rp, at_ns, &mut debt);
                        let stat = if cut { Stat::RpCnpHandled } else { Stat::RpCnpIgnored };
                        now.counters[0].stat[stat as usize] += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn documented_screen_matches() {
    let mut state = State::new(vec!["eth0".to_owned()], 0, Duration::from_secs(1));
    let mut port = Loop::new();
    for _ in 0..HISTORY {
        let before = port.now.clone();
        port.second();
        state.show(Sample::new(Some(&before), &port.now), port.now.params.config);
    }
    let mut terminal = Terminal::new(TestBackend::new(106, 15)).unwrap();
    terminal.draw(|frame| view::draw(frame, &state)).unwrap();
    let drawn = svg(terminal.backend().buffer());

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/how-to/top.svg");
    if env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, &drawn).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap();
    assert!(stored == drawn, "{} is outdated: run `cargo xtask docs`", path.display());
}
