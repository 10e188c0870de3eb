//! `penstock top`, the live view. The module `top` sends requests to the daemon and reads keys.
//! [`model`] has the state, and [`view`] draws it.

mod cycles;
mod delay;
mod model;
mod vcpu;
mod view;

use std::io::{IsTerminal as _, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use penstock_control::api;
use tokio::sync::mpsc;

use crate::cli::{TopArgs, interval_ms};
use crate::client::{Client, connect, refused, timed};
use crate::verbs::{print, stats::rates_table};
use model::{Model, Reading, View};

/// Runs the view until the user types `q`. Prints text if standard output is not a terminal.
///
/// # Errors
/// Returns an error if the daemon cannot be reached, or the terminal fails.
pub async fn run(socket: &Path, args: TopArgs) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    let interval = Duration::from_millis(interval_ms(args.interval).into());
    if stdout().is_terminal() && args.count.is_none() {
        live(&mut client, interval).await?;
    } else {
        plain(&mut client, interval, args.count).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(client: &mut Client) -> Result<Reading> {
    let status = client.get_status(timed(api::GetStatusRequest {})).await.map_err(refused)?;
    let ports =
        client.list_ports(timed(api::ListPortsRequest::default())).await.map_err(refused)?;
    let stats =
        client.get_stats(timed(api::GetStatsRequest { exact: false })).await.map_err(refused)?;
    let status = status.into_inner();
    Ok(Reading {
        vcpus: crate::verbs::vcpu::of_host(&status.vcpu_dir),
        status,
        ports: ports.into_inner().ports,
        stats: stats.into_inner(),
    })
}

async fn plain(client: &mut Client, interval: Duration, count: Option<u64>) -> Result<()> {
    let mut model = Model::default();
    model.take(read(client).await?);
    let mut ticks = tokio::time::interval(interval);
    ticks.tick().await;
    let mut left = count;
    while left != Some(0) {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        model.take(read(client).await?);
        let rates = rates_table(&model.rates());
        let all = [rates, cycles::table(&model), delay::table(&model), vcpu::table(&model)];
        let tables: Vec<String> = all.into_iter().filter(|table| !table.is_empty()).collect();
        print(&format!("{}\n", tables.join("\n")))?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Restores the terminal when the view ends, for any reason.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn live(client: &mut Client, interval: Duration) -> Result<()> {
    let first = read(client).await?;
    let mut terminal = ratatui::try_init().context("terminal")?;
    let _restore = Restore;
    let mut keys = keys();
    let mut model = Model::default();
    model.take(first);
    let mut ticks = tokio::time::interval(interval);
    ticks.tick().await;
    loop {
        terminal.draw(|frame| view::draw(frame, &model)).context("terminal")?;
        tokio::select! {
            _ = ticks.tick() => if !model.paused {
                model.take(read(client).await?);
            },
            key = keys.recv() => match key {
                None | Some(Key::Quit) => return Ok(()),
                Some(Key::Sort) => model.sort = model.sort.next(),
                Some(Key::Show(view)) => model.toggle(view),
                Some(Key::Pause) => model.paused = !model.paused,
                Some(Key::Up) => model.scroll = model.scroll.saturating_sub(1),
                Some(Key::Down) => model.scroll_down(),
                Some(Key::Redraw) => {}
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Sort,
    Show(View),
    Pause,
    Up,
    Down,
    Redraw,
}

/// Reads keys on a separate thread, because reading the terminal blocks. The thread that reads keys
/// ends when the program ends.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(key) = meaning(&event)
                && sender.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn meaning(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Resize(..) => return Some(Key::Redraw),
        Event::Key(key) if key.kind == KeyEventKind::Press => key,
        _ => return None,
    };
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('s') => Some(Key::Sort),
        KeyCode::Char('c') => Some(Key::Show(View::Cycles)),
        KeyCode::Char('d') => Some(Key::Show(View::Delays)),
        KeyCode::Char('v') => Some(Key::Show(View::Vcpus)),
        KeyCode::Char('p') | KeyCode::Char(' ') => Some(Key::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossterm::event::KeyEvent;

    #[test]
    fn keys_mean_what_the_foot_line_says() {
        let press = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::Quit));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Quit));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), Some(Key::Show(View::Cycles)));
        assert_eq!(press(KeyCode::Char('d'), KeyModifiers::NONE), Some(Key::Show(View::Delays)));
        assert_eq!(press(KeyCode::Char('v'), KeyModifiers::NONE), Some(Key::Show(View::Vcpus)));
        assert_eq!(press(KeyCode::Char('s'), KeyModifiers::NONE), Some(Key::Sort));
        assert_eq!(press(KeyCode::Char('p'), KeyModifiers::NONE), Some(Key::Pause));
    }
}
