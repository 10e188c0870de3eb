//! The file of `penstock vcpu run`: processors, VMs, and what each was promised.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use penstock_units::{Nanos, Weight};
use penstock_vcpu::admission::{DEADLINE_MAX, DEADLINE_MIN, Limits};
use penstock_vcpu::{Contract, Mode};
use serde::Deserialize;

use crate::lease::{Identity, MAX_LOOPS};
use crate::threads::{self, FindError, VcpuThread};

/// Where a scheduler keeps its files unless told otherwise; a tmpfs.
pub const RUN_DIR: &str = "/run/penstock/vcpu";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    vcpu: Section,
    #[serde(default)]
    vm: Vec<VmTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    cpus: Vec<u32>,
    run_dir: Option<PathBuf>,
    deadlines_max: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VmTable {
    name: String,
    pid: Option<u32>,
    cgroup: Option<PathBuf>,
    process: Option<String>,
    threads: Option<String>,
    #[serde(default)]
    vcpu_mode: ModeName,
    deadline: Option<String>,
    vcpu_weight: Option<u64>,
    io_reserve: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    #[default]
    None,
    Periodic,
    Aperiodic,
    Driver,
}

/// How a VM's threads are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// By its process.
    Pid(u32),
    /// By a cgroup, which only this VM is in.
    Cgroup(PathBuf),
    /// By its command line, with `*` for anything.
    Process(String),
}

/// A VM to schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// What it is called here; events name it so.
    pub name: String,
    /// Where its threads are.
    pub source: Source,
    /// Names of its vCPU threads, with `*` for anything; `None`: those QEMU gives.
    pub threads: Option<String>,
    /// What it was promised.
    pub contract: Contract,
}

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Processors for the vCPUs of all VMs in the file.
    pub cpus: Vec<u32>,
    /// For the scheduler's files.
    pub run_dir: PathBuf,
    /// How much of a processor slices of deadlines may take.
    pub limits: Limits,
    /// The VMs.
    pub vms: Vec<VmConfig>,
}

/// Every mistake of a file, one a line. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigErrors(vec![format!("{}: cannot be read: {error}", path.display())])
        })?;
        let named = |line: &String| format!("{}: {line}", path.display());
        Self::parse(&text)
            .map_err(|ConfigErrors(lines)| ConfigErrors(lines.iter().map(named).collect()))
    }

    /// The same from text.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let file: File = toml::from_str(text)
            .map_err(|error| ConfigErrors(vec![error.to_string().trim_end().to_owned()]))?;
        let mut wrong = Vec::new();
        let Section { cpus, run_dir, deadlines_max } = file.vcpu;
        if cpus.is_empty() || cpus.len() > MAX_LOOPS {
            wrong.push(format!("[vcpu] `cpus`: {} of them; name 1 to {MAX_LOOPS}", cpus.len()));
        }
        if cpus.iter().collect::<HashSet<_>>().len() < cpus.len() {
            wrong.push("[vcpu] `cpus`: one is named twice; name each once".to_owned());
        }
        let percent = deadlines_max.unwrap_or(70);
        if !(1..=100).contains(&percent) {
            wrong.push(format!("[vcpu] `deadlines_max`: {percent} percent; write 1 to 100"));
        }
        let mut names = HashSet::new();
        let mut vms = Vec::new();
        for table in file.vm {
            if !names.insert(table.name.clone()) {
                wrong.push(format!("[[vm]] \"{}\": there are two; rename one", table.name));
            }
            vms.extend(vm(table, &mut wrong));
        }
        if !wrong.is_empty() {
            return Err(ConfigErrors(wrong));
        }
        let limits = Limits { density_ppm: percent * 10_000 };
        let run_dir = run_dir.unwrap_or_else(|| PathBuf::from(RUN_DIR));
        Ok(Self { cpus, run_dir, limits, vms })
    }
}

fn vm(table: VmTable, wrong: &mut Vec<String>) -> Option<VmConfig> {
    let mistakes = wrong.len();
    let name = table.name;
    let mut say = |what: &str| wrong.push(format!("[[vm]] \"{name}\": {what}"));
    let source = match (table.pid, table.cgroup, table.process) {
        (Some(pid), None, None) => Some(Source::Pid(pid)),
        (None, Some(path), None) => Some(Source::Cgroup(path)),
        (None, None, Some(line)) => Some(Source::Process(line)),
        _ => {
            say("its threads are not told, or twice; write one of `pid`, `cgroup` and `process`");
            None
        }
    };
    let weight = Weight::new(table.vcpu_weight.unwrap_or(1));
    if let Err(error) = &weight {
        say(&format!("`vcpu_weight`: {error}"));
    }
    let mode = match table.vcpu_mode {
        ModeName::None => Mode::None,
        ModeName::Periodic => Mode::Periodic,
        ModeName::Aperiodic => Mode::Aperiodic,
        ModeName::Driver => {
            say("`vcpu_mode` driver: on this host nobody is lent a processor for good; leave its \
                 threads on a processor that is not in [vcpu] `cpus`");
            Mode::None
        }
    };
    let deadline = match (&table.deadline, mode.is_real_time()) {
        (None, true) => {
            say("`deadline` is missing; write one, such as \"3 ms\"");
            None
        }
        (Some(_), false) => {
            say("`deadline` without a mode that has one; set `vcpu_mode` to periodic or aperiodic");
            None
        }
        (None, false) => Some(Nanos(0)),
        (Some(text), true) => {
            let read = duration(text).filter(|d| (DEADLINE_MIN..=DEADLINE_MAX).contains(d));
            if read.is_none() {
                say(&format!("`deadline` {text:?}: write 0.5 ms to 1 s, such as \"3 ms\""));
            }
            read
        }
    };
    let usual = if mode.is_real_time() { Contract::IO_RESERVE } else { 0 };
    let io_reserve_pct = table.io_reserve.unwrap_or(usual);
    if io_reserve_pct > Contract::IO_RESERVE_MAX {
        say(&format!("`io_reserve`: {io_reserve_pct} percent; write 0 to 50"));
    }
    if wrong.len() > mistakes {
        return None;
    }
    let contract =
        Contract { mode, deadline: deadline?, io_reserve_pct, ..Contract::by_credit(weight.ok()?) };
    Some(VmConfig { name, source: source?, threads: table.threads, contract })
}

