//! Draws the live view: a line for the host, a line for each worker, a table of ports, and a last
//! line with keys.
//!
//! # Approach
//!
//! A column is as wide as its widest cell. If a terminal is too narrow for all columns, the view
//! hides the least important columns, and the last line shows their number. The view never shortens
//! the text in a column.

use penstock_control::api::HostStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::model::{Model, View};
use super::{cycles, delay, vcpu};
use crate::rates::{PortRates, Rates, WorkerRates};
use crate::table::{or_dash, percent, printable, seconds};
use crate::verbs::vcpu::HEADING as HEADING_OF_VCPUS;

const HEADING: [&str; 13] = [
    "PORT",
    "TENANT",
    "STATE",
    "QUEUES",
    "RX Mpps",
    "Gbit/s",
    "TX Mpps",
    "Gbit/s",
    "DROP/s",
    "REASON",
    "CORE",
    "CYC/FR",
    "IN/CLASS/OUT",
];
/// Indices of the columns that the view hides on a narrow terminal, in the order of hiding.
const HIDDEN_FIRST: [usize; 8] = [12, 3, 11, 1, 9, 10, 6, 4];

struct Columns {
    heading: Vec<&'static str>,
    hidden_first: &'static [usize],
    rows: Vec<(Vec<String>, Style)>,
}

impl Columns {
    fn new<const N: usize>(
        heading: [&'static str; N],
        hidden_first: &'static [usize],
        rows: impl Iterator<Item = ([String; N], Style)>,
    ) -> Self {
        let rows = rows.map(|(cells, style)| {
            (cells.iter().map(|cell| printable(cell)).collect::<Vec<_>>(), style)
        });
        Self { heading: heading.to_vec(), hidden_first, rows: rows.collect() }
    }

    /// Widths of the columns that fit into `room`, by position.
    fn fitting(&self, room: u16) -> Vec<(usize, u16)> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|(row, _)| row[at].chars().count());
            let widest = cells.max().unwrap_or(0).max(self.heading[at].chars().count());
            (at, u16::try_from(widest).unwrap_or(u16::MAX))
        };
        let mut columns: Vec<(usize, u16)> = (0..self.heading.len()).map(width).collect();
        let total = |columns: &[(usize, u16)]| {
            columns.iter().map(|(_, width)| usize::from(*width) + 1).sum::<usize>()
        };
        for hidden in self.hidden_first {
            if total(&columns) <= usize::from(room) + 1 {
                break;
            }
            columns.retain(|(at, _)| at != hidden);
        }
        columns
    }

    /// Returns a table widget of the columns `columns`, without the first `above` rows.
    fn table(self, columns: &[(usize, u16)], above: usize) -> Table<'static> {
        let kept = |cells: Vec<String>| {
            columns.iter().map(|(at, _)| cells[*at].clone()).collect::<Vec<_>>()
        };
        let rows = self.rows.into_iter().skip(above);
        let rows: Vec<Row> =
            rows.map(|(cells, style)| Row::new(kept(cells)).style(style)).collect();
        let heading = columns.iter().map(|(at, _)| self.heading[*at]);
        Table::new(rows, columns.iter().map(|(_, width)| Constraint::Length(*width)))
            .header(Row::new(heading).style(Style::new().add_modifier(Modifier::REVERSED)))
            .column_spacing(1)
    }
}

pub fn draw(frame: &mut Frame, model: &Model) {
    let rates = model.rates();
    let workers = u16::try_from(rates.workers.len()).unwrap_or(u16::MAX);
    let [head, worker_lines, ports, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(workers),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(host_line(model)), head);
    let lines: Vec<Line> = rates.workers.iter().map(worker_line).collect();
    frame.render_widget(Paragraph::new(lines), worker_lines);
    let columns = columns(model, &rates);
    if columns.rows.is_empty() && model.view == View::Vcpus {
        frame.render_widget(Paragraph::new(printable(&vcpu::absent(model))), ports);
        frame.render_widget(Paragraph::new(foot_line(model, 0)), foot);
        return;
    }
    let shown = columns.fitting(ports.width);
    let hidden = columns.heading.len() - shown.len();
    frame.render_widget(columns.table(&shown, model.scroll), ports);
    frame.render_widget(Paragraph::new(foot_line(model, hidden)), foot);
}

fn host_line(model: &Model) -> Line<'static> {
    let status = model.status();
    Line::from(vec![
        Span::styled(
            format!("penstock {}", printable(&status.name)),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Span::raw(format!(
            "  {}  up {}  generation {}",
            printable(&status.version),
            seconds(status.uptime_s),
            status.generation
        )),
        fabric_span(status),
    ])
}

