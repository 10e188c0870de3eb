//! The configuration file of `penstock vcpu run`: processors, and VMs with their parameters.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use penstock_units::{Labels, NAME_REMEDY, check_name};
use penstock_vcpu::Contract;
use penstock_vcpu::admission::Limits;
use penstock_vcpu::planned::{Planned, planned};
use penstock_vcpu::reservation::Reserve;
use penstock_vcpu::terms::{Mistake, VcpuSection, VmTable};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::lease::Identity;
use crate::restore;
use crate::threads::{self, FindError, VcpuThread};

pub use penstock_vcpu::terms::{RUN_DIR, Source};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    vcpu: VcpuSection,
    #[serde(default)]
    vm: Vec<VmTable>,
}

/// The tables of a host's file that the vCPU scheduler uses.
#[derive(Debug, Deserialize)]
struct HostFile {
    vcpu: Option<VcpuSection>,
    #[serde(default)]
    vm: Vec<VmTable>,
}

/// Configuration of a VM that the vCPU scheduler schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Name of the VM, by which reports of events identify the VM.
    pub name: String,
    pub labels: Labels,
    pub source: Source,
    /// Pattern for the names of the VM's vCPU threads, with `*` for any text; `None` means QEMU's
    /// names for vCPU threads.
    pub threads: Option<String>,
    pub contract: Contract,
    /// Time that the kernel reserves for each vCPU of the VM; `None` if `vcpu_mode` is not
    /// `reserved`. With a reservation, the VM's contract has a weight and no deadline.
    pub reserve: Option<Reserve>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Numbers of the processors for the vCPUs of all VMs in the file.
    pub cpus: Vec<u32>,
    /// Directory for the vCPU scheduler's files.
    pub run_dir: PathBuf,
    /// Limits on the part of each processor that real-time slices for deadlines may use.
    pub limits: Limits,
    pub vms: Vec<VmConfig>,
}

/// All mistakes of a configuration file, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads and checks the configuration file at `path`.
    ///
    /// # Errors
    /// Returns every mistake in the file.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        read(path).and_then(|text| Self::parse(&text)).map_err(|wrong| named(path, wrong))
    }

    /// Parses the text of a configuration file. From a host's file, the function uses only `[vcpu]`
    /// and `[[vm]]`.
    ///
    /// # Errors
    /// Returns every mistake in the text.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let (section, tables) = tables(text)?;
        let vm = |table: &VmTable| {
            Some(VmConfig {
                name: table.name.clone(),
                labels: table.labels.clone(),
                source: table.source()?,
                threads: table.threads.clone(),
                contract: table.contract()?,
                reserve: table.reserve(),
            })
        };
        let vms = tables.iter().filter_map(vm).collect();
        let (run_dir, limits) = (section.run_dir(), section.limits());
        Ok(Self { cpus: section.cpus, run_dir, limits, vms })
    }
}

/// Parses the tables `[vcpu]` and `[[vm]]` of a configuration file. The error lists all mistakes of
/// the file.
fn tables(text: &str) -> Result<(VcpuSection, Vec<VmTable>), ConfigErrors> {
    let unread = |error: toml::de::Error| ConfigErrors(vec![placed(text, &error)]);
    let all: toml::Table = toml::from_str(text).map_err(unread)?;
    let file: File = if all.contains_key("host") {
        // Only an error of the text has a line.
        let HostFile { vcpu, vm } = toml::from_str(text).map_err(unread)?;
        let Some(vcpu) = vcpu else {
            let why = "this host has no [vcpu]; add it with `cpus`, and a [[vm]] for each VM";
            return Err(ConfigErrors(vec![why.to_owned()]));
        };
        File { vcpu, vm }
    } else {
        toml::from_str(text).map_err(unread)?
    };
    let places = Places::of(text);
    let in_section = |mistake: &Mistake| {
        format!("{}: [vcpu] {mistake}", places.of_key("vcpu", None, mistake.key))
    };
    let mut wrong: Vec<String> = file.vcpu.mistakes().iter().map(in_section).collect();
    let mut names = HashSet::new();
    for (at, table) in file.vm.iter().enumerate() {
        let name = &table.name;
        let mut say = |key: &str, mistake: &dyn fmt::Display| {
            let place = places.of_key("vm", Some(at), key);
            wrong.push(format!("{place}: [[vm]] \"{name}\": {mistake}"));
        };
        if !names.insert(name) {
            say("name", &"the name is used twice; rename one");
        }
        if let Err(mistake) = check_name(name) {
            say("name", &format!("{mistake}; {NAME_REMEDY}"));
        }
        table.mistakes().iter().for_each(|mistake| say(mistake.key, mistake));
    }
    if wrong.is_empty() { Ok((file.vcpu, file.vm)) } else { Err(ConfigErrors(wrong)) }
}

