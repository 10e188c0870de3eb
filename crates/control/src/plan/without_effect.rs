//! Warns about settings of a port that have no effect.
//!
//! - At an output with `egress = "fair-share"` and `excess = "hold"`, frames above the limits wait
//!   in their senders' rings for a time that the switch does not know. So the wait at the output
//!   has no limit, and `queue.wait_us` is only for outputs that drop frames.
//! - The limits of `police` belong to the policies `bps` and `pps`. Under another policy, a port
//!   with `police` sends without these limits.

use super::Warning;
use crate::config::{Egress, Excess, HostConfig, IngressPolicy, Port};

/// Returns a warning for each setting of a port that has no effect.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let mut all = Vec::new();
    for port in &config.ports {
        for text in [wait(port), police(port)].into_iter().flatten() {
            let text = format!("port {}: {text}", port.name);
            all.push(Warning { ports: vec![port.name.clone()], text });
        }
    }
    all
}

fn wait(port: &Port) -> Option<String> {
    let queue = port.queue.filter(|_| port.egress == Egress::FairShare)?;
    let wait = queue.wait_us.filter(|_| queue.excess != Some(Excess::Drop))?;
    Some(format!(
        "`queue.wait_us` {wait} has no effect: with excess = \"hold\", frames wait without a \
         limit; remove `wait_us`, or set excess = \"drop\""
    ))
}

fn police(port: &Port) -> Option<String> {
    let police = port.police.as_ref()?;
    let policy = port.ingress_policy;
    if matches!(policy, IngressPolicy::Bps | IngressPolicy::Pps) {
        return None;
    }
    let (wanted, max) = match police.cir {
        Some(_) => ("bps", "max_rate"),
        None => ("pps", "max_pps"),
    };
    Some(format!(
        "`police` limits nothing, because `ingress_policy` is {policy}; set \
         ingress_policy = \"{wanted}\", or write `{max}` of `contract`, which holds under every \
         policy"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the warnings about a port `vm1` with these keys.
    fn warned(keys: &str) -> Vec<String> {
        let text = format!(
            "[host]\nname = \"h\"\n[[port]]\nname = \"vm1\"\ntap.interface = \"t\"\n{keys}\n"
        );
        let all = warnings(&toml_edit::de::from_str(&text).unwrap());
        all.into_iter().map(|warning| warning.text).collect()
    }

    #[test]
    fn a_wait_that_limits_nothing_is_warned_of() {
        for excess in ["", ", excess = \"hold\""] {
            let keys = format!("egress = \"fair-share\"\nqueue = {{ wait_us = 5000{excess} }}");
            assert_eq!(
                warned(&keys),
                ["port vm1: `queue.wait_us` 5000 has no effect: with excess = \"hold\", frames \
                  wait without a limit; remove `wait_us`, or set excess = \"drop\""]
            );
        }
        for fits in [
            "egress = \"fair-share\"\nqueue = { wait_us = 5000, excess = \"drop\" }",
            "egress = \"fair-share\"\nqueue = { bytes = 65536 }",
            "egress = \"fq-codel\"\nlink = \"1G\"\nqueue = { wait_us = 5000 }",
        ] {
            assert_eq!(warned(fits), Vec::<String>::new(), "{fits}");
        }
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
