//! `penstock report` says what each contract got in the past, and who was responsible if it got
//! less: evidence for a service level agreement (SLA).

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use penstock_control::host::selected;
use penstock_control::report::{Cause, KEPT_BYTES, Minute, Store, Summary, Unit};
use penstock_units::labels::selector;
use serde_json::{Value, json};

use super::{print, print_json};
use crate::table::{Table, bits_per_second, counted, or_dash, to_f64};
use crate::unix_time::unix_s;

/// Longest time in seconds by which a minute may end in the future. The clock may have been set
/// back a little since.
const CLOCK_SLACK: u64 = 60;

/// `penstock report`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// Length of the past to report, as in 90s, 30m, 1h or 7d. Minutes are kept for 30 days
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = seconds)]
    pub since: u64,
    /// Name of a port. Default: all ports with a contract
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Only minutes in which the port had this label, as KEY=VALUE, or as KEY for any value
    #[arg(short = 'l', long = "label", value_name = "LABEL", value_parser = selector)]
    pub labels: Vec<String>,
    /// Directory of the daemon's state, `state_dir` of its configuration
    #[arg(long, value_name = "DIR", default_value = "/var/lib/penstock")]
    pub state_dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a page for a browser
    #[arg(long, conflicts_with = "json")]
    pub html: bool,
}

/// Reads a time such as `90s`, `30m`, `1h` or `7d`.
fn seconds(text: &str) -> Result<u64, String> {
    let unit = text.chars().next_back().unwrap_or_default();
    let scale = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err("write a number and a unit, as in 90s, 30m, 1h or 7d".to_owned()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| "not a number".to_owned())?;
    number.checked_mul(scale).filter(|secs| *secs > 0).ok_or_else(|| "out of range".to_owned())
}