/// Returns an error of TOML on one line, with its place in the text.
fn placed(text: &str, error: &toml::de::Error) -> String {
    let place = place(text, error.span().map_or(0, |span| span.start));
    format!("{place}: {}", error.message().trim_end().replace('\n', " "))
}

/// Returns the line and the column of the byte `at`.
fn place(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    format!("line {line}, column {column}")
}

/// Places of the keys in a text. The values of [`File`] have no places.
struct Places<'a> {
    text: &'a str,
    root: DeValue<'a>,
}

impl<'a> Places<'a> {
    fn of(text: &'a str) -> Self {
        let root = DeTable::parse(text).map(Spanned::into_inner).unwrap_or_default();
        Self { text, root: DeValue::Table(root) }
    }

    /// Returns the place of `key` in `[table]`, or in the table `[[table]]` with the index `at`. If
    /// the table does not have the key, returns the place of the table.
    fn of_key(&self, table: &str, at: Option<usize>, key: &str) -> String {
        let tables = self.root.get(table);
        let table = match at {
            Some(at) => tables.and_then(|tables| tables.get_ref().get(at)),
            None => tables,
        };
        let found = table.and_then(|table| table.get_ref().get(key)).or(table);
        place(self.text, found.map_or(0, |found| found.span().start))
    }
}

/// Lists the deadlines and reservations that do not fit if all VMs run, one per line.
fn unfit(text: &str, section: &VcpuSection, tables: &[VmTable]) -> ConfigErrors {
    let places = Places::of(text);
    let planned = planned(section, &tables.iter().collect::<Vec<_>>());
    let told = |(at, (table, planned)): (usize, (&VmTable, Planned))| {
        let problem = planned.problem?;
        let place = places.of_key("vm", Some(at), "deadline");
        Some(format!("{place}: [[vm]] \"{}\": {problem}", table.name))
    };
    ConfigErrors(tables.iter().zip(planned).enumerate().filter_map(told).collect())
}

/// Reads a configuration file and finds all mistakes and all deadlines that do not fit. If the
/// tables have no mistakes, the function returns the tables.
#[must_use]
pub fn check(path: &Path) -> (Option<(VcpuSection, Vec<VmTable>)>, ConfigErrors) {
    let read = read(path).and_then(|text| Ok((tables(&text)?, text)));
    match read {
        Ok(((section, vms), text)) => {
            let wrong = unfit(&text, &section, &vms);
            (Some((section, vms)), named(path, wrong))
        }
        Err(wrong) => (None, named(path, wrong)),
    }
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let unread = |error| {
        ConfigErrors(vec![format!(
            "the file cannot be read: {error}; check the path and its permissions"
        )])
    };
    std::fs::read_to_string(path).map_err(unread)
}

/// Writes the file's name before each line of the errors.
fn named(path: &Path, ConfigErrors(lines): ConfigErrors) -> ConfigErrors {
    ConfigErrors(lines.iter().map(|line| format!("{}: {line}", path.display())).collect())
}

