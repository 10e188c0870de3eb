//! Warns about limits on the wait of frames that have no effect.
//!
//! At an output with `egress = "fair-share"` and `excess = "hold"`, frames above the limits wait in
//! their senders' rings for a time that the switch does not know. So the wait at the output has no
//! limit, and `queue.wait_us` is only for outputs that drop frames.

use super::Warning;
use crate::config::{Egress, Excess, HostConfig};

/// Returns a warning for each port whose `queue.wait_us` has no effect.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let mut all = Vec::new();
    for port in config.ports.iter().filter(|port| port.egress == Egress::FairShare) {
        let Some(queue) = port.queue else { continue };
        let Some(wait) = queue.wait_us.filter(|_| queue.excess != Some(Excess::Drop)) else {
            continue;
        };
        let text = format!(
            "port {}: `queue.wait_us` {wait} has no effect: with excess = \"hold\", frames wait \
             without a limit; remove `wait_us`, or set excess = \"drop\"",
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
            "[host]\nname = \"h\"\n[[port]]\nname = \"up\"\ntap.interface = \"up\"\n{keys}\n"
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
                ["port up: `queue.wait_us` 5000 has no effect: with excess = \"hold\", frames \
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
}
