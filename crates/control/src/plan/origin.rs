//! Checks that a cost model was measured on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use penstock_qos::cost_model::CostModel;

use penstock_units::WorkerId;

use crate::config::{self, ConfigError, HostConfig, Port};

/// The properties of a machine that a cost model records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Host name.
    pub host: String,
    /// Release of the kernel, as in `6.1.0-25-amd64`.
    pub kernel: String,
    /// NUMA node of each CPU.
    pub nodes: BTreeMap<u32, u16>,
}

impl Origin {
    /// Returns the properties of this machine.
    pub fn here() -> Self {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let kernel = |name: &str| format!("/proc/sys/kernel/{name}");
        let nodes = config::numa_nodes(Path::new("/sys/devices/system/node"));
        Self { host: read(&kernel("hostname")), kernel: read(&kernel("osrelease")), nodes }
    }

    /// Whether the memory of a VM is on another NUMA node than one of the workers of its port.
    /// Memory whose node is not stated counts as local.
    pub fn is_remote(&self, config: &HostConfig, port: &Port, workers: &[WorkerId]) -> bool {
        let Some(memory) = port.contract.as_ref().and_then(|contract| contract.numa) else {
            return false;
        };
        // Without `cores`, the only worker has the last CPU.
        let last = || self.nodes.keys().next_back().copied();
        let core =
            |worker: &WorkerId| config.worker.cores.get(worker.index()).copied().or_else(last);
        let node = |worker| self.nodes.get(&core(worker)?);
        workers.iter().filter_map(node).any(|node| *node != memory)
    }

    /// Returns an error if a contract names a NUMA node that this host does not have.
    pub fn no_node(&self, port: &Port) -> Option<ConfigError> {
        let node = port.contract.as_ref()?.numa?;
        let known: BTreeSet<u16> = self.nodes.values().copied().collect();
        if known.is_empty() || known.contains(&node) {
            return None;
        }
        let known: Vec<_> = known.iter().map(u16::to_string).collect();
        let problem = format!("`numa` = {node} of the contract is no node with CPUs of this host");
        let remedy = format!("write one of the nodes {}, or leave out `numa`", known.join(", "));
        Some(ConfigError::placeless(format!("port {:?}", port.name), problem, remedy))
    }

    /// Returns an error if contracts of `config` need a model of this machine, and `model` is of
    /// another host or kernel. Releases of a kernel with the same first two numbers count as one.
    pub fn mistake(&self, config: &HostConfig, model: &CostModel) -> Option<ConfigError> {
        let sold = config.ports.iter().any(|port| port.contract.is_some() && port.cycles.is_none());
        if config.model.any_host || !sold {
            return None;
        }
        let about = &model.parts().about;
        let measured = about.cpu.split_once(", Linux ").map(|(_, release)| release);
        let other = |known: &str, here: &str| !here.is_empty() && known != here;
        let problem = if other(&about.host, &self.host) {
            format!(
                "the cost model was measured on host {}, this host is {}",
                about.host, self.host
            )
        } else {
            let release = measured?;
            if !other(numbers(release), numbers(&self.kernel)) {
                return None;
            }
            format!("the cost model was measured under Linux {release}, this is {}", self.kernel)
        };
        let remedy = "run `penstock calibrate` here, or set `any_host` = true in [model]";
        Some(ConfigError::placeless("[model]".to_owned(), problem, remedy.to_owned()))
    }
}

/// Returns the first two numbers of a kernel's release, as in `6.1`.
fn numbers(release: &str) -> &str {
    let second = release.match_indices('.').nth(1).map(|(at, _)| at);
    &release[..second.unwrap_or(release.len())]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RED, checked, model, plan_on, port};
    use super::*;

    fn told(host: &str, kernel: &str, config: &str) -> Option<String> {
        let (host_of, kernel) = (host.to_owned(), kernel.to_owned());
        let origin = Origin { host: host_of, kernel, ..Origin::default() };
        let host = checked(&format!("{config}{RED}{}", port("a", SOLD)), Some(&model()));
        origin.mistake(&host.config, host.model.as_ref()?).map(|error| error.to_string())
    }

    const SOLD: &str = "contract = { rate = \"1Mpps\", size = 64 }";

    #[test]
    fn a_model_of_another_host_or_kernel_is_an_error_with_a_remedy() {
        // The model is of the host `lab`, under Linux 6.1.0-9.
        let text = told("node7", "6.1.0-9", "").unwrap();
        assert!(
            text.contains("on host lab, this host is node7; run `penstock calibrate`"),
            "{text}"
        );
        let text = told("lab", "6.12.1", "").unwrap();
        assert!(text.contains("under Linux 6.1.0-9, this is 6.12.1; run"), "{text}");
        assert_eq!(told("lab", "6.1.0-25-amd64", ""), None, "an update of the same kernel");
        assert_eq!(told("node7", "6.12.1", "[model]\nany_host = true\n"), None);
        let unsold = checked(&format!("{RED}{}", port("a", "")), Some(&model()));
        assert_eq!(Origin::here().mistake(&unsold.config, &model()), None, "no contract uses it");
    }

    /// A machine with CPUs 0 and 1 on node 0, and CPUs 2 and 3 on node 1.
    fn two_nodes(numa: &str, worker: u16) -> (f64, Vec<String>) {
        let nodes = [(0, 0), (1, 0), (2, 1), (3, 1)].into_iter().collect();
        let origin = Origin { nodes, ..Origin::default() };
        let sold = format!(
            "worker = {worker}\ncontract = {{ rate = \"100kpps\", size = 64{numa} }}\n\
             ingress_policy = \"cycles-strict\""
        );
        let text = format!("[worker]\ncores = [1, 2]\n{RED}{}", port("a", &sold));
        let plan = plan_on(&origin, &text, Some(&model()), 2);
        assert!(plan.refusals.is_empty(), "a host that starts with its old file starts");
        let plan = plan.strict();
        let cost = plan.ports[0].cost.unwrap();
        (cost, plan.refusals.iter().map(ConfigError::to_string).collect())
    }

    #[test]
    fn memory_on_another_node_than_the_worker_costs_more() {
        let (local, refused) = two_nodes("", 0);
        assert_eq!(refused, [""; 0]);
        let factor = model().parts().numa_remote.factor.median;
        assert!(factor > 1.1, "{factor}");
        for (numa, worker, times) in [
            (", numa = 0", 0, 1.0),
            (", numa = 1", 0, factor),
            (", numa = 0", 1, factor),
            (", numa = 1", 1, 1.0),
        ] {
            let (cost, refused) = two_nodes(numa, worker);
            assert!((cost / local - times).abs() < 1e-9, "{numa} {worker}: {cost} of {local}");
            assert_eq!(refused, [""; 0]);
        }
    }

    #[test]
    fn a_node_that_the_host_does_not_have_is_an_error() {
        let (_, refused) = two_nodes(", numa = 2", 0);
        assert_eq!(
            refused,
            ["port \"a\": `numa` = 2 of the contract is no node with CPUs of this host; write \
                 one of the nodes 0, 1, or leave out `numa`"]
        );
        let text = RED.to_owned() + &port("a", "contract = { rate = \"9kpps\", numa = 7 }");
        let unknown = plan_on(&Origin::default(), &text, Some(&model()), 1).strict();
        assert!(unknown.refusals.is_empty(), "the kernel does not tell: {:?}", unknown.refusals);
    }
}
