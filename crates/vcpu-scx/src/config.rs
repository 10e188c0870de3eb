//! The configuration file of `penstock-vcpu-scx`, which contains the contracts of threads.
//!
//! ```toml
//! [[thread]]
//! pid = 4711              # process
//! name = "CPU 0/KVM"      # name of its threads; without it, all threads of the process
//! cpu = 1                 # processor; required with a deadline
//! vcpu_mode = "periodic"  # none (default), periodic, aperiodic or driver
//! deadline = "3ms"        # for periodic and aperiodic threads, 0.5 ms to 1 s
//! vcpu_weight = 1         # 1 to 10,000
//! io_reserve = 10         # percent, 0 to 50
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use penstock_units::{Nanos, Weight};
use penstock_vcpu::{Contract, Mode};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    thread: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeName {
    #[default]
    None,
    Periodic,
    Aperiodic,
    Driver,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    pid: i32,
    name: Option<String>,
    cpu: Option<u16>,
    #[serde(default)]
    vcpu_mode: ModeName,
    deadline: Option<String>,
    #[serde(default = "one")]
    vcpu_weight: u16,
    io_reserve: Option<u8>,
}

const fn one() -> u16 {
    1
}

/// An entry of the configuration file: threads of one process with the same contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Id of the process to which the threads belong.
    pub pid: i32,
    /// Name of the threads to be scheduled, or `None` for all threads of the process.
    pub name: Option<String>,
    /// Number of the processor on which the entry's threads run. `None` means any processor. A
    /// contract with a deadline always has a processor.
    pub cpu: Option<u16>,
    /// Contract of each of the entry's threads.
    pub contract: Contract,
}

impl Wanted {
    /// Name of the entry for error messages.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.as_ref().map_or_else(
            || format!("process {}", self.pid),
            |name| format!("process {}, thread \"{name}\"", self.pid),
        )
    }
}

/// Parses `text`, the content of a configuration file.
///
/// # Errors
/// - Returns an error if the text is not valid TOML.
/// - Returns an error if a key is unknown or a value is out of range.
/// - Returns an error if an entry with a deadline has no processor.
pub fn parse(text: &str) -> Result<Vec<Wanted>> {
    let file: File = toml::from_str(text).context("the configuration")?;
    file.thread.into_iter().map(wanted).collect()
}

fn wanted(entry: Entry) -> Result<Wanted> {
    let Entry { pid, name, cpu, .. } = entry;
    let mode = match entry.vcpu_mode {
        ModeName::None => Mode::None,
        ModeName::Periodic => Mode::Periodic,
        ModeName::Aperiodic => Mode::Aperiodic,
        ModeName::Driver => Mode::Driver,
    };
    let max = Contract::IO_RESERVE_MAX;
    let reserve =
        entry.io_reserve.unwrap_or(if mode.is_real_time() { Contract::IO_RESERVE } else { 0 });
    ensure!(
        reserve <= max,
        "process {pid}: io_reserve = {reserve} is out of range; write 0 to {max}"
    );
    let weight = Weight::new(u64::from(entry.vcpu_weight))
        .with_context(|| format!("process {pid}: vcpu_weight = {}", entry.vcpu_weight))?;
    let deadline = match (&entry.deadline, mode.is_real_time()) {
        (Some(text), true) => parse_deadline(text).with_context(|| format!("process {pid}"))?,
        (None, true) => bail!("process {pid}: no deadline; write for example deadline = \"3ms\""),
        (Some(_), false) => {
            bail!(
                "process {pid}: a deadline needs a real-time mode; \
                 write vcpu_mode = \"periodic\""
            )
        }
        (None, false) => Nanos(0),
    };
    ensure!(
        cpu.is_some() || !mode.is_real_time(),
        "process {pid}: no `cpu`; write cpu = NUMBER for a thread with a deadline"
    );
    let contract =
        Contract { mode, deadline, io_reserve_pct: reserve, ..Contract::by_credit(weight) };
    Ok(Wanted { pid, name, cpu, contract })
}

/// Parses a time such as `3ms`, `0.5ms`, `500us` or `1s`.
fn parse_deadline(text: &str) -> Result<Nanos> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) =
        found.with_context(|| format!("deadline = \"{text}\" has no unit; write \"3ms\""))?;
    let number: f64 = number.trim().parse().with_context(|| format!("deadline = \"{text}\""))?;
    let time = Duration::try_from_secs_f64(number * scale)
        .with_context(|| format!("deadline = \"{text}\""))?;
    Ok(Nanos(u64::try_from(time.as_nanos())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = "[[thread]]\npid = 7\nname = \"CPU 0/KVM\"\ncpu = 1\nvcpu_mode = \"periodic\"\n\
                    deadline = \"3ms\"\nvcpu_weight = 2\n[[thread]]\npid = 8\n";
        let all = parse(text).unwrap();
        let weight = Weight::new(2).unwrap();
        let contract = Contract::real_time(Mode::Periodic, Nanos::from_millis(3), weight);
        assert_eq!((all[0].contract, all[0].cpu), (contract, Some(1)));
        assert_eq!(all[0].label(), "process 7, thread \"CPU 0/KVM\"");
        assert_eq!(all[1].contract, Contract::by_credit(Weight::new(1).unwrap()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let says = |rest: &str| {
            format!("{:#}", parse(&format!("[[thread]]\npid = 7\n{rest}")).unwrap_err())
        };
        let periodic = "vcpu_mode = \"periodic\"\n";
        for (rest, part) in [
            ("pids = 1", "unknown field"),
            (periodic, "no deadline"),
            (&format!("{periodic}deadline = \"3ms\""), "no `cpu`"),
            (&format!("{periodic}cpu = 0\ndeadline = \"3\""), "has no unit"),
            (&format!("{periodic}cpu = 0\ndeadline = \"-3ms\""), "-3ms"),
            ("deadline = \"3ms\"", "needs a real-time mode"),
            ("vcpu_weight = 0", "vcpu_weight = 0"),
            ("io_reserve = 51", "0 to 50"),
        ] {
            assert!(says(rest).contains(part), "{rest}: {}", says(rest));
        }
    }

    #[test]
    fn units_of_deadlines() {
        let ns = |text| parse_deadline(text).unwrap().0;
        assert_eq!([ns("0.5ms"), ns("500us"), ns("1s")], [500_000, 500_000, 1_000_000_000]);
    }
}
