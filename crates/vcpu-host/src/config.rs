//! The configuration file of `penstock vcpu run`: processors, and VMs with their parameters.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use penstock_toml::schema::Tables;
use penstock_toml::{Object, Report, list, read_file, section, unknown_sections};
use penstock_units::{Labels, NAME_REMEDY, check_name};
use penstock_vcpu::Contract;
use penstock_vcpu::admission::Limits;
use penstock_vcpu::planned::planned;
use penstock_vcpu::reservation::Reserve;
use penstock_vcpu::terms::{Mistake, VcpuSection, VmTable};
use serde_json::json;
use toml_edit::Table;

use crate::lease::Identity;
use crate::restore;
use crate::threads::{self, FindError, VcpuThread};

pub use penstock_vcpu::terms::{RUN_DIR, Source};

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

impl From<penstock_toml::ConfigErrors> for ConfigErrors {
    fn from(errors: penstock_toml::ConfigErrors) -> Self {
        Self(errors.0.iter().map(ToString::to_string).collect())
    }
}

impl Config {
    /// Reads and checks the configuration file at `path`.
    ///
    /// # Errors
    /// Returns every mistake in the file.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::read(&read_file(path)?, &path.display().to_string())
    }

    /// Parses the text of a configuration file. From a host's file, the function uses only `[vcpu]`
    /// and `[[vm]]`.
    ///
    /// # Errors
    /// Returns every mistake in the text.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Self::read(text, "")
    }

    /// Parses the text of the file with the name `file`.
    fn read(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        let (section, tables) =
            penstock_toml::read(text, file, |root, report| Objects::read(root, report)?.values())?;
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

/// The tables `[vcpu]` and `[[vm]]` of a text, with their places.
struct Objects<'a> {
    vcpu: Object<'a, VcpuSection>,
    vms: Vec<Object<'a, VmTable>>,
}

impl<'a> Objects<'a> {
    /// Reads the tables and reports all mistakes in them. In a host's file, other programs check
    /// the other tables.
    fn read(root: &'a Table, report: &mut Report<'_>) -> Option<Self> {
        report.set_schema(schema);
        let is_host = root.contains_key("host");
        if !is_host {
            unknown_sections(root, &["vcpu", "vm"], report);
        }
        let Some(vcpu) = section::<VcpuSection>(root, "vcpu", report) else {
            let object = if is_host { "this host" } else { "the file" };
            let remedy = "add it with `cpus`, and a [[vm]] for each VM";
            report.file(format!("{object} has no [vcpu]"), remedy);
            return None;
        };
        tell(&vcpu, vcpu.value.as_ref().map(VcpuSection::mistakes), report);
        let vms = list::<VmTable>(root, "vm", report);
        let mut names = HashSet::new();
        for vm in &vms {
            if let Some(name) = &vm.name {
                if !names.insert(name) {
                    report.at(vm, "name", "the name is used twice", "rename one");
                }
                if let Err(mistake) = check_name(name) {
                    report.at(vm, "name", mistake.to_string(), NAME_REMEDY);
                }
            }
            tell(vm, vm.value.as_ref().map(VmTable::mistakes), report);
        }
        Some(Self { vcpu, vms })
    }

    fn values(&self) -> Option<(VcpuSection, Vec<VmTable>)> {
        let vms = self.vms.iter().map(|vm| vm.value.clone()).collect::<Option<Vec<_>>>()?;
        Some((self.vcpu.value.clone()?, vms))
    }
}

/// Returns the schema of the tables, for the ranges of their keys.
fn schema() -> String {
    let mut tables = Tables::default();
    let keys = json!({ "vcpu": tables.one::<VcpuSection>(), "vm": tables.list::<VmTable>() });
    tables.file("", keys, &[], json!({}))
}

fn tell<T>(object: &Object<'_, T>, mistakes: Option<Vec<Mistake>>, report: &mut Report<'_>) {
    for Mistake { key, problem, remedy } in mistakes.unwrap_or_default() {
        report.at(object, key, problem, remedy);
    }
}

/// Reads a configuration file and finds all mistakes and all deadlines that do not fit. If the
/// tables have no mistakes, the function returns the tables.
#[must_use]
pub fn check(path: &Path) -> (Option<(VcpuSection, Vec<VmTable>)>, ConfigErrors) {
    let mut found = None;
    let file = path.display().to_string();
    let read = read_file(path).and_then(|text| {
        penstock_toml::read(&text, &file, |root, report| {
            let objects = Objects::read(root, report)?;
            let (section, tables) = objects.values().filter(|_| report.is_empty())?;
            unfit(&objects.vms, &section, &tables, report);
            found = Some((section, tables));
            Some(())
        })
    });
    (found, read.err().map_or_else(|| ConfigErrors(Vec::new()), ConfigErrors::from))
}

/// Reports the deadlines and reservations that do not fit if all VMs run.
fn unfit(
    objects: &[Object<'_, VmTable>],
    section: &VcpuSection,
    tables: &[VmTable],
    report: &mut Report<'_>,
) {
    let planned = planned(section, &tables.iter().collect::<Vec<_>>());
    for (object, planned) in objects.iter().zip(planned) {
        let Some(problem) = planned.problem else { continue };
        let (problem, remedy) =
            problem.split_once("; ").unwrap_or((&problem, "see docs/reference/vcpu.md"));
        report.at(object, "deadline", problem, remedy);
    }
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
            "16:12: vm \"b\": `deadline` \"2 s\" is not valid; write 0.5 ms",
            "2:8: [vcpu]: ",
            "11:15: vm \"a\": `vcpu_weight`",
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
        assert!(key.contains("2:1: [vcpu]: unknown key `cpu`; did you mean `cpus`?"), "{key}");
        let number = wrong("[vcpu]\ncpus = [1]\ndeadlines_max = -1\n");
        let says = "3:17: [vcpu]: `deadlines_max`: -1 is out of range; write a whole number from 1 \
                    to 100";
        assert_eq!(number, says);
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
        assert!(text.starts_with("10:") && text.contains("key \"a b\" is not allowed"), "{text}");
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
