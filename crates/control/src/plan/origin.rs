//! Checks that a cost model was measured on this machine.

use penstock_qos::cost_model::CostModel;

use crate::config::{ConfigError, HostConfig};

/// The properties of a machine that a cost model records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Host name.
    pub host: String,
    /// Release of the kernel, as in `6.1.0-25-amd64`.
    pub kernel: String,
}

impl Origin {
    /// Returns the properties of this machine.
    pub fn here() -> Self {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let kernel = |name: &str| format!("/proc/sys/kernel/{name}");
        Self { host: read(&kernel("hostname")), kernel: read(&kernel("osrelease")) }
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
        Some(ConfigError {
            file: String::new(),
            line: 0,
            column: 0,
            object: "[model]".to_owned(),
            problem,
            remedy: "run `penstock calibrate` here, or set `any_host` = true in [model]".to_owned(),
        })
    }
}

/// Returns the first two numbers of a kernel's release, as in `6.1`.
fn numbers(release: &str) -> &str {
    let second = release.match_indices('.').nth(1).map(|(at, _)| at);
    &release[..second.unwrap_or(release.len())]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RED, checked, model, port};
    use super::*;

    fn told(host: &str, kernel: &str, config: &str) -> Option<String> {
        let origin = Origin { host: host.to_owned(), kernel: kernel.to_owned() };
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
}
