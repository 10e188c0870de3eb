//! Warns about rate limits that have no effect.
//!
//! The limits of `police` belong to the policies `bps` and `pps`. Under another policy, a port with
//! `police` sends without these limits.

use super::Warning;
use crate::config::{HostConfig, IngressPolicy};

/// Returns a warning for each port whose `police` has no effect.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let mut all = Vec::new();
    for port in &config.ports {
        let Some(police) = &port.police else { continue };
        let policy = port.ingress_policy;
        if matches!(policy, IngressPolicy::Bps | IngressPolicy::Pps) {
            continue;
        }
        let (wanted, max) = match police.cir {
            Some(_) => ("bps", "max_rate"),
            None => ("pps", "max_pps"),
        };
        let text = format!(
            "port {}: `police` limits nothing, because `ingress_policy` is {policy}; set \
             ingress_policy = \"{wanted}\", or write `{max}` of `contract`, which holds under \
             every policy",
            port.name
        );
        all.push(Warning { ports: vec![port.name.clone()], text });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(keys: &str) -> Vec<String> {
        let text = format!(
            "[host]\nname = \"h\"\n[[port]]\nname = \"vm1\"\ntap.interface = \"t\"\n{keys}\n"
        );
        let all = warnings(&toml_edit::de::from_str(&text).unwrap());
        all.into_iter().map(|warning| warning.text).collect()
    }

    #[test]
    fn a_limit_without_its_policy_is_warned_of() {
        assert_eq!(
            warned("police = { pps = \"200k\" }"),
            ["port vm1: `police` limits nothing, because `ingress_policy` is none; set \
              ingress_policy = \"pps\", or write `max_pps` of `contract`, which holds under every \
              policy"]
        );
        let cycles = "ingress_policy = \"cycles-strict\"\npolice = { cir = \"1G\" }";
        let [text] = &warned(cycles)[..] else { panic!("one warning") };
        assert!(text.contains("is cycles-strict; set ingress_policy = \"bps\""), "{text}");
        for holds in [
            "",
            "ingress_policy = \"bps\"\npolice = { cir = \"1G\" }",
            "ingress_policy = \"pps\"\npolice = { pps = \"200k\", cir = \"1G\" }",
        ] {
            assert_eq!(warned(holds), Vec::<String>::new(), "{holds}");
        }
    }
}
