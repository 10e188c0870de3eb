//! How the live view is drawn: a line for the host, one a worker, a table of ports, a foot line.

use penstock_control::api::HostStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::model::{Model, View};
use super::{cycles, delay, vcpu};
use crate::rates::{PortRates, Rates, WorkerRates};
use crate::table::{percent, printable, seconds};
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
    "MOST FOR",
    "CORE",
    "CYC/FR",
    "IN/CLASS/OUT",
];
const WIDTHS: [u16; 13] = [14, 10, 9, 6, 8, 7, 8, 7, 9, 15, 7, 6, 14];

/// Draws one frame.
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
    frame.render_widget(port_table(model, &rates), ports);
    frame.render_widget(Paragraph::new(foot_line(model)), foot);
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

/// The host's part in a fabric; empty if it has none.
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

fn worker_line(worker: &WorkerRates) -> Line<'static> {
    const BAR: usize = 20;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of 20 characters"
    )]
    let full = ((worker.busy_share.clamp(0.0, 1.0) * BAR as f64).round()) as usize;
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR - full));
    let text = format!(
        "worker {} core {:<3} {bar} busy {:>7}  taken away {:>7}",
        worker.id,
        worker.core,
        percent(worker.busy_share),
        percent(worker.stolen_share),
    );
    if worker.stalled {
        Line::styled(format!("{text}  STALLED"), Style::new().fg(Color::Red))
    } else {
        Line::raw(text)
    }
}

fn port_table(model: &Model, rates: &Rates) -> Table<'static> {
    match model.view {
        View::Cycles => return cycles_table(model, rates),
        View::Delays => return delay_table(model, rates),
        View::Vcpus => return vcpu_table(model),
        View::Rates => {}
    }
    let rows = rates.ports.iter().skip(model.scroll).map(|port| port_row(model, port));
    let heading = HEADING.map(ToOwned::to_owned);
    Table::new(rows, WIDTHS.map(Constraint::Length))
        .header(Row::new(heading).style(Style::new().add_modifier(Modifier::REVERSED)))
        .column_spacing(1)
}

fn cycles_table(model: &Model, rates: &Rates) -> Table<'static> {
    let row = |port: &PortRates| {
        let status = model.port(&port.port);
        let row = Row::new(cycles::cells(port, status).map(|cell| printable(&cell)));
        let throttled = port.throttled_share >= 0.05;
        if throttled { row.style(Style::new().fg(Color::Yellow)) } else { row }
    };
    let rows = rates.ports.iter().skip(model.scroll).map(row);
    Table::new(rows, cycles::WIDTHS.map(Constraint::Length))
        .header(Row::new(cycles::HEADING).style(Style::new().add_modifier(Modifier::REVERSED)))
        .column_spacing(1)
}

fn delay_table(model: &Model, rates: &Rates) -> Table<'static> {
    let row = |port: &PortRates| Row::new(delay::cells(port).map(|cell| printable(&cell)));
    let rows = rates.ports.iter().skip(model.scroll).map(row);
    Table::new(rows, delay::WIDTHS.map(Constraint::Length))
        .header(Row::new(delay::HEADING).style(Style::new().add_modifier(Modifier::REVERSED)))
        .column_spacing(1)
}

fn vcpu_table(model: &Model) -> Table<'static> {
    let rows = vcpu::rows(model).into_iter().skip(model.scroll);
    let rows: Vec<Row> = rows.map(|cells| Row::new(cells.map(|cell| printable(&cell)))).collect();
    if rows.is_empty() {
        let why = Row::new([printable(&vcpu::absent(model))]);
        return Table::new([why], [Constraint::Min(1)]);
    }
    Table::new(rows, vcpu::WIDTHS.map(Constraint::Length))
        .header(Row::new(HEADING_OF_VCPUS).style(Style::new().add_modifier(Modifier::REVERSED)))
        .column_spacing(1)
}

fn port_row(model: &Model, port: &PortRates) -> Row<'static> {
    let status = model.port(&port.port);
    let state = status.map_or_else(|| "-".to_owned(), |status| printable(&status.state));
    let queues = status
        .map_or_else(|| "-".to_owned(), |status| format!("{}/{}", status.queues_up, status.queues));
    let dash = || "-".to_owned();
    let row = Row::new([
        printable(&port.port),
        status.map_or_else(dash, |status| printable(&status.tenant)),
        state.clone(),
        queues,
        format!("{:.3}", port.rx_pps / 1e6),
        format!("{:.2}", port.rx_bps / 1e9),
        format!("{:.3}", port.tx_pps / 1e6),
        format!("{:.2}", port.tx_bps / 1e9),
        format!("{:.0}", port.drop_pps),
        port.drop_reason.as_ref().map_or_else(dash, |(name, _)| printable(name)),
        percent(port.core_share),
        port.cycles_per_frame.map_or_else(dash, |cycles| format!("{cycles:.0}")),
        port.stage_cycles
            .map_or_else(dash, |stages| stages.map(|cycles| format!("{cycles:.0}")).join("/")),
    ]);
    match state.as_str() {
        "error" | "down" => row.style(Style::new().fg(Color::Red)),
        "waiting" | "connected" => row.style(Style::new().fg(Color::Yellow)),
        _ => row,
    }
}

fn foot_line(model: &Model) -> Line<'static> {
    let paused = if model.paused { "  PAUSED" } else { "" };
    let text = format!(
        "q quit  s sort: {}  c cycles  d delays  v vCPUs  p pause  ↑↓ scroll{paused}",
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
        assert!(lines[1].contains("busy  25.0 %"), "{lines:#?}");
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
        assert!(lines[7].starts_with("q quit  s sort: slot"), "{lines:#?}");
        model.toggle(View::Cycles);
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line: String = (0..140).map(|x| buffer[(x, 3)].symbol()).collect();
        assert!(line.contains("260 Mcycles/s"), "{line}");
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
