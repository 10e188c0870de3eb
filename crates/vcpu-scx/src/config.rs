//! The file that says which threads have which contract.
//!
//! ```toml
//! [[thread]]
//! pid = 4711              # the process
//! name = "CPU 0/KVM"      # of its threads those with this name; all without it
//! cpu = 1                 # with a deadline: the processor where it stays
//! vcpu_mode = "periodic"  # or aperiodic, driver, none
//! deadline = "3ms"        # of a periodic or aperiodic one, 0.5 ms to 1 s
//! vcpu_weight = 1         # 1 to 10,000
//! io_reserve = 10         # percent, 0 to 50
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use penstock_units::{Nanos, Weight};
use penstock_vcpu::{Contract, Mode};
use serde::Deserialize;

/// The whole file.
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

/// Threads that have one contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Their process.
    pub pid: i32,
    /// Their name in it; all of its threads without.
    pub name: Option<String>,
    /// Where they stay; always set with a deadline.
    pub cpu: Option<u16>,
    /// Their terms.
    pub contract: Contract,
}

impl Wanted {
    /// How errors call it.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.as_ref().map_or_else(
            || format!("process {}", self.pid),
            |name| format!("process {}, thread \"{name}\"", self.pid),
        )
    }
}

/// Reads the file's text.
///
/// # Errors
/// Text that is no TOML, unknown keys, values out of range, a deadline without a processor.
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
        (None, true) => bail!("process {pid}: no deadline; write one, as deadline = \"3ms\""),
        (Some(_), false) => {
            bail!(
                "process {pid}: a deadline without a mode that has one; \
                 write vcpu_mode = \"periodic\""
            )
        }
        (None, false) => Nanos(0),
    };
    ensure!(
        cpu.is_some() || !mode.is_real_time(),
        "process {pid}: no cpu; a thread with a deadline stays on one processor, write which"
    );
    let contract =
        Contract { mode, deadline, io_reserve_pct: reserve, ..Contract::by_credit(weight) };
    Ok(Wanted { pid, name, cpu, contract })
}

/// `3ms`, `0.5ms`, `500us`, `1s`.
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
            (&format!("{periodic}deadline = \"3ms\""), "no cpu"),
            (&format!("{periodic}cpu = 0\ndeadline = \"3\""), "has no unit"),
            (&format!("{periodic}cpu = 0\ndeadline = \"-3ms\""), "-3ms"),
            ("deadline = \"3ms\"", "without a mode"),
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