/// Runs `report`, which needs no daemon.
///
/// # Errors
/// Returns an error if the files cannot be read, or if standard output cannot be written. Without a
/// state directory, only a report in JSON is no error, but is empty.
pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    ensure!(
        args.json || args.state_dir.is_dir(),
        "{}: there is no such directory; give --state-dir the `state_dir` of the daemon's \
         configuration",
        args.state_dir.display()
    );
    let now = unix_s();
    let store = Store::new(&args.state_dir);
    let (minutes, ahead) = read(&store, args, now)
        .with_context(|| format!("reading the minutes in {}", args.state_dir.display()))?;
    let all = Summary::of(&minutes);
    let since = now.saturating_sub(args.since);
    let removed = store.removed_until().filter(|until| *until > since);
    let mut missing = removed.map_or_else(String::new, |until| missing(now, until));
    if ahead > 0 {
        missing += &format!(
            "{} left out, because they are in the future: the clock was ahead\n",
            counted(ahead, "minute")
        );
    }
    if args.json {
        print_json(&json!({
            "since_s": args.since,
            "removed_until": removed,
            "minutes_in_future": ahead,
            "contracts": all.iter().map(of).collect::<Vec<_>>(),
        }))?;
    } else if args.html {
        print(&page(&all, args.since, &missing))?;
    } else if all.is_empty() {
        print(&format!(
            "{} has no minutes of contracts since {}; a daemon writes them once a minute\n\
             {missing}",
            args.state_dir.display(),
            past(args.since)
        ))?;
    } else {
        print(&format!("{}{missing}", table(&all).render()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the wanted minutes of the past, and the number of wanted minutes that are in the future.
fn read(store: &Store, args: &ReportArgs, now: u64) -> std::io::Result<(Vec<Minute>, u64)> {
    let wanted = |minute: &Minute| {
        args.port.as_ref().is_none_or(|port| minute.port == *port)
            && selected(&args.labels, &minute.labels)
    };
    let (mut minutes, mut ahead) = (Vec::new(), 0);
    store.read(now.saturating_sub(args.since), |minute| {
        if !wanted(&minute) {
            return;
        }
        if minute.at > now.saturating_add(CLOCK_SLACK) {
            ahead += 1;
        } else {
            minutes.push(minute);
        }
    })?;
    Ok((minutes, ahead))
}

/// Returns a line that says which minutes were removed because of the size of all files.
fn missing(now: u64, removed_until: u64) -> String {
    let hours = now.saturating_sub(removed_until).div_ceil(3_600).max(1);
    format!(
        "minutes older than {} are missing: the files of all days may have {} MiB, and the oldest \
         days were removed\n",
        past(hours * 3_600),
        KEPT_BYTES >> 20
    )
}

/// Returns a length of time as text.
fn past(secs: u64) -> String {
    match secs {
        _ if secs.is_multiple_of(86_400) => format!("{} d", secs / 86_400),
        _ if secs.is_multiple_of(3_600) => format!("{} h", secs / 3_600),
        _ => format!("{} min", secs.div_ceil(60)),
    }
}

fn rate(unit: Unit, rate: u64) -> String {
    match unit {
        Unit::Bits => bits_per_second(to_f64(rate)),
        Unit::Packets => format!("{rate} pps"),
    }
}

/// Returns the causes of minutes out of contract with their numbers, the most frequent first.
fn causes(of: &Summary) -> String {
    let mut causes: Vec<(&Cause, &u64)> =
        of.minutes.iter().filter(|(cause, _)| cause.is_out()).collect();
    causes.sort_by_key(|(_, count)| core::cmp::Reverse(**count));
    let texts: Vec<String> =
        causes.into_iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

const COLUMNS: &str = "PORT|LABELS|>BOUGHT|>CLASS|>GOT|>MINUTES|>OUT, HOST|>OUT, VM|>LEAST|\
                       >WAIT, us|>LATE|CAUSES";

fn cells(of: &Summary) -> [String; 12] {
    [
        of.port.clone(),
        or_dash(&super::port::labels(&of.labels)),
        rate(of.unit, of.bought),
        of.class.to_string(),
        rate(of.unit, of.got),
        of.all().to_string(),
        of.out(false).to_string(),
        of.out(true).to_string(),
        of.least.map_or_else(|| "-".to_owned(), |least| rate(of.unit, least)),
        of.wait_max_us.to_string(),
        of.late.to_string(),
        causes(of),
    ]
}

fn table(all: &[Summary]) -> Table {
    let mut table = Table::new(COLUMNS);
    for of in all {
        table.row(cells(of));
    }
    table
}

fn of(of: &Summary) -> Value {
    let unit = match of.unit {
        Unit::Bits => "bit/s",
        Unit::Packets => "pps",
    };
    let minutes: serde_json::Map<String, Value> =
        of.minutes.iter().map(|(cause, count)| (cause.to_string(), json!(count))).collect();
    json!({
        "port": of.port,
        "labels": of.labels,
        "unit": unit,
        "bought": of.bought,
        "class": of.class,
        "from": of.span.0,
        "until": of.span.1,
        "got": of.got,
        "least": of.least,
        "minutes": minutes,
        "minutes_out_host": of.out(false),
        "minutes_out_vm": of.out(true),
        "wait_max_us": of.wait_max_us,
        "minutes_above_bound": of.late,
    })
}

/// Returns a page with the table. Names of ports have no characters that HTML reserves.
/// `missing` is a line below the table, or empty.
fn page(all: &[Summary], since: u64, missing: &str) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Contracts</title><style>body{{font:14px sans-serif;margin:2em}}\
         td,th{{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right}}\
         td:first-child,th:first-child,td:last-child,th:last-child{{text-align:left}}\
         .out{{background:#fdd}}</style></head><body>\n\
         <h1>Contracts, last {}</h1>\n<table><tr>",
        past(since)
    );
    // Writing to a String cannot fail.
    for title in COLUMNS.split('|').map(|title| title.trim_start_matches('>')) {
        let _ = write!(text, "<th>{title}</th>");
    }
    text.push_str("</tr>\n");
    for of in all {
        let class = if of.out(false) > 0 { " class=\"out\"" } else { "" };
        let _ = write!(text, "<tr{class}>");
        for cell in cells(of) {
            let _ = write!(text, "<td>{}</td>", cell.replace('&', "&amp;").replace('<', "&lt;"));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>");
    if !missing.is_empty() {
        let _ = write!(text, "<p>{}</p>", missing.trim_end());
    }
    text.push_str("</body></html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    fn of_an_hour(state_dir: PathBuf) -> ReportArgs {
        let (port, labels, json, html) = (None, Vec::new(), false, false);
        ReportArgs { since: 3_600, port, labels, state_dir, json, html }
    }

    #[test]
    fn a_directory_that_does_not_exist_is_no_report_without_minutes() {
        let error = run(&of_an_hour("/nonexistent/penstock".into())).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/penstock: there is no such directory"), "{error}");
    }

    #[test]
    fn minutes_of_a_clock_that_was_ahead_are_left_out() {
        let dir = penstock_testing::temp_dir();
        let store = Store::new(&dir);
        store.add(&minutes(), &mut penstock_control::report::Written::default()).unwrap();
        let args = of_an_hour(dir.to_path_buf());
        let at = |now| {
            let (past, ahead) = read(&store, &args, now).unwrap();
            (past.len(), ahead)
        };
        // The minutes end at 60, 120, 180 and 240 s.
        assert_eq!((at(240), at(180), at(120)), ((4, 0), (4, 0), (3, 1)));
    }

    fn minutes() -> Vec<Minute> {
        let minute = |at, got, cause| Minute {
            at,
            port: "vm1".into(),
            unit: Unit::Bits,
            bought: 4_000_000_000,
            got,
            cause,
            class: 2,
            wait_max_us: 120,
            bound_us: Some(100),
            labels: Arc::new([("iface-id".to_owned(), "5f1e".to_owned())].into()),
        };
        vec![
            minute(60, 4_000_000_000, Cause::Kept),
            minute(120, 2_000_000_000, Cause::Neighbours),
            minute(180, 1_000_000_000, Cause::OutsideProfile),
            minute(240, 1_000_000_000, Cause::OutsideProfile),
        ]
    }

    #[test]
    fn times_are_read_with_their_unit() {
        assert_eq!(
            [seconds("90s"), seconds("2h"), seconds("7d")],
            [Ok(90), Ok(7_200), Ok(604_800)]
        );
        for bad in ["", "h", "1", "0m", "-1h", "1y", "99999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_report_says_who_was_responsible() {
        let all = Summary::of(&minutes());
        let text = table(&all).render();
        let line = text.lines().nth(1).unwrap();
        for part in [
            "vm1",
            "iface-id=5f1e",
            "4.00 Gbit/s",
            "2.00 Gbit/s",
            "outside-profile 2, neighbours 1",
        ] {
            assert!(line.contains(part), "{line}");
        }
        let value = of(&all[0]);
        assert_eq!((&value["minutes_out_host"], &value["minutes_out_vm"]), (&json!(1), &json!(2)));
        assert_eq!(
            (&value["minutes_above_bound"], &value["least"]),
            (&json!(4), &json!(1_000_000_000))
        );
        let of_limit = missing(300_000, 86_400);
        assert!(of_limit.starts_with("minutes older than 60 h are missing: the files of all"));
        assert!(of_limit.contains("may have 64 MiB"), "{of_limit}");
        let page = page(&all, 3_600, &of_limit);
        assert!(page.contains("<h1>Contracts, last 1 h</h1>") && page.contains("class=\"out\""));
        assert!(page.contains("</table><p>minutes older than 60 h are missing"), "{page}");
    }
}
