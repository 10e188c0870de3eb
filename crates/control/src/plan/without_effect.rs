//! Warns about settings of ports and tenants that have no effect.
//!
//! - At an output with `egress = "fair-share"` and `excess = "hold"`, frames above the limits wait
//!   in their senders' rings for a time that the switch does not know. So the wait at the output
//!   has no limit, and `queue.wait_us` is only for outputs that drop frames.
//! - Without `link`, frames wait in the NIC or in the VMs' rings rather than at an output with
//!   `queue.flows`, or with weights that a fabric's controller sets.
//! - The limits of `police` belong to the policies `bps` and `pps`. Under another policy, a port
//!   with `police` sends without these limits.
//! - `ceilings` of `wfq` limit tenants in queue 0, and not a tenant whose code point has another
//!   queue.
//! - Tenants' weights divide only an output with `egress = "fair-share"`, and what arrives through
//!   an uplink with `inbound`.
//! - `uplink_share` divides the same among the ports of a tenant, and also the tenant's `receive`
//!   and `send`, which a controller may set.
//! - `inbound` shares frames among the ports of tenants. A host without tenants has no such ports.

use super::Warning;
use crate::config::{Egress, Excess, HostConfig, IngressPolicy, Port, Tenant, Weight};

/// Returns a warning for each setting of a port that has no effect, and one for tenants' weights.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let mut all = Vec::new();
    for port in &config.ports {
        let texts = [
            wait(port),
            flows(port),
            unpaced(port, config),
            police(port),
            ceiling(port, &config.tenants),
            inbound(port, &config.tenants),
            share(port, config),
        ];
        for text in texts.into_iter().flatten() {
            let text = format!("port {}: {text}", port.name);
            all.push(Warning { ports: vec![port.name.clone()], text });
        }
    }
    all.extend(weight(config));
    all
}

fn ceiling(port: &Port, tenants: &[Tenant]) -> Option<String> {
    let wfq = port.wfq.as_ref()?;
    tenants.iter().filter(|tenant| wfq.ceilings.contains_key(&tenant.name)).find_map(|tenant| {
        let dscp = tenant.dscp?;
        let (_, queue) = wfq.map.iter().find(|(point, _)| point.get() == dscp)?;
        (*queue != 0).then(|| {
            format!(
                "`wfq.ceilings` does not limit tenant {}, because its code point {dscp} is in \
                 queue {queue}; limit the tenant with its `send`",
                tenant.name
            )
        })
    })
}

fn inbound(port: &Port, tenants: &[Tenant]) -> Option<String> {
    port.inbound.filter(|_| tenants.is_empty())?;
    let text = "`inbound` has no effect, because the host has no tenants whose ports could share; \
                add a tenant, or remove `inbound`";
    Some(text.to_owned())
}

fn share(port: &Port, config: &HostConfig) -> Option<String> {
    let divides = |port: &Port| port.egress == Egress::FairShare || port.inbound.is_some();
    let is_own = |tenant: &&Tenant| port.tenant.as_ref() == Some(&tenant.name);
    let has_limit = |tenant: &Tenant| tenant.receive.is_some() || tenant.send.is_some();
    let is_limited =
        config.fabric.is_some() || config.tenants.iter().find(is_own).is_some_and(has_limit);
    if port.uplink_share == Weight::default() || is_limited || config.ports.iter().any(divides) {
        return None;
    }
    Some(format!(
        "`uplink_share` {} has no effect, because nothing is divided among the tenant's ports; set \
         egress = \"fair-share\" or `inbound` of the uplink, or `receive` or `send` of the tenant, \
         or remove `uplink_share`",
        port.uplink_share.0.get()
    ))
}

fn weight(config: &HostConfig) -> Option<Warning> {
    let mut shared = config.ports.iter().filter(|port| port.tenant.is_none()).peekable();
    shared.peek()?;
    if shared.any(|port| port.egress == Egress::FairShare || port.inbound.is_some()) {
        return None;
    }
    let set = |tenant: &&Tenant| tenant.uplink_weight != Weight::default();
    let tenant = config.tenants.iter().find(set)?;
    let text = format!(
        "tenant {}: `uplink_weight` {} has no effect, because no uplink is divided by weight; set \
         egress = \"fair-share\" or `inbound` of the uplink, or remove `uplink_weight`",
        tenant.name,
        tenant.uplink_weight.0.get()
    );
    Some(Warning { ports: Vec::new(), text })
}

fn wait(port: &Port) -> Option<String> {
    let queue = port.queue.filter(|_| port.egress == Egress::FairShare)?;
    let holds = queue.excess != Some(Excess::Drop) && !queue.flows;
    let wait = queue.wait_us.filter(|_| holds)?;
    Some(format!(
        "`queue.wait_us` {wait} has no effect: with excess = \"hold\", frames wait without a \
         limit; remove `wait_us`, or set excess = \"drop\""
    ))
}

fn flows(port: &Port) -> Option<String> {
    let flows = port.queue.is_some_and(|queue| queue.flows) && port.link.is_none();
    flows.then(|| {
        "`queue.flows` has no effect while the port accepts frames, which then wait in the NIC or \
         in rings; add `link`, the rate of the port's link"
            .to_owned()
    })
}

