//! CPU time that other programs and the hypervisor took on the machine during a measurement.
//!
//! # Problem
//!
//! A disturbed measurement does not show which other program used the core, or whether the
//! hypervisor took the core.
//!
//! # Source
//!
//! The lab reads the kernel's counters of CPU time from three files:
//!
//! - `/proc/stat` has each core's busy time, and the time that the hypervisor took from the core.
//! - `/proc/PID/stat` has the CPU time that each program used.
//! - `cpu.stat` of the lab's control group has the time for which the group's CPU limit stopped the
//!   lab.
//!
//! # Approach
//!
//! The measured activity is the difference between two readings of the kernel's counters. The time
//! of other programs is the cores' busy time minus the CPU time of the lab's own programs. The
//! cores' busy time also covers programs that start and end between the two readings of the
//! counters.
//!
//! # Limits
//!
//! A container may hide other programs. In a container that hides other programs, only the counters
//! of the cores are available.

use std::collections::BTreeMap;
use std::fs;

/// Clock ticks per second in `/proc`: a constant of Linux (`USER_HZ`).
const TICKS: f64 = 100.0;
/// The report mentions an activity only if it took at least this percentage of the time.
const LEAST_PCT: f64 = 2.0;

#[derive(Debug, Clone, Copy, Default)]
struct Texts<'a> {
    uptime: &'a str,
    stat: &'a str,
    cpu_stat: &'a str,
    programs: &'a [String],
}

/// Identity of a program: its process id and its start time, because the kernel reuses process ids.
type Who = (i32, u64);

/// A program's name, whether the lab started the program, and its CPU time in seconds.
#[derive(Debug, Clone, PartialEq)]
struct Program {
    name: String,
    ours: bool,
    secs: f64,
}

/// The kernel's time counters at one moment, in seconds. Four kinds of time are counted: the cores'
/// busy time, time of the hypervisor, pauses by the CPU limit, and each program's CPU time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Reading {
    at: f64,
    spent: f64,
    stolen: f64,
    throttled: f64,
    cores: f64,
    programs: BTreeMap<Who, Program>,
}

impl Reading {
    /// Reads the kernel's counters of time for the cores in `cores`. A counter that the kernel does
    /// not report is 0.
    pub fn take(cores: &[u32]) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        let programs: Vec<String> = entries
            .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .collect();
        let texts = Texts {
            uptime: &text("/proc/uptime"),
            stat: &text("/proc/stat"),
            cpu_stat: &text(&cpu_stat_file(&text("/proc/self/cgroup"))),
            programs: &programs,
        };
        Self::of(texts, cores, i32::try_from(std::process::id()).unwrap_or(0))
    }

    /// Parses the texts of `/proc` and `cpu.stat`. The process `me` and its children count as the
    /// lab's own programs.
    fn of(texts: Texts<'_>, cores: &[u32], me: i32) -> Self {
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite());
        let mut reading = Self::default();
        let first = texts.uptime.split_whitespace().next();
        reading.at = first.and_then(number).unwrap_or(0.0);
        let mut distinct = cores.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for line in texts.stat.lines() {
            let mut words = line.split_whitespace();
            let core = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<u32>().ok());
            if core.is_none_or(|core| !distinct.contains(&core)) {
                continue;
            }
            // The columns are user, nice, system, idle, iowait, irq, softirq and steal. The later
            // columns for guests are parts of user and nice.
            let ticks: Vec<f64> = words.map(|word| number(word).unwrap_or(0.0)).collect();
            let of = |nth: usize| ticks.get(nth).copied().unwrap_or(0.0) / TICKS;
            reading.spent += [0, 1, 2, 5, 6].into_iter().map(of).sum::<f64>();
            reading.stolen += of(7);
            reading.cores += 1.0;
        }
        let of = |name| {
            let line = texts.cpu_stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|n| number(n.trim())).unwrap_or(0.0)
        };
        // Control groups of version 2 count microseconds. Version 1 counts nanoseconds.
        reading.throttled = of("throttled_usec ") / 1e6 + of("throttled_time ") / 1e9;
        reading.programs = texts.programs.iter().filter_map(|text| program(text, me)).collect();
        reading
    }

    /// Returns the percentage of the cores' time between this reading and the later reading `now`
    /// in which the cores were idle.
    pub fn idle_pct(&self, now: &Self) -> f64 {
        let all = (now.at - self.at) * now.cores;
        let busy = now.spent - self.spent + now.stolen - self.stolen;
        (100.0 * (1.0 - busy / all.max(1e-9))).clamp(0.0, 100.0)
    }

    /// Returns the activity of the machine between this reading and the later reading `now`.
    pub fn until(&self, now: &Self) -> Machine {
        let secs = now.at - self.at;
        if secs <= 0.0 {
            return Machine::default();
        }
        let grown = |who: &Who, program: &Program| {
            let before = self.programs.get(who).map_or(0.0, |before| before.secs);
            (program.secs - before).max(0.0)
        };
        let (mut ours, mut others, mut busiest) = (0.0, 0.0, None::<(String, f64)>);
        for (who, program) in &now.programs {
            let grown = grown(who, program);
            if program.ours {
                ours += grown;
                continue;
            }
            others += grown;
            if busiest.as_ref().is_none_or(|(_, most)| grown > *most) {
                busiest = Some((program.name.clone(), grown));
            }
        }
        // If our child ended, our own count includes its whole time. Its time before the first
        // reading does not count.
        let ended =
            self.programs.iter().filter(|(who, of)| of.ours && !now.programs.contains_key(*who));
        ours -= ended.map(|(_, program)| program.secs).sum::<f64>();
        let pct = |part: f64, of: f64| (100.0 * part / of.max(1e-9)).clamp(0.0, 100.0);
        let all = secs * now.cores;
        Machine {
            others_pct: pct(now.spent - self.spent - ours, all),
            programs_pct: pct(others, all),
            busiest: busiest.map(|(name, secs_of)| (name, pct(secs_of, secs))),
            stolen_pct: pct(now.stolen - self.stolen, all),
            throttled_pct: pct(now.throttled - self.throttled, secs),
        }
    }
}

