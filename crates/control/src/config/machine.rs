//! The machine's CPUs and accounts, to which a configuration refers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Properties of the machine on which a configuration depends. If a property of the machine is
/// unknown, the checks that need this property are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs on which the daemon may run; `None` if the CPUs are unknown.
    pub cores: Option<BTreeSet<u32>>,
}

impl Machine {
    /// Returns this machine, with the CPUs that are online and allowed for this process.
    #[must_use]
    pub fn here() -> Self {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let mut cores = allowed.and_then(cpu_list);
        if let Some(online) = online.as_deref().and_then(cpu_list) {
            cores = Some(cores.map_or(online.clone(), |allowed| &allowed & &online));
        }
        Self { cores }
    }

    /// CPU of the only worker if `cores` is empty: the highest-numbered CPU.
    #[must_use]
    pub fn default_core(&self) -> Option<u32> {
        self.cores.as_ref()?.last().copied()
    }
}

/// Returns the NUMA node of each CPU, from a directory like `/sys/devices/system/node`. The result
/// is empty if the kernel does not tell.
pub(crate) fn numa_nodes(dir: &Path) -> BTreeMap<u32, u16> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        let Some(node) = number.and_then(|number| number.parse::<u16>().ok()) else { continue };
        let list = std::fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        nodes.extend(cpu_list(&list).into_iter().flatten().map(|cpu| (cpu, node)));
    }
    nodes
}

/// Returns the number of a user or group. If `name` is a number, returns this number. The number of
/// a named account is the third field of the line in `file` that begins with `name`.
pub(crate) fn account(name: &str, file: &Path) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

/// Reads a list of CPUs in the kernel's form, `0-3,8`.
fn cpu_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut cores = BTreeSet::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    if cores.is_empty() { None } else { Some(cores) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(cpu_list(" 0-2,8\n").unwrap(), BTreeSet::from([0, 1, 2, 8]));
        assert_eq!(cpu_list(""), None);
        assert_eq!(cpu_list("0-x"), None);
    }

    #[test]
    fn each_cpu_has_the_numa_node_that_the_kernel_tells() {
        let dir = penstock_testing::temp_dir();
        for (node, list) in [("node0", "0-1\n"), ("node1", "2,5\n"), ("node2", "\n")] {
            std::fs::create_dir_all(dir.join(node)).unwrap();
            std::fs::write(dir.join(node).join("cpulist"), list).unwrap();
        }
        std::fs::write(dir.join("possible"), "0-2\n").unwrap();
        assert_eq!(numa_nodes(&dir), BTreeMap::from([(0, 0), (1, 0), (2, 1), (5, 1)]));
        assert!(numa_nodes(&dir.join("none")).is_empty());
    }
}
