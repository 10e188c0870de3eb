//! CPU time that the hypervisor of the machine took from a core.

use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{SysconfVar, sysconf};

/// Column of stolen time in a CPU's line of `proc_stat(5)`. The kernel knows the stolen time only
/// if the hypervisor reports it.
const STEAL: usize = 8;

/// Returns the stolen time of `core` since the machine's start. During stolen time, the core had
/// work, but the hypervisor did not run the core.
pub(in crate::live) fn of(core: u32) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let hz = sysconf(SysconfVar::CLK_TCK)?.and_then(|hz| u32::try_from(hz).ok());
    let ticks = parse(&text, core).with_context(|| format!("/proc/stat: no steal of cpu{core}"))?;
    Ok(Duration::from_secs(ticks) / hz.unwrap_or(100).max(1))
}

fn parse(text: &str, core: u32) -> Option<u64> {
    let name = format!("cpu{core}");
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some(name.as_str()))?;
    line.nth(STEAL)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_eighth_number_of_that_core() {
        let text = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu1 10 20 30 40 50 60 70 80 90 1\ncpu10 0 0\n";
        assert_eq!(super::parse(text, 1), Some(80));
        assert_eq!((super::parse(text, 10), super::parse(text, 2)), (None, None));
        super::of(0).unwrap();
    }
}