/// Returns the host's role in a fabric; empty if the host is not in a fabric.
fn fabric_span(status: &HostStatus) -> Span<'static> {
    let Some(fabric) = &status.fabric else { return Span::raw("") };
    let plan = if fabric.applied.is_empty() { "none" } else { &fabric.applied };
    let text = format!("  fabric plan {}", printable(plan));
    match fabric.stale_ms {
        Some(millis) => {
            let text = format!("{text}  STALE {}", seconds(millis / 1_000));
            Span::styled(text, Style::new().fg(Color::Red))
        }
        None => Span::raw(text),
    }
}

/// Returns the line of a worker, which fits a terminal of 80 columns.
fn worker_line(worker: &WorkerRates) -> Line<'static> {
    const BAR: usize = 6;
    let time = worker.time;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a bar has at most 6 characters"
    )]
    let full = ((time.charged.clamp(0.0, 1.0) * BAR as f64).round()) as usize;
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
    let text = format!(
        "worker {} core {:<3} {bar} charged {:>7} host {:>6} idle {:>7} stolen {:>6}",
        worker.id,
        worker.core,
        percent(time.charged),
        percent(time.host),
        percent(time.idle),
        percent(time.stolen),
    );
    if worker.stalled {
        Line::styled(format!("{text}  STALLED"), Style::new().fg(Color::Red))
    } else {
        Line::raw(text)
    }
}

fn columns(model: &Model, rates: &Rates) -> Columns {
    let ports = rates.ports.iter();
    match model.view {
        View::Rates => {
            let rows = ports.map(|port| port_row(model, port));
            Columns::new(HEADING, &HIDDEN_FIRST, rows)
        }
        View::Cycles => {
            let rows = ports.map(|port| {
                let throttled = port.throttled_share >= 0.05;
                let style = Style::new();
                let style = if throttled { style.fg(Color::Yellow) } else { style };
                (cycles::cells(port, model.port(&port.port)), style)
            });
            Columns::new(cycles::HEADING, &cycles::HIDDEN_FIRST, rows)
        }
        View::Delays => {
            let rows = ports.map(|port| (delay::cells(port), Style::new()));
            Columns::new(delay::HEADING, &delay::HIDDEN_FIRST, rows)
        }
        View::Vcpus => {
            let rows = vcpu::rows(model).into_iter().map(|cells| (cells, Style::new()));
            Columns::new(HEADING_OF_VCPUS, &vcpu::HIDDEN_FIRST, rows)
        }
    }
}