/// Returns the path of `cpu.stat` in the lab's control group. `groups` is the text of
/// `/proc/self/cgroup`.
fn cpu_stat_file(groups: &str) -> String {
    let of = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.trim_end_matches('/');
        match controllers {
            "" => Some((1, format!("/sys/fs/cgroup{path}/cpu.stat"))),
            of if of.split(',').any(|name| name == "cpu") => {
                Some((0, format!("/sys/fs/cgroup/cpu{path}/cpu.stat")))
            }
            _ => None,
        }
    };
    // The limit belongs to the CPU controller. If that controller is under version 1, its file is
    // taken.
    groups.lines().filter_map(of).min().map(|(_, file)| file).unwrap_or_default()
}

/// Parses a line of `/proc/PID/stat`. `me` is the lab's process id.
fn program(text: &str, me: i32) -> Option<(Who, Program)> {
    // The name, in parentheses, may hold any character.
    let (head, tail) = text.rsplit_once(')')?;
    let (pid, name) = head.split_once('(')?;
    let pid: i32 = pid.trim().parse().ok()?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |nth: usize| fields.get(nth).and_then(|word| word.parse::<u64>().ok());
    let parent = fields.get(1).and_then(|word| word.parse::<i32>().ok());
    let own = number(11)?.saturating_add(number(12)?);
    // Our own count includes the time of our ended children.
    let ended = if pid == me { number(13)?.saturating_add(number(14)?) } else { 0 };
    let ticks = u32::try_from(own.saturating_add(ended)).ok()?;
    // Keep only characters that terminals and pictures can show.
    let name = name.chars().filter(|c| c.is_ascii_graphic() && *c != '"' && *c != '\\').collect();
    let ours = pid == me || parent == Some(me);
    Some(((pid, number(19)?), Program { name, ours, secs: f64::from(ticks) / TICKS }))
}

/// Time that other programs, the kernel, the hypervisor and the CPU limit took from the lab's cores
/// between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Machine {
    /// Percentage of the cores' time that other programs and the kernel used.
    pub others_pct: f64,
    /// Percentage of the cores' time that other programs used. Only programs that still ran at the
    /// end of the measurement count.
    pub programs_pct: f64,
    /// Name of the other program that used most CPU time, on any core, and the program's percentage
    /// of one core.
    pub busiest: Option<(String, f64)>,
    /// Percentage of the cores' time that the hypervisor gave to other machines.
    pub stolen_pct: f64,
    /// Percentage of the time for which the control group's CPU limit stopped the lab.
    pub throttled_pct: f64,
}

impl Machine {
    /// Returns the percentage of the time that other programs, the hypervisor and the CPU limit
    /// certainly took. The returned percentage excludes time that the kernel spent on frames, and
    /// programs that ended before the second reading of the counters.
    pub fn taken_pct(&self) -> f64 {
        self.programs_pct + self.stolen_pct + self.throttled_pct
    }