impl VmConfig {
    /// Finds the VM's current vCPU threads. `before` contains the VM's threads at the last search.
    /// While the VM's process lives, no other matching process replaces that process.
    ///
    /// # Errors
    /// Returns an error if no threads were found, or if several processes match.
    pub fn find(&self, before: &[Identity]) -> Result<Vec<Identity>, FindError> {
        let of = |pid| match &self.threads {
            Some(pattern) => threads::named(pid, pattern),
            None => threads::of_process(pid),
        };
        let had = before.iter().find(|thread| restore::is_alive(**thread)).map(|it| it.pid);
        let found = match &self.source {
            Source::Pid(pid) => of(*pid)?,
            Source::Process(line) => {
                let what = || format!("a command line that matches {line:?}");
                only(threads::processes_like(line), had, &of, what)?
                    .ok_or_else(|| FindError::NoProcess { line: line.clone() })?
            }
            Source::Domain(name) => {
                let what = || format!("`-name guest={name}`");
                only(threads::of_domain(name), had, &of, what)?
                    .ok_or_else(|| FindError::NoDomain { name: name.clone() })?
            }
            Source::Cgroup(path) if self.threads.is_none() => threads::of_cgroup(path)?,
            Source::Cgroup(path) => threads::in_cgroup(path, &of)?,
        };
        let identity = |t: VcpuThread| Identity { pid: t.pid, tid: t.tid, started: t.started };
        Ok(found.into_iter().map(identity).collect())
    }
}

