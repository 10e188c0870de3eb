//! Finds missing real-time budgets of cgroups (`CONFIG_RT_GROUP_SCHED`, cgroup v1).
//!
//! # Problem
//! A thread in a cgroup with `cpu.rt_runtime_us` = 0 cannot have a real-time policy. If a cgroup's
//! real-time budget is too small, the kernel throttles the thread, and the thread is late. In
//! measurements, a budget of twice the time of the thread's real-time slices was enough.
//!
//! # Source
//! The source is `scheduler/sched-rt-group.rst` of Linux. The budgets of all child cgroups, as
//! fractions of their periods, must not exceed the parent's budget in total. The budget of the root
//! cgroup is `sched_rt_runtime_us`.
//!
//! # Approach
//! A cgroup's directory needs the budget of its own threads, and the budgets that its
//! subdirectories have or need. The remedy tells the operator to write the budgets of parent
//! cgroups first, as the kernel requires.
//!
//! # Cost
//! The search reads all sibling directories on the way to the root, so a scheduling thread must not
//! search for budgets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use penstock_units::Nanos;
use penstock_vcpu::admission::WHOLE_PPM;
use penstock_vcpu::deadline_queue::SLICE;

const RUNTIME: &str = "cpu.rt_runtime_us";

/// Default period of a real-time budget in microseconds.
const PERIOD_US: u64 = 1_000_000;

/// Real-time budgets that the operator must write, and whether the kernel accepts these budgets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Files and the microseconds that the operator must write into the files, in the order of
    /// writing.
    pub writes: Vec<(PathBuf, u64)>,
    /// Sum of all budgets and the root cgroup's budget, in millionths of a processor. `over` is
    /// `None` if the sum of all budgets does not exceed the root cgroup's budget.
    pub over: Option<(u64, u64)>,
}

/// Real-time budget that a vCPU with deadline `deadline` needs, in millionths of a processor.
#[must_use]
pub fn needed_ppm(deadline: Nanos) -> u64 {
    let twice = 2 * u128::from(SLICE.0) * u128::from(WHOLE_PPM);
    let part = twice.div_ceil(u128::from(deadline.0.max(1)));
    u64::try_from(part).unwrap_or(WHOLE_PPM).min(WHOLE_PPM)
}

fn read(dir: &Path, name: &str) -> Option<i64> {
    std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
}

fn period_us(dir: &Path) -> u64 {
    let period = read(dir, "cpu.rt_period_us").and_then(|us| u64::try_from(us).ok());
    period.filter(|us| *us > 0).unwrap_or(PERIOD_US)
}

/// Real-time budget of a cgroup's directory in millionths of a processor. If the file has a
/// negative value, which means no limit, the result is one processor.
fn has_ppm(dir: &Path) -> Option<u64> {
    let runtime = read(dir, RUNTIME)?;
    let Ok(runtime) = u64::try_from(runtime) else { return Some(WHOLE_PPM) };
    Some(runtime.saturating_mul(WHOLE_PPM) / period_us(dir))
}

/// Converts `ppm` millionths of a processor to microseconds per period of the cgroup `dir`.
fn in_us(dir: &Path, ppm: u64) -> u64 {
    ppm.saturating_mul(period_us(dir)).div_ceil(WHOLE_PPM)
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let dirs = entries.flatten().filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|it| it.path()).collect()
}

