//! Warns about mirrors that copy nothing, or whose copies reach another tenant or lose their VLAN.
//!
//! A mirror crosses the border between tenants on purpose: its port should belong to a tenant of
//! its own, such as `monitor`. If that tenant also has ports that are no mirror's target, the name
//! of the port is probably wrong. A rule for a tenant or for all ports may match frames of VLANs
//! that the port of the copies does not carry. A port gets no copies of the frames that it sends.

use std::collections::BTreeSet;

use super::Warning;
use crate::config::{Action, HostConfig, Port, Rule, port_vlans};

/// Returns a warning for each mirror that is probably a mistake.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let targets = targets(config);
    let mut all = Vec::new();
    for port in &config.ports {
        let Some(mirror) = &port.mirror else { continue };
        let (object, owner) = (format!("port {}", port.name), port.tenant.as_deref());
        if let Some(text) = foreign(config, &targets, (&object, owner), &mirror.to) {
            all.push(Warning { ports: vec![port.name.clone(), mirror.to.clone()], text });
        }
    }
    for rule in &config.rules {
        let of_port = rule.port.as_ref().and_then(|name| find(config, name));
        let owner = rule.tenant.as_deref().or_else(|| of_port?.tenant.as_deref());
        let object = format!("rule {}", rule.name);
        for to in rule.actions.iter().filter_map(mirrored_to) {
            let foreign = foreign(config, &targets, (&object, owner), to);
            let rule = (object.as_str(), rule);
            let texts = [foreign, tagless(config, rule, to), own(config, rule, to)];
            let warning = |text| Warning { ports: vec![to.to_owned()], text };
            all.extend(texts.into_iter().flatten().map(warning));
        }
    }
    all
}

/// Names of all ports that get copies.
fn targets(config: &HostConfig) -> BTreeSet<&str> {
    let of_ports = config.ports.iter().filter_map(|port| port.mirror.as_ref());
    let of_ports = of_ports.map(|mirror| mirror.to.as_str());
    let of_rules = config.rules.iter().flat_map(|rule| &rule.actions).filter_map(mirrored_to);
    of_ports.chain(of_rules).collect()
}

fn mirrored_to(action: &Action) -> Option<&str> {
    match action {
        Action::Mirror(port) => Some(port),
        _ => None,
    }
}

fn find<'a>(config: &'a HostConfig, name: &str) -> Option<&'a Port> {
    config.ports.iter().find(|port| port.name == name)
}

/// Warns if copies of the frames of tenant `owner`, or of all tenants, go to a tenant that has
/// ports of its own.
fn foreign(
    config: &HostConfig,
    targets: &BTreeSet<&str>,
    (object, owner): (&str, Option<&str>),
    to: &str,
) -> Option<String> {
    let tenant = find(config, to)?.tenant.as_deref().filter(|tenant| owner != Some(*tenant))?;
    let is_guest = |port: &&Port| {
        port.tenant.as_deref() == Some(tenant) && !targets.contains(port.name.as_str())
    };
    let guest = config.ports.iter().find(is_guest)?;
    let several = || "several tenants".to_owned();
    let whose = owner.map_or_else(several, |owner| format!("tenant {owner}"));
    Some(format!(
        "{object}: copies of frames of {whose} go to port {to} of tenant {tenant}, which also has \
         port {}; give the port that gets the copies a tenant of its own, such as `monitor`",
        guest.name
    ))
}

/// Whether a rule applies to the frames that `port` sends.
fn applies(rule: &Rule, port: &Port) -> bool {
    rule.port.as_ref().is_none_or(|name| *name == port.name)
        && (rule.tenant.is_none() || port.tenant == rule.tenant)
}

/// Warns if only the port `to` sends the frames of a rule.
fn own(config: &HostConfig, (object, rule): (&str, &Rule), to: &str) -> Option<String> {
    let mut senders = config.ports.iter().filter(|port| applies(rule, port));
    let only = senders.next().filter(|port| port.name == to);
    if only.is_none() || senders.next().is_some() {
        return None;
    }
    Some(format!(
        "{object}: mirror:{to} has no effect, because only port {to} sends frames of the rule, \
         and no port gets copies of its own frames; name another port"
    ))
}

