//! `receive`, of ports and tenants: that it names a rate and is possible.

use penstock_dataplane::egress::rtp::RTP_STREAMS_MAX;
use penstock_qos::policer::{DEPTH_MAX, PACKETS_MAX, RATE_MAX, RATE_MIN};
use penstock_toml::{Object, Report};
use penstock_units::PacketsPerSecond;

use super::super::model::{Port, Tenant};
use super::super::receiving::Receive;

/// Bytes at once: a frame of an MTU of 1,500 must pass.
const BURST_MIN: u32 = 1_514;

pub(super) fn check_port(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    check_rtp(object, port, report);
    let Some(receive) = &port.receive else { return };
    if port.tenant.is_none() {
        let remedy =
            "remove it; give the port a `tenant`, or limit what the tenants' ports receive";
        report.at(object, "receive", "`receive` belongs to a tenant's port", remedy);
    }
    if receive.sharing.is_some() {
        let remedy = "move it to `receive` of the [[tenant]]";
        report.at(object, "receive.sharing", "`sharing` belongs to the tenant", remedy);
    }
    check(object, ("receive", receive), report);
}

fn check_rtp(object: &Object<'_, Port>, port: &Port, report: &mut Report<'_>) {
    if port.rtp.len() > RTP_STREAMS_MAX {
        let problem = format!("{} streams are too many", port.rtp.len());
        report.at(object, "rtp", problem, format!("mark at most {RTP_STREAMS_MAX}"));
    }
    if !port.rtp.is_empty() && port.tenant.is_none() {
        let remedy = "mark it at the VM's port that receives the stream";
        report.at(object, "rtp", "`rtp` belongs to a tenant's port", remedy);
    }
    for (at, stream) in port.rtp.iter().enumerate() {
        if stream.port == 0 || port.rtp[..at].iter().any(|other| other.port == stream.port) {
            let problem = format!("UDP port {} is 0 or marked twice", stream.port);
            report.at(object, &format!("rtp.{at}"), problem, "write each of 1 to 65535 once");
        }
        if !(1..=1_000_000_000).contains(&stream.clock_hz) {
            let problem = format!("`clock_hz` {} is out of range", stream.clock_hz);
            let remedy = "write 1 to 1000000000; 90000 for video";
            report.at(object, &format!("rtp.{at}"), problem, remedy);
        }
    }
}

pub(super) fn check_tenant(object: &Object<'_, Tenant>, tenant: &Tenant, report: &mut Report<'_>) {
    if let Some(receive) = &tenant.receive {
        check(object, ("receive", receive), report);
    }
    if let Some(send) = &tenant.send {
        check(object, ("send", send), report);
        if send.sharing.is_some() {
            let remedy = "remove it; the rate of `send` is shared in turn";
            report.at(object, "send.sharing", "`sharing` belongs to `receive`", remedy);
        }
    }
}

fn check<T>(object: &Object<'_, T>, (of, terms): (&str, &Receive), report: &mut Report<'_>) {
    let outside =
        |report: &mut Report<'_>, key: &str, value: String, least: String, most: String| {
            let problem = format!("`{key}` {value} is out of range");
            report.at(object, key, problem, format!("write {least} to {most}"));
        };
    let key = |name: &str| format!("{of}.{name}");
    if terms.rate.is_none() && terms.pps.is_none() {
        let remedy = format!("add `rate` or `pps`, as in {of} = {{ rate = \"200M\" }}");
        report.at(object, of, format!("`{of}` has no rate"), remedy);
    }
    if let Some(rate) = terms.rate.map(|rate| rate.0)
        && !(RATE_MIN..=RATE_MAX).contains(&rate)
    {
        let (least, most) = (RATE_MIN.to_string(), RATE_MAX.to_string());
        outside(report, &key("rate"), rate.to_string(), least, most);
    }
    if let Some(pps) = terms.pps.map(|pps| pps.0)
        && !(PacketsPerSecond(1)..=PACKETS_MAX).contains(&pps)
    {
        let most = PACKETS_MAX.to_string();
        outside(report, &key("pps"), pps.to_string(), "1".to_owned(), most);
    }
    let depths = [
        (key("burst"), terms.burst, BURST_MIN, terms.rate.is_some(), "rate"),
        (key("frames"), terms.frames, 1, terms.pps.is_some(), "pps"),
    ];
    for (key, depth, least, has_rate, rate) in depths {
        let Some(depth) = depth else { continue };
        if !has_rate {
            let problem = format!("`{key}` goes with `{rate}`");
            report.at(object, &key, problem, format!("add `{rate}`, or remove it"));
        } else if !(least..=DEPTH_MAX).contains(&depth) {
            outside(report, &key, depth.to_string(), least.to_string(), DEPTH_MAX.to_string());
        }
    }
}