/// Returns the vCPU threads of the only process in `pids` that has vCPU threads. A shell or `sudo`
/// that started the VM may be in `pids` too. `had` is the VM's process at the last search. Returns
/// `None` if `pids` is empty.
fn only(
    pids: Vec<u32>,
    had: Option<u32>,
    of: &dyn Fn(u32) -> Result<Vec<VcpuThread>, FindError>,
    what: impl Fn() -> String,
) -> Result<Option<Vec<VcpuThread>>, FindError> {
    if let Some(pid) = had.filter(|had| pids.contains(had))
        && let Ok(found) = of(pid)
    {
        return Ok(Some(found));
    }
    let (mut found, mut last) = (Vec::new(), None);
    for pid in pids {
        match of(pid) {
            Ok(threads) => found.push((pid, threads)),
            Err(error) => last = Some(error),
        }
    }
    if found.len() > 1 {
        let pids = found.iter().map(|(pid, _)| *pid).collect();
        return Err(FindError::Several { what: what(), pids });
    }
    match (found.pop(), last) {
        (Some((_, threads)), _) => Ok(Some(threads)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::{Nanos, Weight};
    use penstock_vcpu::Mode;

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
    fn a_file_gives_the_contracts_that_it_states() {
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
             [[vm]]\nname = \"c\"\npid = 1\nvcpu_mode = \"driver\"\n\
             [[vm]]\nname = \"d\"\npid = 1\ndomain = \"d\"\nvcpu_mode = \"reserved\"\n\
             deadline = \"3 ms\"\nruntime = \"4 ms\"\n\
             [[vm]]\nname = \"e\"\npid = 1\nruntime = \"1 ms\"\nreclaim = true\n",
        );
        for part in [
            "named twice",
            "deadlines_max",
            "\"a\": the VM needs exactly one source of its threads",
            "\"a\": `deadline` is missing",
            "\"a\": the name is used twice",
            "\"a\": `vcpu_weight`",
            "\"a\": `deadline` has no effect in this",
            "line 16, column 12: [[vm]] \"b\": `deadline` \"2 s\" is not valid; write 0.5 ms",
            "line 2, column 8: [vcpu] ",
            "line 11, column 15: [[vm]] \"a\": `vcpu_weight`",
            "\"b\": `io_reserve`: 51",
            "\"c\": `vcpu_mode` driver",
            "\"d\": the VM needs exactly one source of its threads",
            "\"d\": `runtime` \"4 ms\" is not valid in a period of 3000 us; write 2 us to",
            "\"e\": `runtime` without",
            "\"e\": `reclaim` without",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(wrong("[vcpu]\ncpus = []\n").contains("name 1 to 56"));
        let key = wrong("[vcpu]\ncpu = [1]\n");
        assert!(key.starts_with("line 2, column 1: unknown field `cpu`"), "{key}");
        assert_eq!(key.lines().count(), 1, "{key}");
    }

    #[test]
    fn a_vm_has_a_name_and_a_place_where_threads_can_be() {
        let vm = |name: &str, more: &str| {
            wrong(&format!("[vcpu]\ncpus = [1]\n[[vm]]\nname = \"{name}\"\n{more}\n"))
        };
        for (name, says) in [("", "the name is empty; write 1 to 64"), ("a b", "contains ' '")] {
            let text = vm(name, "pid = 1");
            assert!(text.contains(says), "{says} in\n{text}");
        }
        for (more, says) in [
            ("pid = 0", "`pid` is 0; write the number"),
            ("cgroup = \"\"", "`cgroup` \"\" is relative; write an absolute path"),
            ("cgroup = \"machine/a\"", "`cgroup` \"machine/a\" is relative"),
            ("process = \"\"", "`process` is empty"),
            ("process = \"* *\"", "`process` \"* *\" fits every command line"),
            ("domain = \" \"", "`domain` is empty"),
            ("pid = 1\nthreads = \"\"", "`threads` is empty"),
        ] {
            let text = vm("a", more);
            assert!(text.contains(says), "{says} in\n{text}");
        }
        let good = "[vcpu]\ncpus = [1]\n[[vm]]\nname = \"a\"\ncgroup = \"/sys/fs/cgroup/a\"\n\
                    threads = \"*\"\n";
        assert_eq!(Config::parse(good).unwrap().vms.len(), 1);
    }

    #[test]
    fn a_mistake_in_a_hosts_file_has_its_line() {
        let host = "[host]\nname = \"h\"\n[[port]]\nname = \"p\"\n";
        let vm = "[vcpu]\ncpus = [1]\n[[vm]]\nname = \"a\"\npid = 1\n";
        let text = wrong(&format!("{host}{vm}labels = {{ \"a b\" = \"x\" }}\n"));
        assert!(text.contains("line 10,") && text.contains("key \"a b\" is not allowed"), "{text}");
        let good = Config::parse(&format!("{host}{vm}")).unwrap();
        assert_eq!(good.vms.len(), 1);
        assert!(wrong(host).contains("this host has no [vcpu]"), "{}", wrong(host));
    }

    #[test]
    fn a_reservation_is_not_a_deadline_of_the_queue() {
        let text = "[vcpu]\ncpus = [1]\n[[vm]]\nname = \"a\"\ndomain = \"web\"\n\
                    vcpu_mode = \"reserved\"\ndeadline = \"3 ms\"\n";
        let vm = &Config::parse(text).unwrap().vms[0];
        assert_eq!(vm.contract, Contract::by_credit(Weight::ONE));
        assert_eq!(vm.source, Source::Domain("web".to_owned()));
        let period = Nanos::from_millis(3);
        assert_eq!(vm.reserve, Some(Reserve { period, runtime: None, reclaim: false }));
        let more = format!("{text}runtime = \"0.6 ms\"\nreclaim = true\n");
        let runtime = Some(Nanos::from_micros(600));
        let vm = &Config::parse(&more).unwrap().vms[0];
        assert_eq!(vm.reserve, Some(Reserve { period, runtime, reclaim: true }));
    }

    #[test]
    fn the_example_is_right() {
        let config = Config::parse(include_str!("../../../examples/vcpu.toml")).unwrap();
        assert_eq!(config.vms.len(), 4);
    }

    #[test]
    fn of_several_processes_the_previous_one_is_kept_or_none_taken() {
        let line = format!("penstock-test-several-{}", std::process::id());
        let start = || {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "read _; :", &line]).stdin(std::process::Stdio::piped());
            command.spawn().unwrap()
        };
        let vm = Config::parse(&format!(
            "[vcpu]\ncpus = [0]\n[[vm]]\nname = \"a\"\nprocess = \"sh*{line}\"\nthreads = \"sh\"\n"
        ))
        .unwrap()
        .vms
        .remove(0);
        let find = |before: &[Identity]| (0..100_000).find_map(|_| vm.find(before).ok());
        let mut first = start();
        let one = find(&[]).unwrap();
        assert_eq!((one.len(), one[0].pid), (1, first.id()));
        let mut second = start();
        // The process exists a moment before its command line can be read.
        let said = (0..100_000).find_map(|_| vm.find(&[]).err()).unwrap().to_string();
        let pids = format!("{}, {}", first.id().min(second.id()), first.id().max(second.id()));
        assert!(said.contains("2 processes") && said.contains(&pids), "{said}");
        assert_eq!(vm.find(&one).unwrap(), one, "it lives");
        first.kill().unwrap();
        first.wait().unwrap();
        assert_eq!(vm.find(&one).unwrap()[0].pid, second.id());
        second.kill().unwrap();
        second.wait().unwrap();
        let none = vm.find(&one).unwrap_err().to_string();
        assert!(none.contains("start the VM"), "{none}");
    }
}
