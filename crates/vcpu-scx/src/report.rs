//! Formats the reports of threads as a table.

use std::fmt::Write as _;

use crate::wire::{Report, WAIT_BUCKET_NS};

/// Returns the time in milliseconds within which `permille` thousandths of all waits ended, rounded
/// up to a bucket's end. The returned time is at most the longest wait, and 0 if the thread never
/// waited.
#[must_use]
pub fn wait_ms(report: &Report, permille: u64) -> f64 {
    let all: u64 = report.waits.iter().sum();
    let rank = (u128::from(all) * u128::from(permille)).div_ceil(1000).max(1);
    let mut seen = 0_u128;
    let at = report.waits.iter().position(|count| {
        seen += u128::from(*count);
        seen >= rank
    });
    match at {
        None => 0.0,
        Some(at) => {
            let end = (u64::try_from(at).unwrap_or(u64::MAX)).saturating_add(1) * WAIT_BUCKET_NS;
            ms(end.min(report.wait_max_ns))
        }
    }
}

fn ms(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64() * 1e3
}

/// Formats a table with one line for each thread. A thread's share is the thread's part of the run
/// time of all listed threads.
#[must_use]
pub fn table(reports: &[(u32, Report)]) -> String {
    let all: u64 = reports.iter().map(|(_, report)| report.ran_ns).sum();
    let mut out = String::from(
        "    tid     runs   ran_ms share_%   slices missed boosts  p50_ms  p99_ms p999_ms  \
         max_ms\n",
    );
    for (tid, report) in reports {
        let share = if all == 0 { 0.0 } else { 100.0 * ms(report.ran_ns) / ms(all) };
        let [p50, p99, p999] = [500, 990, 999].map(|permille| wait_ms(report, permille));
        let _ = writeln!(
            out,
            "{tid:7} {:8} {:8.0} {share:7.2} {:8} {:6} {:6} {p50:7.2} {p99:7.2} {p999:7.2} {:7.2}",
            report.runs,
            ms(report.ran_ns),
            report.slices,
            report.missed,
            report.boosts,
            ms(report.wait_max_ns)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(waits: &[(usize, u64)], wait_max_ns: u64) -> Report {
        let mut all = vec![0; 256];
        waits.iter().for_each(|(at, count)| all[*at] = *count);
        let (runs, ran_ns) = (waits.iter().map(|(_, n)| n).sum(), 3_000_000);
        Report { runs, ran_ns, slices: 1, missed: 0, boosts: 0, wait_max_ns, waits: all }
    }

    #[test]
    fn percentiles_are_ends_of_buckets() {
        let report = report(&[(0, 90), (29, 9), (255, 1)], 40_000_000);
        let found = [500, 900, 990, 999].map(|permille| wait_ms(&report, permille));
        assert_eq!(found, [0.1, 0.1, 3.0, 25.6]);
        assert!((wait_ms(&self::report(&[], 0), 990)).abs() < 1e-9);
        // The result never exceeds the longest wait.
        assert!((wait_ms(&self::report(&[(3, 1)], 310_000), 990) - 0.31).abs() < 1e-9);
    }

    #[test]
    fn shares_are_of_what_is_listed() {
        let text = table(&[(7, report(&[(0, 1)], 5)), (8, report(&[(0, 1)], 5))]);
        assert_eq!(text.lines().filter(|line| line.contains("50.00")).count(), 2);
    }
}