fn port_row(model: &Model, port: &PortRates) -> ([String; 13], Style) {
    let status = model.port(&port.port);
    let state = status.map_or_else(|| "-".to_owned(), |status| status.state.clone());
    let queues = status
        .map_or_else(|| "-".to_owned(), |status| format!("{}/{}", status.queues_up, status.queues));
    let dash = || "-".to_owned();
    let style = match state.as_str() {
        "error" | "down" => Style::new().fg(Color::Red),
        "waiting" | "connected" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    let cells = [
        port.port.clone(),
        status.map_or_else(dash, |status| or_dash(&status.tenant)),
        state,
        queues,
        format!("{:.3}", port.rx_pps / 1e6),
        format!("{:.2}", port.rx_bps / 1e9),
        format!("{:.3}", port.tx_pps / 1e6),
        format!("{:.2}", port.tx_bps / 1e9),
        format!("{:.0}", port.drop_pps),
        port.drop_reason.as_ref().map_or_else(dash, |(name, _)| name.clone()),
        percent(port.core_share),
        port.cycles_per_frame.map_or_else(dash, |cycles| format!("{cycles:.0}")),
        port.stage_cycles
            .map_or_else(dash, |stages| stages.map(|cycles| format!("{cycles:.0}")).join("/")),
    ];
    (cells, style)
}

fn foot_line(model: &Model, hidden: usize) -> Line<'static> {
    let paused = if model.paused { "  PAUSED" } else { "" };
    let hidden = if hidden > 0 { format!("  +{hidden} hidden") } else { String::new() };
    let text = format!(
        "q quit  s sort: {}  c cycles  d delays  v vCPUs  p pause  ↑↓{paused}{hidden}",
        model.sort.name()
    );
    Line::styled(text, Style::new().add_modifier(Modifier::DIM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::fixture::reading;
    use crate::top::model::{Model, Reading};
    use penstock_control::api::PortStatus;
    use penstock_vcpu_host::state::{State, VcpuState, VmState};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn the_view_shows_rates_drops_and_stages() {
        let at = |time_s, counters: &[(&str, u64)], drops: &[(&str, u64)]| Reading {
            status: HostStatus {
                name: "node7".into(),
                version: "0.1.0".into(),
                tsc_hz: 1_000_000_000,
                ..HostStatus::default()
            },
            ports: vec![PortStatus {
                name: "vm1".into(),
                tenant: "red".into(),
                state: "up".into(),
                queues: 1,
                queues_up: 1,
                ..PortStatus::default()
            }],
            stats: reading(time_s, counters, drops),
            vcpus: None,
        };
        let mut model = Model::default();
        model.take(at(1, &[], &[]));
        let counters = [
            ("rx_frames", 2_000_000),
            ("rx_bytes", 128_000_000),
            ("cycles", 260_000_000),
            ("sampled_frames", 10),
            ("cycles_ingress", 400),
            ("cycles_classification", 300),
            ("cycles_egress", 600),
        ];
        model.take(at(2, &counters, &[("ring-full", 12)]));
        let mut terminal = Terminal::new(TestBackend::new(140, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines: Vec<String> = (0..8)
            .map(|y| (0..140).map(|x| buffer[(x, y)].symbol()).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert!(lines[0].starts_with("penstock node7  0.1.0"), "{lines:#?}");
        assert!(
            lines[1].ends_with("charged  25.0 % host  1.0 % idle  74.0 % stolen  0.0 %"),
            "{lines:#?}"
        );
        assert!(lines[1].chars().count() <= 80, "{lines:#?}");
        assert!(lines[2].starts_with("PORT"), "{lines:#?}");
        for part in [
            "vm1",
            "red",
            "up",
            "1/1",
            "2.000",
            "1.09",
            "12",
            "ring-full",
            "26.0 %",
            "130",
            "40/30/60",
        ] {
            assert!(lines[3].contains(part), "{part}: {lines:#?}");
        }
        assert!(lines[7].starts_with("q quit  s sort: id"), "{lines:#?}");
        model.toggle(View::Cycles);
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line: String = (0..140).map(|x| buffer[(x, 3)].symbol()).collect();
        assert!(line.contains("260 M"), "{line}");
    }

    #[test]
    fn a_narrow_terminal_hides_whole_columns_and_cuts_none() {
        let at = |time_s, counters: &[(&str, u64)]| Reading {
            status: HostStatus { tsc_hz: 2_000_000_000, ..HostStatus::default() },
            ports: vec![PortStatus {
                name: "vm1".into(),
                tenant: "customer-17".into(),
                state: "connected".into(),
                policy: "cycles-minmax".into(),
                entitled: 200_000_000,
                ..PortStatus::default()
            }],
            stats: reading(time_s, counters, &[("destination-down", 123_456)]),
            vcpus: None,
        };
        let mut model = Model::default();
        model.take(at(1, &[]));
        let counters = [
            ("rx_frames", 12_345_678),
            ("rx_bytes", 1_234_567_800),
            ("rx_batches", 400_000),
            ("delay", 400_000_000),
            ("cycles", 1_260_000_000),
            ("debt", 123_456),
            ("tx_queued", 1_024),
            ("tx_queue_p99", 4_567_000),
            ("sampled_frames", 10),
            ("cycles_ingress", 4_000),
        ];
        model.take(at(2, &counters));
        for view in [View::Rates, View::Cycles, View::Delays] {
            model.view = view;
            let all = columns(&model, &model.rates());
            for width in [80, 120] {
                let mut terminal = Terminal::new(TestBackend::new(width, 8)).unwrap();
                terminal.draw(|frame| draw(frame, &model)).unwrap();
                let buffer = terminal.backend().buffer();
                let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
                let shown = all.fitting(width);
                if width == 120 {
                    assert_eq!(shown.len(), all.heading.len(), "{view:?}: {}", line(2));
                }
                for (at, _) in &shown {
                    let cell = &all.rows[0].0[*at];
                    assert!(line(3).contains(cell), "{view:?} at {width}: {cell}: {}", line(3));
                }
                let hidden = all.heading.len() - shown.len();
                let note = format!("+{hidden} hidden");
                assert_eq!(line(7).contains(&note), hidden > 0, "{view:?}: {}", line(7));
            }
        }
    }

    #[test]
    fn vcpus_have_a_view_of_their_own() {
        let mut model = Model::default();
        let at = |time_s| Reading { stats: reading(time_s, &[], &[]), ..Reading::default() };
        model.take(at(1));
        model.toggle(View::Vcpus);
        let mut terminal = Terminal::new(TestBackend::new(140, 8)).unwrap();
        let mut lines = |model: &Model| -> Vec<String> {
            terminal.draw(|frame| draw(frame, model)).unwrap();
            let buffer = terminal.backend().buffer();
            (0..8).map(|y| (0..140).map(|x| buffer[(x, y)].symbol()).collect()).collect()
        };
        assert!(lines(&model).iter().any(|line| line.contains("has no [vcpu]")));
        let vcpu = VcpuState { share_percent: 16.5, missed: 7, ..VcpuState::default() };
        let vm = VmState { name: "web".into(), vcpus: vec![vcpu], ..VmState::default() };
        let state = State { vms: vec![vm], ..State::default() };
        model.take(Reading { vcpus: Some(state), ..at(3) });
        let row = |line: &String| line.starts_with("web") && line.contains("16.50 %");
        assert!(lines(&model).iter().any(row), "{:#?}", lines(&model));
    }
}
