//! Tells whether other work disturbed a calibration, and which.
//!
//! A calibration is also disturbed if the same frames cost different amounts in its rounds. A
//! window counts as disturbed if the worker or the load generator waited for its core. The causes
//! are the processes outside of this session that used most processor time, and the hypervisor
//! (steal time, `proc_stat(5)`).

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use penstock_guest::bed::distance::alike;
use penstock_guest::clock;
use penstock_qos::cost_model::Spread;

use super::rig::Apart;
use crate::table::to_f64;

/// A calibration is refused if more than this part of its windows was disturbed.
const DISTURBED_MAX: f64 = 0.1;
/// A calibration is refused if the costs of the same frames differ by more than this part between
/// the rounds, in the median of all combinations.
const UNSTEADY_MAX: f64 = 0.3;
/// A window is disturbed if a thread waited for its core for more than this part of the window.
const WAITED: f64 = 0.01;
/// Number of processes that an error names.
const NAMED: usize = 3;
/// Clock ticks in `/proc` (`USER_HZ`), which x86 and Arm have in common.
const TICKS_PER_SECOND: f64 = 100.0;
/// Part of a core's time below which a cause is not named.
const SHARE_MIN: f64 = 0.01;

/// Processor time of a process in clock ticks, and its name.
type Times = BTreeMap<u32, (String, u64)>;

/// Readings at the beginning of a calibration.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    others: Times,
    stolen: u64,
}

impl Watch {
    pub(super) fn begin() -> Self {
        Self { began: clock::now(), others: others(), stolen: stolen() }
    }

    /// Returns an error text if too many of the windows were disturbed. `waited` has the part of
    /// each window for which a thread waited for its core.
    pub(super) fn verdict(&self, waited: &[f64]) -> Option<String> {
        let disturbed = part(waited);
        if disturbed <= DISTURBED_MAX {
            return None;
        }
        let causes = self.causes();
        let causes = if causes.is_empty() {
            "no other process used a core for long, so other machines of the hypervisor may have it"
                .to_owned()
        } else {
            format!("processor time went to {}", causes.join(", "))
        };
        Some(format!(
            "in {:.0} % of the measurements, the switch or the load waited for its core; {causes}; \
             end other work and calibrate again, or accept the model with --accept-disturbed",
            100.0 * disturbed
        ))
    }

    /// Returns an error text if the cores moved. `apart` has the distances in all windows.
    pub(super) fn moved(apart: &[Apart]) -> Option<String> {
        let known: Vec<f64> = apart.iter().filter_map(|apart| apart.nanos()).collect();
        let Spread { median, min, max } = Spread::of(&known)?;
        let other = |apart: &&Apart| {
            apart.moved() || apart.nanos().is_some_and(|nanos| !alike(nanos, median))
        };
        let part = ratio(apart.iter().filter(other).count(), apart.len());
        (part > DISTURBED_MAX).then(|| {
            format!(
                "a cache line went between the two cores and back in {min:.0} ns at some times, \
                 and in {max:.0} ns at others: a hypervisor moves the processors, so that the same \
                 frames cost different amounts; give the machine processors of its own, or accept \
                 the model with --accept-disturbed"
            )
        })
    }

    /// Returns an error text if the same frames did not cost the same in all rounds. `costs` has
    /// the costs of each combination.
    pub(super) fn unsteady(costs: &[Vec<f64>]) -> Option<String> {
        let ratio = |costs: &Vec<f64>| {
            let least = costs.iter().copied().reduce(f64::min)?;
            let most = costs.iter().copied().reduce(f64::max)?;
            Some(most / least - 1.0)
        };
        let ratios: Vec<f64> = costs.iter().filter_map(ratio).collect();
        let median = Spread::of(&ratios)?.median;
        (median > UNSTEADY_MAX).then(|| {
            format!(
                "the same frames cost {:.0} % more at some times than at others (median of {} \
                 combinations); another program or machine may use the processor's caches, or the \
                 frequency changes; calibrate again when the machine is steady, or accept the \
                 model with --accept-disturbed",
                100.0 * median,
                ratios.len()
            )
        })
    }