/// Finds the missing real-time budgets of cgroup directories with real-time threads. `needs` lists
/// directories and the budgets that their threads need, in millionths of a processor. If a
/// directory occurs several times in `needs`, the budgets add up.
#[must_use]
pub fn missing(needs: &[(PathBuf, u64)]) -> Missing {
    let mut own: BTreeMap<&Path, u64> = BTreeMap::new();
    for (dir, ppm) in needs {
        *own.entry(dir).or_default() += ppm;
    }
    let above = |dir: &Path| dir.parent().is_some_and(|up| up.join(RUNTIME).exists());
    // The deepest directories come first, because the need of a directory includes the needs below
    // the directory.
    let mut dirs: Vec<&Path> = needs
        .iter()
        .flat_map(|(dir, _)| dir.ancestors().take_while(|at| above(at)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    dirs.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
    let mut planned: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let inside = |dir: &Path, planned: &BTreeMap<PathBuf, u64>| -> u64 {
        let of = |child: PathBuf| planned.get(&child).copied().or_else(|| has_ppm(&child));
        children(dir).into_iter().filter_map(of).sum()
    };
    let mut missing = Missing::default();
    for dir in &dirs {
        let needs = own.get(dir).copied().unwrap_or(0) + inside(dir, &planned);
        let has = has_ppm(dir).unwrap_or(0);
        if needs > has {
            missing.writes.push((dir.join(RUNTIME), in_us(dir, needs)));
        }
        planned.insert((*dir).to_owned(), needs.max(has));
    }
    missing.writes.reverse();
    let root = dirs.last().and_then(|dir| dir.parent());
    missing.over = root.and_then(|root| {
        let (all, has) = (inside(root, &planned), has_ppm(root)?);
        (all > has && !missing.writes.is_empty()).then_some((all, has))
    });
    missing
}

/// Text that tells the operator how to raise the missing real-time budgets.
#[must_use]
pub fn remedy(missing: &Missing) -> String {
    let mut text = String::new();
    for (at, (file, us)) in missing.writes.iter().enumerate() {
        let then = if at == 0 { "write" } else { ", then" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{then} {us} into {}", file.display());
    }
    if let Some((all, has)) = missing.over {
        let _ = write!(
            text,
            "; the budgets of all cgroups would be {} % of a processor, and the kernel admits \
             {} %: give longer deadlines, or reduce the budget of another cgroup",
            all.div_ceil(10_000),
            has / 10_000
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use penstock_testing::{TempDir, temp_dir};

    use super::*;

    /// Creates the directories `dirs` with their budgets, below a directory of the test.
    fn hierarchy(dirs: &[(&str, i64)]) -> TempDir {
        let root = temp_dir();
        for (dir, runtime) in dirs {
            std::fs::create_dir_all(root.join(dir)).unwrap();
            std::fs::write(root.join(dir).join(RUNTIME), format!("{runtime}\n")).unwrap();
        }
        root
    }

    #[test]
    fn twice_what_slices_take_is_needed() {
        assert_eq!(needed_ppm(Nanos::from_millis(3)), 333_334);
        assert_eq!(needed_ppm(Nanos::from_millis(8)), 125_000);
        assert_eq!(needed_ppm(SLICE), WHOLE_PPM);
    }

    #[test]
    fn parents_come_first_and_have_what_all_their_children_have() {
        let dirs = [
            ("", 950_000),
            ("m", 100_000),
            ("m/other", 100_000),
            ("m/vm", 0),
            ("m/vm/vcpu0", 0),
            ("m/vm/vcpu1", 0),
            ("m/vm/emulator", 0),
        ];
        let root = hierarchy(&dirs);
        let at = |dir: &str, us| (root.join(dir).join(RUNTIME), us);
        let of = |dir: &str, ppm| (root.join(dir), ppm);
        let needs = [of("m/vm/vcpu0", 200_000), of("m/vm/vcpu1", 200_000)];
        let all = [
            at("m", 500_000),
            at("m/vm", 400_000),
            at("m/vm/vcpu1", 200_000),
            at("m/vm/vcpu0", 200_000),
        ];
        let told = missing(&needs);
        assert_eq!((&told.writes[..], told.over), (&all[..], None));
        let first = format!("write 500000 into {}/m/{RUNTIME}, then 400000 ", root.display());
        assert!(remedy(&told).starts_with(&first), "{}", remedy(&told));
        // After the operator has followed the remedy, no budget is missing.
        for (file, us) in &told.writes {
            std::fs::write(file, us.to_string()).unwrap();
        }
        assert_eq!(missing(&needs), Missing::default());
        // The budgets that several threads need in one cgroup directory add up, in units of that
        // directory's period.
        std::fs::write(root.join("m/vm/vcpu0/cpu.rt_period_us"), "100000").unwrap();
        std::fs::write(root.join("m/vm/vcpu0").join(RUNTIME), "20000").unwrap();
        let both = missing(&[of("m/vm/vcpu0", 200_000), of("m/vm/vcpu0", 200_000)]);
        let all = [at("m", 700_000), at("m/vm", 600_000), at("m/vm/vcpu0", 40_000)];
        assert_eq!(both.writes, all);
    }

    #[test]
    fn more_than_the_kernel_admits_is_said() {
        let dirs = [("", 950_000), ("a", 700_000), ("b", 0), ("c", -1)];
        let root = hierarchy(&dirs);
        let told = missing(&[(root.join("b"), 333_334)]);
        assert_eq!(told.over, Some((2_033_334, 950_000)));
        assert!(remedy(&told).contains("204 % of a processor, and the kernel admits 95 %"));
        assert_eq!(missing(&[(root.join("c"), 333_334)]), Missing::default(), "without a bound");
    }
}