/// Warns if the port `to` cannot carry the VLANs of a rule that applies to several ports.
fn tagless(config: &HostConfig, (object, rule): (&str, &Rule), to: &str) -> Option<String> {
    if rule.port.is_some() {
        return None;
    }
    let target = find(config, to)?;
    let applies = |port: &&Port| port.name != to && applies(rule, port);
    let vlans: BTreeSet<u16> = match &rule.matching.vlan {
        Some(vlan) => BTreeSet::from([vlan.get()]),
        None => config.ports.iter().filter(applies).flat_map(port_vlans).collect(),
    };
    let carried = port_vlans(target);
    let missing = *vlans.iter().find(|vlan| !carried.contains(vlan))?;
    let what = match missing {
        0 => "untagged frames".to_owned(),
        vlan => format!("frames of VLAN {vlan}"),
    };
    let effect = match target.trunk {
        Some(_) => "are dropped as vlan-egress",
        None => "have no VLAN tag",
    };
    Some(format!(
        "{object}: copies of {what} {effect}, because port {to} does not carry them; give port \
         {to} a `trunk` with all VLANs of the rule, or name the rule's `port`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(text: &str) -> Vec<String> {
        let tenants = ["red", "blue", "monitor"]
            .map(|name| format!("[[tenant]]\nname = \"{name}\"\nvlans = [5, 7]\n"));
        let port = |name: &str, tenant: &str, more: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\ntenant = \"{tenant}\"\n\
                 tap.interface = \"{name}\"\n{more}\n"
            )
        };
        let ports = [
            port("red1", "red", "vlan = 5"),
            port("red2", "red", "vlan = 7"),
            port("blue1", "blue", "vlan = 5"),
            port("blue2", "blue", "vlan = 5"),
            port("probe", "monitor", "vlan = 5"),
            port("wide", "monitor", "trunk = [5, 7]"),
        ];
        let text = format!("[host]\nname = \"h\"\n{}{}{text}", tenants.concat(), ports.concat());
        let all = warnings(&toml_edit::de::from_str(&text).unwrap());
        all.into_iter().map(|warning| warning.text).collect()
    }

    fn port_to(to: &str) -> String {
        format!(
            "[[port]]\nname = \"red3\"\ntenant = \"red\"\nvlan = 5\ntap.interface = \"red3\"\n\
             mirror.to = \"{to}\"\n"
        )
    }

    fn rule_to(to: &str, scope: &str) -> String {
        format!("[[rule]]\nname = \"look\"\n{scope}\nactions = [\"mirror:{to}\", \"normal\"]\n")
    }

    #[test]
    fn copies_for_another_tenant_are_warned_of_unless_the_tenant_is_only_for_copies() {
        let [text] = &warned(&port_to("blue1"))[..] else { panic!("one warning") };
        assert_eq!(
            text,
            "port red3: copies of frames of tenant red go to port blue1 of tenant blue, which \
             also has port blue2; give the port that gets the copies a tenant of its own, such as \
             `monitor`"
        );
        assert!(warned(&port_to("red1")).is_empty(), "within the tenant");
        let both = port_to("probe") + &rule_to("wide", "port = \"red1\"");
        assert!(warned(&both).is_empty());
        let scopes = [("port = \"red1\"", "tenant red"), ("match.vlan = 5", "several tenants")];
        for (scope, whose) in scopes {
            let all = warned(&rule_to("blue1", scope));
            assert!(all[0].starts_with("rule look: copies of frames of "), "{all:?}");
            assert!(all[0].contains(whose) && all.len() == 1, "{all:?}");
        }
        assert!(warned(&rule_to("blue1", "tenant = \"blue\"")).is_empty());
    }

    #[test]
    fn a_rule_is_warned_of_if_its_copies_would_return_to_their_sender() {
        let [text] = &warned(&rule_to("red1", "port = \"red1\""))[..] else {
            panic!("one warning")
        };
        assert_eq!(
            text,
            "rule look: mirror:red1 has no effect, because only port red1 sends frames of the \
             rule, and no port gets copies of its own frames; name another port"
        );
        let alone = "[[tenant]]\nname = \"one\"\n[[port]]\nname = \"alone\"\ntenant = \"one\"\n\
                     tap.interface = \"alone\"\n";
        let told = warned(&(alone.to_owned() + &rule_to("alone", "tenant = \"one\"")));
        assert!(told.len() == 1 && told[0].contains("mirror:alone has no effect"), "{told:?}");
        assert!(warned(&rule_to("red1", "port = \"red2\"")).is_empty());
        let several = warned(&rule_to("red1", "tenant = \"red\""));
        assert!(several.iter().all(|text| !text.contains("no effect")), "{several:?}");
    }

    #[test]
    fn a_rule_for_several_vlans_is_warned_of_if_its_copies_lose_the_vlan() {
        let both = port_to("probe") + &rule_to("probe", "tenant = \"red\"") + &port_of_wide();
        let [text] = &warned(&both)[..] else { panic!("one warning") };
        assert!(text.contains("copies of frames of VLAN 7 have no VLAN tag"), "{text}");
        let wide = rule_to("wide", "tenant = \"red\"") + &port_to("probe");
        assert!(warned(&wide).is_empty(), "{:?}", warned(&wide));
        let narrow = "[[port]]\nname = \"narrow\"\ntenant = \"monitor\"\ntrunk = [5]\n\
                      tap.interface = \"narrow\"\n";
        let told = warned(&(narrow.to_owned() + &rule_to("narrow", "tenant = \"red\"")));
        assert!(told.iter().any(|text| text.contains("VLAN 7 are dropped as vlan-egress")));
    }

    /// A mirror that makes `wide` a port for copies, too.
    fn port_of_wide() -> String {
        port_to("wide").replace("red3", "red4")
    }
}