    /// Returns the processes that used most processor time since the beginning, and steal time.
    fn causes(&self) -> Vec<String> {
        let all = self.began.elapsed().as_secs_f64().max(1e-3) * TICKS_PER_SECOND;
        let mut grown: Vec<(f64, String)> = others()
            .into_iter()
            .map(|(pid, (name, now))| {
                let before = self.others.get(&pid).map_or(0, |(_, before)| *before);
                (to_f64(now.saturating_sub(before)) / all, format!("{name} (process {pid}"))
            })
            .collect();
        grown.push((
            to_f64(stolen().saturating_sub(self.stolen)) / all,
            "the hypervisor (steal".into(),
        ));
        grown.retain(|(share, _)| *share >= SHARE_MIN);
        grown.sort_by(|a, b| b.0.total_cmp(&a.0));
        let text =
            |(share, name): (f64, String)| format!("{name}, {:.0} % of a core)", 100.0 * share);
        grown.into_iter().take(NAMED).map(text).collect()
    }
}

/// Returns the part of the windows that were disturbed.
fn part(waited: &[f64]) -> f64 {
    ratio(waited.iter().filter(|waited| **waited > WAITED).count(), waited.len())
}

fn ratio(some: usize, all: usize) -> f64 {
    to_f64(some as u64) / to_f64((all as u64).max(1))
}

/// Returns the processor time of all processes of other sessions, without Penstock's.
fn others() -> Times {
    let own = nix::unistd::getsid(None).map_or(0, nix::unistd::Pid::as_raw);
    let Ok(entries) = fs::read_dir("/proc") else { return Times::new() };
    let of = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let (name, session, ticks) = times(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        (session != own && !name.starts_with("penstock")).then_some((pid, (name, ticks)))
    };
    entries.filter_map(Result::ok).filter_map(of).collect()
}

/// Reads a process's name, its session, and its processor time in ticks from `/proc/PID/stat`.
fn times(stat: &str) -> Option<(String, i32, u64)> {
    // The name is in parentheses and may contain any character.
    let (head, fields) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((name, fields.get(3)?.parse().ok()?, ticks(11)? + ticks(12)?))
}

/// Returns the steal time of all processors in ticks.
fn stolen() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_is_refused_with_what_took_the_cores() {
        let watch = Watch::begin();
        let quiet = [0.0; 95].into_iter().chain([0.5; 5]).collect::<Vec<_>>();
        assert_eq!(watch.verdict(&quiet), None);
        let loud = [0.0; 80].into_iter().chain([0.5; 20]).collect::<Vec<_>>();
        let text = watch.verdict(&loud).unwrap();
        assert!(text.starts_with("in 20 % of the measurements"), "{text}");
        assert!(text.ends_with("with --accept-disturbed"), "{text}");
        assert!((part(&[]) - 0.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_calibration_is_refused_if_the_machine_is_not_steady() {
        let steady = vec![vec![100.0, 110.0, 105.0], vec![200.0, 210.0], vec![90.0, 300.0]];
        assert_eq!(Watch::unsteady(&steady), None, "one combination alone is not the machine");
        let unsteady = vec![vec![100.0, 150.0], vec![200.0, 310.0], vec![90.0, 90.0]];
        let text = Watch::unsteady(&unsteady).unwrap();
        assert!(text.starts_with("the same frames cost 50 % more at some times"), "{text}");
        assert!(text.ends_with("with --accept-disturbed"), "{text}");
        assert_eq!(Watch::unsteady(&[]), None);
    }

    #[test]
    fn a_calibration_is_refused_if_the_cores_moved() {
        let near = vec![Apart::still(100.0); 18];
        let with = |more: &[Apart]| Watch::moved(&[&near[..], more].concat());
        assert_eq!(with(&[Apart::still(140.0), Apart::still(520.0)]), None, "one in twenty");
        let text = with(&[Apart::still(520.0); 3]).unwrap();
        assert!(text.contains("in 100 ns at some times, and in 520 ns at others"), "{text}");
        assert!(with(&[Apart::between(100.0, 520.0); 3]).is_some(), "in a window");
        assert_eq!(Watch::moved(&[Apart::default()]), None, "one core is never apart");
    }

    #[test]
    fn a_process_with_an_odd_name_is_read() {
        let stat = "7 (a) b) S 1 7 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 1 0 5 1 1";
        assert_eq!(times(stat), Some(("a) b".to_owned(), 42, 200)));
        assert_eq!(times("7 (a"), None);
        assert!(!others().contains_key(&std::process::id()), "this session is not another one");
    }
}
