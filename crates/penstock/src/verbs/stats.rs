//! `penstock stats` prints counters and rates of ports.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use penstock_control::api::{self, LinkStatus, NamedCount, PortStats, Stats};
use penstock_dataplane::drop::DropReason;

use super::{delays, print, print_json, queues};
use crate::cli::{StatsArgs, interval_ms};
use crate::client::{Client, connect, refused, timed};
use crate::rates::{Rates, WorkerRates, WorkerTime, counter};
use crate::table::{
    Table, bits_per_second, bytes, count, counted, frames_per_second, percent, printable, to_f64,
};

/// # Errors
/// Returns an error if the daemon cannot be reached or refuses the request, or a port does not
/// exist.
pub async fn run(socket: &Path, mut args: StatsArgs) -> Result<ExitCode> {
    let mut client = connect(socket).await?;
    if !args.labels.labels.is_empty() {
        let selectors = std::mem::take(&mut args.labels.labels);
        let ports = super::port::list(socket, selectors.clone()).await?;
        let names = ports
            .into_iter()
            .map(|port| port.name)
            .filter(|name| args.ports.is_empty() || args.ports.contains(name));
        args.ports = names.collect();
        if args.ports.is_empty() {
            bail!("stats: no port has the label {}", printable(&selectors.join(" and ")));
        }
    }
    for port in args.ports.iter_mut().filter(|port| port.contains('=')) {
        *port = super::port::name_of(&mut client, std::mem::take(port)).await?;
    }
    if let Some(seconds) = args.watch {
        return watch(&mut client, &args, seconds).await;
    }
    let request = timed(api::GetStatsRequest { exact: args.check });
    let stats = client.get_stats(request).await.map_err(refused)?.into_inner();
    let stats = only(stats, &args.ports)?;
    if args.json {
        print_json(&stats)?;
    } else if args.drops {
        print(&drops_table(&stats.ports))?;
    } else if args.delays {
        print(&delays::table(&stats.ports))?;
    } else if args.queues {
        print(&queues::table(&stats.ports))?;
    } else {
        print(&counters_table(&stats.ports))?;
        print(&links_text(&stats.links))?;
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    if !stats.exact {
        bail!(
            "stats: a worker gave no exact reading; look for a stalled worker with `penstock host \
             show`"
        );
    }
    for violation in &stats.violations {
        eprintln!("penstock: stats: counters do not add up: {}", printable(violation));
    }
    if stats.violations.is_empty() {
        if !args.json {
            print(
                "\nThe counters add up: rx + replicated = forwarded + drops + queued on every \
                   port, and the sums of forwarded and tx over all ports are equal.\n",
            )?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Removes all ports that are not in `names` from `stats`. An empty list `names` keeps all ports.
fn only(mut stats: Stats, names: &[String]) -> Result<Stats> {
    for name in names {
        if !stats.ports.iter().any(|port| port.port == *name) {
            bail!("port {name}: there is no such port; see `penstock port list`");
        }
    }
    if !names.is_empty() {
        stats.ports.retain(|port| names.contains(&port.port));
    }
    Ok(stats)
}

async fn watch(client: &mut Client, args: &StatsArgs, seconds: f64) -> Result<ExitCode> {
    let hz = client.get_status(timed(api::GetStatusRequest {})).await.map_err(refused)?;
    let hz = hz.into_inner().tsc_hz;
    let request = api::WatchStatsRequest { interval_ms: interval_ms(seconds) };
    let mut stream = client.watch_stats(request).await.map_err(refused)?.into_inner();
    let mut before: Option<Stats> = None;
    loop {
        let message = tokio::select! {
            message = stream.message() => message.map_err(refused)?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        let Some(message) = message else {
            bail!("daemon: the connection ended; see the log of the daemon")
        };
        let now = only(message, &args.ports)?;
        if args.json {
            print(&format!("{}\n", serde_json::to_string(&now)?))?;
        } else if let Some(before) = &before {
            let rates = rates_table(&Rates::between(before, &now, hz));
            print(&format!("{rates}{}\n", links_text(&now.links)))?;
        }
        before = Some(now);
    }
}

/// Returns a table of the ports' counters since the daemon's start.
fn counters_table(ports: &[PortStats]) -> String {
    let mut table = Table::new(
        "PORT|>RX FRAMES|>RX|>TX FRAMES|>TX|>FORWARDED|>REPLICATED|>DROPS|>TX DROPS|>QUEUED",
    );
    for port in ports {
        let value = |name| counter(&port.counters, name);
        let sum = |list: &[NamedCount]| list.iter().map(|count| count.value).sum::<u64>();
        table.row([
            port.port.clone(),
            count(value("rx_frames")),
            bytes(value("rx_bytes")),
            count(value("tx_frames")),
            bytes(value("tx_bytes")),
            count(value("forwarded")),
            count(value("replicated")),
            count(sum(&port.drops)),
            count(sum(&port.tx_drops)),
            count(value("queued")),
        ]);
    }
    table.render()
}

pub(crate) fn links_text(links: &[LinkStatus]) -> String {
    let line = |link: &LinkStatus| {
        let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
        let capacity = bits_per_second(to_f64(link.capacity_bps));
        let mut line = format!(
            "link {}: sends {} of {capacity}",
            printable(&link.port),
            percent(link.sent_permille)
        );
        if link.limited {
            line.push_str(&format!(
                ", the bottleneck for {:.1} s: each VM is limited to its part of the link; the \
                 load including dropped frames is {}",
                to_f64(link.since_ms) / 1e3,
                percent(link.load_permille)
            ));
        }
        if link.entered > 0 {
            line.push_str(&format!(", bottleneck {} so far", counted(link.entered, "time")));
        }
        line + "\n"
    };
    links.iter().map(line).collect()
}

/// Returns the drops by reason, with the meaning of each reason.
fn drops_table(ports: &[PortStats]) -> String {
    let mut table = Table::new("PORT|FRAMES|REASON|>DROPS|MEANING");
    for port in ports {
        for (side, list) in [("sent", &port.drops), ("received", &port.tx_drops)] {
            for NamedCount { name, value } in list {
                let help = DropReason::ALL.iter().find(|reason| reason.name() == name.as_str());
                table.row([
                    port.port.clone(),
                    side.to_owned(),
                    name.clone(),
                    count(*value),
                    help.map_or("", |reason| reason.help()).to_owned(),
                ]);
            }
        }
    }
    table.render_or("no drops\n")
}

/// Returns a table of the rates of ports and workers between two readings.
pub(crate) fn rates_table(rates: &Rates) -> String {
    let mut table =
        Table::new("PORT|>RX|>RX RATE|>TX|>TX RATE|>DROPS|MAIN REASON|>CORE|>CYCLES/FRAME");
    for port in &rates.ports {
        table.row([
            port.port.clone(),
            frames_per_second(port.rx_pps),
            bits_per_second(port.rx_bps),
            frames_per_second(port.tx_pps),
            bits_per_second(port.tx_bps),
            frames_per_second(port.drop_pps),
            port.drop_reason.as_ref().map_or_else(|| "-".to_owned(), |(name, _)| name.clone()),
            percent(port.core_share),
            port.cycles_per_frame.map_or_else(|| "-".to_owned(), |cycles| format!("{cycles:.0}")),
        ]);
    }
    format!("{}\n{}", table.render(), workers_table(&rates.workers))
}

/// Returns a table of the shares of each worker's time.
fn workers_table(workers: &[WorkerRates]) -> String {
    let mut table = Table::new(">WORKER|>CORE|>CHARGED|>HOST|>IDLE|>STOLEN|>UNATTRIBUTED|");
    for worker in workers {
        let WorkerTime { charged, host, idle, stolen, unattributed } = worker.time;
        let [charged, host, idle, stolen, unattributed] =
            [charged, host, idle, stolen, unattributed].map(percent);
        let stalled = if worker.stalled { "STALLED" } else { "" }.to_owned();
        let (id, core) = (worker.id.to_string(), worker.core.to_string());
        table.row([id, core, charged, host, idle, stolen, unattributed, stalled]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::fixture::reading;

    #[test]
    fn counters_have_units() {
        let stats = reading(
            1,
            &[("rx_frames", 1_234_567), ("rx_bytes", 79_012_288), ("forwarded", 1_234_560)],
            &[("rule", 7)],
        );
        assert_eq!(
            counters_table(&stats.ports),
            "\
PORT  RX FRAMES       RX  TX FRAMES   TX  FORWARDED  REPLICATED  DROPS  TX DROPS  QUEUED
vm1   1,234,567  79.0 MB          0  0 B  1,234,560           0      7         0       0
"
        );
        assert_eq!(
            drops_table(&stats.ports),
            "\
PORT  FRAMES  REASON  DROPS  MEANING
vm1   sent    rule        7  a rule says drop
"
        );
    }

    #[test]
    fn rates_have_units_and_the_worker_an_account() {
        let earlier = reading(1, &[], &[]);
        let later = reading(
            2,
            &[("rx_frames", 1_000_000), ("rx_bytes", 64_000_000), ("cycles", 130_000_000)],
            &[("ring-full", 10)],
        );
        assert_eq!(
            rates_table(&Rates::between(&earlier, &later, 1_000_000_000)),
            "\
PORT         RX     RX RATE     TX  TX RATE   DROPS  MAIN REASON    CORE  CYCLES/FRAME
vm1   1.00 Mpps  544 Mbit/s  0 pps  0 bit/s  10 pps  ring-full    13.0 %           130

WORKER  CORE  CHARGED   HOST    IDLE  STOLEN  UNATTRIBUTED
     0     3   25.0 %  1.0 %  74.0 %   0.0 %         0.0 %
"
        );
    }

    #[test]
    fn a_watched_link_has_a_line() {
        let mut link = LinkStatus {
            port: "up".into(),
            capacity_bps: 10_000_000_000,
            sent_permille: 985,
            ..LinkStatus::default()
        };
        let text = links_text(core::slice::from_ref(&link));
        assert_eq!(text, "link up: sends 98.5 % of 10.0 Gbit/s\n");
        (link.limited, link.load_permille, link.since_ms, link.entered) = (true, 1_200, 2_500, 3);
        assert_eq!(
            links_text(&[link]),
            "link up: sends 98.5 % of 10.0 Gbit/s, the bottleneck for 2.5 s: each VM is limited \
             to its part of the link; the load including dropped frames is 120.0 %, bottleneck 3 \
             times so far\n"
        );
    }

    #[test]
    fn a_port_that_is_not_there_is_named() {
        let error = only(reading(1, &[], &[]), &["vm9".into()]).unwrap_err();
        assert_eq!(error.to_string(), "port vm9: there is no such port; see `penstock port list`");
        assert_eq!(only(reading(1, &[], &[]), &["vm1".into()]).unwrap().ports.len(), 1);
    }
}
