//! Warns about policers whose burst is too small for large segments (TSO).
//!
//! A policer drops or passes a TSO segment of up to 64 KiB as a whole. If a policer's token bucket
//! is smaller than [`segments_depth`], a TCP stream loses whole windows. After each loss, the
//! stream waits for the retransmission timeout. A TCP stream that loses whole windows reaches only
//! a fraction of the policer's rate. The key `police` limits only its own port's frames, but a
//! limit of `receive` or `send` may apply to frames of any port.

use std::fmt::Display;

use penstock_qos::egress_policer::Terms;
use penstock_qos::policer::{Limit, Spec, segments_depth, segments_frames};
use penstock_units::{BitsPerSecond, PacketsPerSecond};

use super::Warning;
use crate::config::{HostConfig, PlannedLimits, Port};

/// Returns a warning for each burst that is too small.
pub(super) fn warnings(config: &HostConfig) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |ports: &[&str], texts: [Option<String>; 2]| {
        let ports: Vec<_> = ports.iter().map(|&port| port.to_owned()).collect();
        let warning = |text| Warning { ports: ports.clone(), text };
        all.extend(texts.into_iter().flatten().map(warning));
    };
    for port in config.ports.iter().filter(|port| sends_segments(port)) {
        let object = format!("port {}: police", port.name);
        // A limit for which frames wait loses no segment.
        for spec in port.ingress_policers().iter().filter(|spec| !spec.waits()) {
            let text = match (depth(spec), spec.limit()) {
                (Some((key, limit)), _) => bytes(&object, key, limit),
                (None, Limit::Packets { rate, burst }) => frames(&object, "burst", (rate, burst)),
                (None, _) => None,
            };
            warn(&[&port.name], [text, None]);
        }
    }
    if !config.ports.iter().any(sends_segments) {
        return all;
    }
    for port in &config.ports {
        let Some(receive) = &port.receive else { continue };
        let terms = receive.terms(config.receive_waits(port));
        warn(&[&port.name], of_terms(&format!("port {}: receive", port.name), terms));
    }
    for tenant in &config.tenants {
        // The operator of the host cannot change a limit of the fabric's controller.
        let PlannedLimits { receive, send } = tenant.planned;
        let receive = tenant.receive_terms().filter(|_| !receive);
        let send = tenant.send_terms().filter(|_| !send);
        for (key, terms) in [("receive", receive), ("send", send)] {
            let Some(terms) = terms else { continue };
            warn(&[], of_terms(&format!("tenant {}: {key}", tenant.name), terms));
        }
    }
    all
}

/// Returns the depth in bytes of a port's own limit that drops frames, if the depth is too small
/// for large segments. Returns `None` for a limit in frames per second.
pub(crate) fn shallow_depth(port: &Port) -> Option<u32> {
    let limits = port.ingress_policers();
    let (_, (rate, depth)) = limits.iter().filter(|spec| !spec.waits()).find_map(depth)?;
    (depth < segments_depth(rate)).then_some(depth)
}

/// Returns the key, the rate and the depth of the largest bucket of a limit in bits per second.
fn depth(spec: &Spec) -> Option<(&'static str, (BitsPerSecond, u32))> {
    match spec.limit() {
        Limit::SingleRate { cir, cbs, ebs } => Some(("cbs", (cir, cbs.saturating_add(ebs)))),
        Limit::TwoRate { pir, pbs, .. } => Some(("pbs", (pir, pbs))),
        Limit::Packets { .. } => None,
    }
}

fn of_terms(object: &str, terms: Terms) -> [Option<String>; 2] {
    if terms.waits {
        return [None, None];
    }
    [
        terms.bytes.and_then(|limit| bytes(object, "burst", limit)),
        terms.frames.and_then(|limit| frames(object, "frames", limit)),
    ]
}

/// Whether the port may send large segments. Policers see large segments before the segments are
/// cut into frames.
fn sends_segments(port: &Port) -> bool {
    port.attachment().is_some_and(|attachment| attachment.offloads().tso)
}

