//! Usage of tenants in each interval, recorded or generated.
//!
//! A record has lines of `interval,tenant,used_pct` below a heading of these words. `used_pct` is
//! the usage factor of QShare eq. (1) in percent, which may be above 100. A tenant without a line
//! in an interval uses nothing in this interval. If a line of a record is wrong, the whole record
//! is refused.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use penstock_units::Rng;

/// Demand of each tenant in each interval, as a part of the tenant's guarantee. The outer list has
/// an entry for each interval, and each inner list has an entry for each tenant. A tenant with a
/// demand of 1 or more takes all available bandwidth.
pub(super) type Usage = Vec<Vec<f64>>;

const HEADING: &str = "interval,tenant,used_pct";

/// Parses the recorded usage in `text`. The argument `file` is the name of the recorded file, for
/// errors.
///
/// # Errors
/// Returns an error if the heading or a line of the recorded usage is wrong. The error for a record
/// contains the number of the first wrong line and the reason.
pub(super) fn recorded(text: &str, file: &str, tenants: &[&str]) -> Result<Usage> {
    let place: HashMap<&str, usize> = tenants.iter().copied().zip(0..).collect();
    // Some spreadsheets begin the text with a byte order mark.
    let mut lines = (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines());
    let heading = lines.next().map_or("", |(_, line)| line.trim());
    ensure!(heading == HEADING, "{file}:1: the heading is `{heading}`; write `{HEADING}`");
    let (mut usage, mut last) = (Usage::new(), None);
    let mut told = vec![false; tenants.len()];
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let (interval, tenant, part) =
            read(line, &place).with_context(|| format!("{file}:{number}"))?;
        if last != Some(interval) {
            let ascends = last.is_none_or(|last| interval > last);
            ensure!(
                ascends,
                "{file}:{number}: interval {interval} is out of order; sort the lines"
            );
            usage.push(vec![0.0; tenants.len()]);
            told.fill(false);
            last = Some(interval);
        }
        ensure!(
            !std::mem::replace(&mut told[tenant], true),
            "{file}:{number}: interval {interval} has two lines of `{}`; keep one",
            tenants[tenant]
        );
        if let Some(here) = usage.last_mut() {
            here[tenant] = part;
        }
    }
    ensure!(!usage.is_empty(), "{file}: the file has no interval; record at least one interval");
    Ok(usage)
}

fn read(line: &str, place: &HashMap<&str, usize>) -> Result<(u64, usize, f64)> {
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    let [interval, tenant, used] = cells[..] else {
        anyhow::bail!("{} values; write `{HEADING}`", cells.len());
    };
    let interval = interval.parse().ok().with_context(|| {
        format!("interval `{interval}` is not a whole number; write 0 or above")
    })?;
    let tenant = place.get(tenant).copied();
    let tenant = tenant.with_context(|| format!("no tenant is called `{}`", cells[1]))?;
    let used = used.parse::<f64>().ok().filter(|used| used.is_finite() && *used >= 0.0);
    let used =
        used.with_context(|| format!("`{}` is not a percentage; write 0 or above", cells[2]))?;
    Ok((interval, tenant, used / 100.0))
}

/// Generates usage. In each interval, each tenant is inactive with probability `inactive`. An
/// inactive tenant uses a random part of its guarantee, uniform from 0 to 1. An active tenant uses
/// all available bandwidth.
pub(super) fn made_up(tenants: usize, intervals: u32, inactive: f64, seed: u64) -> Usage {
    let mut rng = Rng::new(seed);
    let one = |rng: &mut Rng| if rng.unit() < inactive { rng.unit() } else { 1.0 };
    (0..intervals).map(|_| (0..tenants).map(|_| one(&mut rng)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_by_interval() {
        let text = "interval,tenant,used_pct\n1,red,50\n1,blue,120\n\n4,blue,0\n";
        let usage = recorded(text, "u.csv", &["blue", "red"]).unwrap();
        assert_eq!(usage, [vec![1.2, 0.5], vec![0.0, 0.0]]);
        let marked = format!("\u{feff}{text}");
        assert_eq!(recorded(&marked, "u.csv", &["blue", "red"]).unwrap(), usage);
    }

    #[test]
    fn a_wrong_line_refuses_the_file_with_its_number_and_reason() {
        for (lines, says) in [
            ("tenant,interval\n", "u.csv:1: the heading"),
            ("interval,tenant,used_pct\n1,red\n", "u.csv:2: 2 values"),
            ("interval,tenant,used_pct\n1,red,1\n1,green,1\n", "u.csv:3: no tenant is called"),
            ("interval,tenant,used_pct\n1,red,NaN\n", "u.csv:2: `NaN` is not a percentage"),
            ("interval,tenant,used_pct\n1,red,-1\n", "`-1` is not a percentage"),
            ("interval,tenant,used_pct\nx,red,1\n", "interval `x` is not a whole number"),
            ("interval,tenant,used_pct\n2,red,1\n1,red,1\n", "u.csv:3: interval 1 is out of order"),
            ("interval,tenant,used_pct\n1,red,1\n1,red,2\n", "u.csv:3: interval 1 has two lines"),
            ("interval,tenant,used_pct\n", "no interval"),
        ] {
            let error = format!("{:#}", recorded(lines, "u.csv", &["red"]).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_is_made_up_is_the_same_for_a_seed() {
        assert_eq!(made_up(9, 4, 0.5, 7), made_up(9, 4, 0.5, 7));
        assert_ne!(made_up(9, 4, 0.5, 7), made_up(9, 4, 0.5, 8));
        assert!(made_up(9, 4, 0.0, 7).iter().flatten().all(|part| *part >= 1.0));
    }
}