fn unpaced(port: &Port, config: &HostConfig) -> Option<String> {
    let is_uplink = config.fabric.as_ref().is_some_and(|fabric| fabric.uplink == port.name);
    let sets = config.switch.as_ref().is_some_and(|switch| switch.sets(&port.name, port.egress));
    (port.link.is_none() && (is_uplink || sets)).then(|| {
        "the weights of the fabric's controller have no effect while the port accepts frames, \
         which then wait in the NIC or in rings; add `link`, the rate of the port's link"
            .to_owned()
    })
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
            "egress = \"fair-share\"\nlink = \"1G\"\nqueue = { wait_us = 5000, flows = true }",
        ] {
            assert_eq!(warned(fits), Vec::<String>::new(), "{fits}");
        }
    }

    #[test]
    fn flow_queues_of_vms_without_a_rate_are_warned_of() {
        assert_eq!(
            warned("egress = \"fair-share\"\nqueue = { flows = true }"),
            ["port vm1: `queue.flows` has no effect while the port accepts frames, which then \
              wait in the NIC or in rings; add `link`, the rate of the port's link"]
        );
    }

    const FABRIC: &str = "[fabric]\ncontrollers = [\"10.0.0.1:7000\"]\nuplink = \"up\"";

    #[test]
    fn weights_of_a_controller_without_a_rate_are_warned_of() {
        let up = "[[port]]\nname = \"up\"\ntap.interface = \"u\"\negress = \"wfq\"\n";
        for section in [FABRIC, "[switch]"] {
            let [text] = &warned(&format!("{up}{section}"))[..] else { panic!("one warning") };
            let says = "port up: the weights of the fabric's controller have no effect while";
            assert!(text.starts_with(says), "{text}");
            assert_eq!(warned(&format!("{up}link = \"1G\"\n{section}")), Vec::<String>::new());
        }
        assert_eq!(warned(up), Vec::<String>::new());
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

    #[test]
    fn a_ceiling_of_a_tenant_with_its_own_queue_is_warned_of() {
        let with = |dscp: &str| {
            let wfq = "{ map = { 8 = 1, 9 = 0 }, ceilings = { red = \"50M\" } }";
            warned(&format!("egress = \"wfq\"\nwfq = {wfq}\n[[tenant]]\nname = \"red\"\n{dscp}"))
        };
        assert_eq!(
            with("dscp = 8"),
            ["port vm1: `wfq.ceilings` does not limit tenant red, because its code point 8 is in \
              queue 1; limit the tenant with its `send`"]
        );
        for shares in ["", "dscp = 0", "dscp = 9", "dscp = 10"] {
            assert_eq!(with(shares), Vec::<String>::new(), "{shares}");
        }
    }

    #[test]
    fn shares_among_nobody_are_warned_of() {
        let (red, nothing) = ("[[tenant]]\nname = \"red\"", Vec::<String>::new());
        let uplink = "link = \"1G\"\ninbound = {}";
        let [text] = &warned(uplink)[..] else { panic!("one warning") };
        assert!(
            text.contains("`inbound` has no effect, because the host has no tenants"),
            "{text}"
        );
        assert_eq!(warned(&format!("{uplink}\n{red}")), nothing);
        let vm = |tenant: &str, port: &str| {
            let port = format!("[[port]]\nname = \"up\"\ntap.interface = \"u\"\n{port}");
            warned(&format!("tenant = \"red\"\nuplink_share = 3\n{port}\n{red}\n{tenant}"))
        };
        assert_eq!(
            vm("", "egress = \"wfq\""),
            ["port vm1: `uplink_share` 3 has no effect, because nothing is divided among the \
              tenant's ports; set egress = \"fair-share\" or `inbound` of the uplink, or `receive` \
              or `send` of the tenant, or remove `uplink_share`"]
        );
        let limit = "{ rate = \"1G\" }";
        for (tenant, port) in [
            ("", "egress = \"fair-share\"".to_owned()),
            ("", uplink.to_owned()),
            (&*format!("receive = {limit}"), String::new()),
            (&*format!("send = {limit}"), String::new()),
            ("", format!("link = \"1G\"\n{FABRIC}")),
        ] {
            assert_eq!(vm(tenant, &port), nothing, "{tenant} {port}");
        }
        assert_eq!(warned(&format!("tenant = \"red\"\n{red}")), nothing);
    }

    #[test]
    fn weights_that_divide_nothing_are_warned_of_once() {
        let tenants = "[[tenant]]\nname = \"red\"\n[[tenant]]\nname = \"blue\"\nuplink_weight = \
                       5\n[[tenant]]\nname = \"green\"\nuplink_weight = 3";
        let with = |keys: &str| warned(&format!("{keys}\n{tenants}"));
        assert_eq!(
            with("egress = \"wfq\""),
            ["tenant blue: `uplink_weight` 5 has no effect, because no uplink is divided by \
              weight; set egress = \"fair-share\" or `inbound` of the uplink, or remove \
              `uplink_weight`"]
        );
        for divides in
            ["egress = \"fair-share\"", "link = \"1G\"\ninbound = {}", "tenant = \"red\""]
        {
            assert_eq!(with(divides), Vec::<String>::new(), "{divides}");
        }
    }
}