/// `3 ms`, `0.5ms`, `800 us`, `1 s`.
fn duration(text: &str) -> Option<Nanos> {
    let text = text.trim();
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit: u64 = match &text[at..] {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let number = text[..at].trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = u32::try_from(part.len()).ok().filter(|digits| *digits <= 9)?;
    let fraction = unit.checked_mul(part.parse().ok()?)? / 10_u64.pow(digits);
    Some(Nanos(whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(fraction)?))
}

impl VmConfig {
    /// Its vCPU threads now.
    ///
    /// # Errors
    /// Why there are none.
    pub fn find(&self) -> Result<Vec<Identity>, FindError> {
        let of = |pid| match &self.threads {
            Some(pattern) => threads::named(pid, pattern),
            None => threads::of_process(pid),
        };
        let found = match &self.source {
            Source::Pid(pid) => of(*pid)?,
            Source::Process(line) => match threads::process_like(line) {
                Some(pid) => of(pid)?,
                None => return Err(FindError::NoProcess { line: line.clone() }),
            },
            Source::Cgroup(path) => threads::in_cgroup(path, &of)?,
        };
        let identity = |t: VcpuThread| Identity { pid: t.pid, tid: t.tid, started: t.started };
        Ok(found.into_iter().map(identity).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [vcpu]
        cpus = [1, 3]
        [[vm]]
        name = "voice"
        pid = 42
        vcpu_mode = "periodic"
        deadline = "3.5 ms"
        vcpu_weight = 2
        [[vm]]
        name = "batch"
        process = "*-name batch*"
        threads = "worker*"
    "#;

    fn wrong(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_what_is_promised() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!((config.cpus.as_slice(), config.limits), (&[1, 3][..], Limits::default()));
        assert_eq!(config.run_dir, Path::new(RUN_DIR));
        let voice = &config.vms[0].contract;
        assert_eq!((voice.mode, voice.deadline), (Mode::Periodic, Nanos::from_micros(3_500)));
        assert_eq!((voice.weight.get(), voice.io_reserve_pct), (2, Contract::IO_RESERVE));
        assert_eq!(config.vms[1].contract, Contract::by_credit(Weight::ONE));
        assert_eq!(config.vms[1].source, Source::Process("*-name batch*".to_owned()));
    }

    #[test]
    fn every_mistake_is_told_with_its_remedy() {
        let text = wrong(
            "[vcpu]\ncpus = [1, 1]\ndeadlines_max = 0\n\
             [[vm]]\nname = \"a\"\nvcpu_mode = \"periodic\"\n\
             [[vm]]\nname = \"a\"\npid = 1\ndeadline = \"3 ms\"\nvcpu_weight = 0\n\
             [[vm]]\nname = \"b\"\npid = 1\nvcpu_mode = \"aperiodic\"\ndeadline = \"2 s\"\n\
             io_reserve = 51\n\
             [[vm]]\nname = \"c\"\npid = 1\nvcpu_mode = \"driver\"\n",
        );
        for part in [
            "named twice",
            "deadlines_max",
            "\"a\": its threads are not told",
            "\"a\": `deadline` is missing",
            "\"a\": there are two",
            "\"a\": `vcpu_weight`",
            "\"a\": `deadline` without a mode",
            "\"b\": `deadline` \"2 s\": write 0.5 ms to 1 s",
            "\"b\": `io_reserve`: 51",
            "\"c\": `vcpu_mode` driver",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(wrong("[vcpu]\ncpus = []\n").contains("name 1 to 64"));
        assert!(
            wrong("[vcpu]\ncpu = [1]\n").contains("line 2"),
            "{}",
            wrong("[vcpu]\ncpu = [1]\n")
        );
    }

    #[test]
    fn the_example_is_right() {
        let config = Config::parse(include_str!("../../../examples/vcpu.toml")).unwrap();
        assert_eq!(config.vms.len(), 3);
    }

    #[test]
    fn durations() {
        let us = Nanos::from_micros;
        assert_eq!(duration("3 ms"), Some(us(3_000)));
        assert_eq!(duration(" 0.5ms "), Some(us(500)));
        assert_eq!((duration("800 us"), duration("1 s")), (Some(us(800)), Some(us(1_000_000))));
        for none in ["3", "ms", "-1 ms", "1 h", "1.x ms", "99999999999999999 s"] {
            assert_eq!(duration(none), None, "{none}");
        }
    }
}