    /// Returns a clause for each kind of activity that took at least [`LEAST_PCT`] percent of the
    /// time.
    pub fn clauses(&self) -> Vec<String> {
        let mut clauses = Vec::new();
        let worth = |pct: f64| (LEAST_PCT..=100.0).contains(&pct);
        if worth(self.others_pct) {
            let of = match &self.busiest {
                Some((name, pct)) if worth(*pct) && !name.is_empty() => {
                    format!(" (most of all {name}, {pct:.0} % of a core)")
                }
                _ => String::new(),
            };
            clauses.push(format!(
                "other programs used {:.0} % of the cores of switch and load{of}",
                self.others_pct
            ));
        }
        if worth(self.stolen_pct) {
            clauses.push(format!("the hypervisor took {:.0} % of these cores", self.stolen_pct));
        }
        if worth(self.throttled_pct) {
            clauses.push(format!(
                "the CPU limit of the control group stopped the demo {:.0} % of the time",
                self.throttled_pct
            ));
        }
        clauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: i32 = 7;

    fn at(uptime: &str, stat: &str, cpu_stat: &str, programs: &[&str]) -> Reading {
        let programs: Vec<String> = programs.iter().map(|text| (*text).to_owned()).collect();
        Reading::of(Texts { uptime, stat, cpu_stat, programs: &programs }, &[1, 0, 1], ME)
    }

    /// Returns the text of `/proc/PID/stat` for a program that used `ticks` ticks of CPU time. The
    /// program's ended children used `ended` ticks.
    fn line(pid: i32, name: &str, parent: i32, [ticks, ended]: [u64; 2]) -> String {
        format!(
            "{pid} ({name}) R {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 {ended} 0 20 0 1 0 {} 0",
            pid + 100
        )
    }

    #[test]
    fn other_programs_the_hypervisor_and_a_limit_are_told_apart() {
        let stat = |spent: u64, steal: u64| {
            format!(
                "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 {spent} 0 0 9 9 0 0 {steal} 0 0\n\
                 cpu1 {spent} 0 0 9 9 0 0 {steal} 0 0\ncpu2 77777 0 0 0 0 0 0 5000 0 0\n"
            )
        };
        // Daemon 9 replaces daemon 10, which computed 100 ticks more before it ended.
        let before = [
            line(ME, "penstock", 1, [50, 0]),
            line(8, "rustc) R", 1, [10, 900]),
            line(10, "penstock-w", ME, [500, 0]),
        ];
        let after = [
            line(ME, "penstock", 1, [350, 600]),
            line(8, "rustc) R", 1, [310, 5_000]),
            line(9, "penstock-w", ME, [300, 0]),
        ];
        let refs = |all: &'static str| all;
        let then = at(
            "100.00 5.0",
            &stat(1_000, 0),
            refs("throttled_usec 0\n"),
            &before.each_ref().map(String::as_str),
        );
        let now = at(
            "110.00 5.0",
            &stat(1_600, 50),
            refs("nr_throttled 3\nthrottled_usec 2500000\n"),
            &after.each_ref().map(String::as_str),
        );
        let machine = then.until(&now);
        // In 10 s, the two cores were busy for 12 s, 7 s of them in our programs.
        assert_eq!(
            machine.clauses(),
            [
                "other programs used 25 % of the cores of switch and load (most of all rustc)R, \
                 30 % of a core)",
                "the hypervisor took 5 % of these cores",
                "the CPU limit of the control group stopped the demo 25 % of the time",
            ]
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_nothing() {
        let nothing = at("", "", "", &["", "x", "5 (a", "5 (a) R", "-1 () Z 1"]);
        assert_eq!(nothing.until(&nothing), Machine::default());
        assert!(nothing.until(&at("5.0", "cpu0\ncpu1 a b c\n", "x", &[])).clauses().is_empty());
        let odd = at("-1e400 0", "cpu0 NaN inf 1e400\n", "throttled_usec NaN\n", &[]);
        assert!(odd.until(&at("9", "", "", &[])).clauses().is_empty());
    }

    #[test]
    fn the_limit_is_looked_for_where_its_controller_is() {
        assert_eq!(cpu_stat_file("0::/a/b\n"), "/sys/fs/cgroup/a/b/cpu.stat");
        assert_eq!(cpu_stat_file("0::/\n"), "/sys/fs/cgroup/cpu.stat");
        let both = "4:cpu,cpuacct:/docker/x\n0::/\n";
        assert_eq!(cpu_stat_file(both), "/sys/fs/cgroup/cpu/docker/x/cpu.stat");
        assert_eq!(cpu_stat_file("nonsense"), "");
    }

    #[test]
    fn a_reading_of_this_machine_knows_this_program() {
        let reading = Reading::take(&[0]);
        assert!(reading.programs.values().any(|program| program.ours));
        assert!(reading.at > 0.0);
    }
}