fn bytes(object: &str, key: &str, (rate, depth): (BitsPerSecond, u32)) -> Option<String> {
    shallow(object, (key, depth), &format!("{rate} bit/s"), segments_depth(rate), "bytes")
}

fn frames(object: &str, key: &str, (rate, depth): (PacketsPerSecond, u32)) -> Option<String> {
    let rate_text = format!("{rate} frames/s");
    shallow(object, (key, depth), &rate_text, segments_frames(rate), "frames")
}

fn shallow(
    object: &str,
    (key, depth): (&str, u32),
    rate: &dyn Display,
    least: u32,
    unit: &str,
) -> Option<String> {
    (depth < least).then(|| {
        format!(
            "{object}: a burst of {depth} {unit} is too small for TCP with TSO at {rate}, so a \
             stream may get only a small part of the rate; leave out `{key}`, write at least \
             {least}, or set offloads = {{ tso = false }} on the sending ports"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(ports: &str) -> Vec<String> {
        let text = format!("[host]\nname = \"h\"\n[[tenant]]\nname = \"red\"\n{ports}");
        let all = warnings(&toml_edit::de::from_str(&text).unwrap());
        all.into_iter().map(|warning| warning.text).collect()
    }

    fn tap(keys: &str) -> String {
        format!("[[port]]\nname = \"vm1\"\ntap.interface = \"t\"\n{keys}\n")
    }

    #[test]
    fn a_depth_below_half_a_timeout_is_warned_of_and_the_default_is_not() {
        let shallow = "ingress_policy = \"bps\"\npolice = { cir = \"1G\", cbs = 131072 }";
        let told = warned(&tap(shallow));
        assert_eq!(
            told,
            ["port vm1: police: a burst of 131072 bytes is too small for TCP with TSO at 1G \
                 bit/s, so a stream may get only a small part of the rate; leave out `cbs`, write \
                 at least 12500000, or set offloads = { tso = false } on the sending ports"]
        );
        for fits in [
            "ingress_policy = \"bps\"\npolice = { cir = \"1G\" }",
            "ingress_policy = \"bps\"\npolice = { cir = \"1G\", pir = \"400G\" }",
            "ingress_policy = \"bps\"\npolice = { cir = \"1G\", cbs = 131072, ebs = 12500000 }",
            "ingress_policy = \"pps\"\npolice = { pps = \"80k\" }",
            "receive = { rate = \"1G\", pps = \"80k\" }",
            "police = { cir = \"1G\", cbs = 131072 }",
            &format!("tap.offloads = {{ tso = false }}\n{shallow}"),
        ] {
            assert_eq!(warned(&tap(fits)), Vec::<String>::new(), "{fits}");
        }
    }

    #[test]
    fn every_kind_of_policer_is_looked_at() {
        for (keys, object) in [
            (
                "ingress_policy = \"pps\"\npolice = { pps = \"80k\", burst = 256 }",
                "port vm1: police",
            ),
            (
                "ingress_policy = \"bps\"\npolice = { cir = \"1G\", pir = \"2G\", pbs = 131072 }",
                "port vm1: police",
            ),
            ("receive = { rate = \"1G\", burst = 131072 }", "port vm1: receive"),
            ("receive = { pps = \"80k\", frames = 256 }", "port vm1: receive"),
        ] {
            let told = warned(&tap(keys));
            assert!(told.len() == 1 && told[0].starts_with(object), "{keys}: {told:?}");
        }
        let of_tenant = "receive = { rate = \"1G\", burst = 131072 }\nsend = { pps = \"80k\",
                         frames = 256 }\n";
        let told = warned(&format!("{of_tenant}{}", tap("")));
        let objects: Vec<_> = told.iter().map(|text| text.split(": a").next().unwrap()).collect();
        assert_eq!(objects, ["tenant red: receive", "tenant red: send"]);
        assert!(warned(&format!("{of_tenant}{}", tap("tap.offloads = false"))).is_empty());
    }
}
