//! The made situations: what limits the VM `vm` in each, and how the situation is made.

use penstock_dataplane::queue::{Order, Pacing, ShapeTerms, ShaperKind};
use penstock_dataplane::snapshot::IngressPolicy::{Bps, CyclesMinmax, CyclesStrict};
use penstock_qos::fair_share::Bound;
use penstock_qos::policer::{Limit, wait_depth, wait_frames};
use penstock_qos::shaper::Smoothing;
use penstock_units::{BitsPerSecond, PacketsPerSecond};

use super::bed::{Bed, dropping};

/// What limits the VM in a situation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// Name of the limit, as in the answer of `penstock explain`.
    pub limit: &'static str,
    /// Port that the answer names; empty if it names none.
    pub port: &'static str,
    /// Words that the answer must contain.
    pub words: &'static str,
}

const fn cause(limit: &'static str, port: &'static str, words: &'static str) -> Cause {
    Cause { limit, port, words }
}

/// A made situation.
pub(super) struct Made {
    pub name: &'static str,
    pub cause: Cause,
    /// Frames per second that the receivers `to` and `far` take at most.
    pub slow: [Option<u64>; 2],
    pub make: fn(&mut Bed) -> anyhow::Result<()>,
}

const fn made(name: &'static str, cause: Cause, make: fn(&mut Bed) -> anyhow::Result<()>) -> Made {
    Made { name, cause, slow: [None, None], make }
}

const fn with_slow(slow: [Option<u64>; 2], made: Made) -> Made {
    Made { slow, ..made }
}

const POLICE: [&str; 2] = ["`cir` of `police`", "`pps` of `police`"];
const CONTRACT: [&str; 2] = ["`max_rate` of `contract`", "`max_pps` of `contract`"];
const MBPS: u64 = 1_000_000;

fn bits(mbps: u64) -> Option<Limit> {
    let cir = BitsPerSecond(mbps * MBPS);
    Some(Limit::SingleRate { cir, cbs: wait_depth(cir), ebs: 0 })
}

fn frames(pps: u64) -> Option<Limit> {
    let rate = PacketsPerSecond(pps);
    Some(Limit::Packets { rate, burst: wait_frames(rate) })
}

const fn mbps(rate: u64) -> BitsPerSecond {
    BitsPerSecond(rate * MBPS)
}

const VM: (&str, &str) = ("vm", "to");

/// The VM sends about twice the limits of the situations, and the core has time for more.
fn busy(bed: &mut Bed, size: u16) {
    bed.send_to(VM, size, 1, 0.4);
}

/// The neighbours send to `far` with parts of the core each.
fn neighbours(bed: &mut Bed, size: u16, flows: u16, parts: [f64; 3]) {
    for (name, part) in ["a", "b", "c"].into_iter().zip(parts) {
        if part > 0.0 {
            bed.send_to((name, "far"), size, flows, part);
        }
    }
}

pub(super) const MADE: &[Made] = &[
    // Limits of the VM itself.
    made("police in bits", cause("own-rate", "", "`cir` of `police`"), |bed| {
        busy(bed, 64);
        bed.police("vm", (bits(50), None), POLICE, true)
    }),
    made("police in bits, long frames", cause("own-rate", "", "`cir` of `police`"), |bed| {
        busy(bed, 1_518);
        bed.police("vm", (bits(300), None), POLICE, true)
    }),
    made("police in frames", cause("own-rate", "", "`pps` of `police`"), |bed| {
        busy(bed, 64);
        bed.police("vm", (None, frames(100_000)), POLICE, true)
    }),
    made("both limits, bits tighter", cause("own-rate", "", "`cir` of `police`"), |bed| {
        busy(bed, 1_518);
        bed.police("vm", (bits(300), frames(60_000)), POLICE, true)
    }),
    made("both limits, frames tighter", cause("own-rate", "", "`pps` of `police`"), |bed| {
        busy(bed, 64);
        bed.police("vm", (bits(300), frames(60_000)), POLICE, true)
    }),
    made("police with a stated depth", cause("own-rate", "", "dropped"), |bed| {
        busy(bed, 64);
        let cir = mbps(50);
        let limit = Limit::SingleRate { cir, cbs: 65_536, ebs: 0 };
        bed.cycles("vm", Bps, 0.0);
        bed.police("vm", (Some(limit), None), POLICE, false)
    }),
    made("police beside a full core", cause("own-rate", "", "`cir` of `police`"), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.6, 0.6, 0.0]);
        bed.cycles("vm", CyclesMinmax, 0.5);
        bed.class("vm", 1)?;
        bed.police("vm", (bits(50), None), POLICE, true)
    }),
    made("largest rate of a contract", cause("own-rate", "", "`max_rate`"), |bed| {
        busy(bed, 512);
        bed.sell("vm", CyclesMinmax, (0.1, 512), 1.0)?;
        bed.police("vm", (bits(200), None), CONTRACT, true)
    }),
    made("largest frame rate of a contract", cause("own-rate", "", "`max_pps`"), |bed| {
        busy(bed, 64);
        bed.sell("vm", CyclesMinmax, (0.1, 64), 1.0)?;
        bed.police("vm", (None, frames(120_000)), CONTRACT, true)
    }),
    made("limit of the tenant", cause("own-rate", "", "`send`"), |bed| {
        busy(bed, 512);
        bed.tenant_send("vm", mbps(200), true);
        Ok(())
    }),
    made("limit of the tenant that drops", cause("own-rate", "", "`send` dropped"), |bed| {
        busy(bed, 512);
        bed.tenant_send("vm", mbps(200), false);
        Ok(())
    }),
    made("shaper", cause("own-rate", "", "`shape.send`"), |bed| {
        busy(bed, 512);
        let kind = ShaperKind::Smooth(Smoothing::DEFAULT);
        bed.shape("vm", ShapeTerms { rate: mbps(200), kind });
        Ok(())
    }),
    // Receivers.
    with_slow(
        [Some(50_000), None],
        made("slow receiver", cause("destination", "to", "ring or queue of to"), |bed| {
            busy(bed, 64);
            Ok(())
        }),
    ),
    with_slow(
        [Some(100_000), None],
        made("slow receiver with two senders", cause("destination", "to", ""), |bed| {
            busy(bed, 64);
            bed.send_to(("a", "to"), 64, 1, 0.2);
            Ok(())
        }),
    ),
    with_slow(
        [Some(50_000), Some(50_000)],
        made("two slow receivers", cause("destination", "to", ""), |bed| {
            busy(bed, 64);
            neighbours(bed, 64, 1, [0.5, 0.0, 0.0]);
            Ok(())
        }),
    ),
    with_slow(
        [Some(50_000), None],
        made("slow receiver of a buyer", cause("destination", "to", ""), |bed| {
            busy(bed, 64);
            bed.sell("vm", CyclesMinmax, (0.3, 64), 1.0)
        }),
    ),
    made("limit of the receiver", cause("destination", "to", "`receive`"), |bed| {
        busy(bed, 512);
        bed.receive("to", mbps(200), true);
        Ok(())
    }),
    made("limit of the receiver that drops", cause("destination", "to", "`receive`"), |bed| {
        busy(bed, 512);
        bed.receive("to", mbps(200), false);
        Ok(())
    }),
    // Links.
    made("part of a full link", cause("link", "to", "share"), |bed| {
        busy(bed, 512);
        bed.send_to(("a", "to"), 512, 1, 0.4);
        bed.full_link("to", mbps(600), &["vm", "a"]);
        Ok(())
    }),
    made("part of a full link, frames of 64 bytes", cause("link", "to", "share"), |bed| {
        busy(bed, 64);
        bed.send_to(("a", "to"), 1_518, 1, 0.4);
        bed.full_link("to", mbps(200), &["vm", "a"]);
        Ok(())
    }),
    with_slow(
        [Some(100_000), None],
        made("link whose parts do not apply yet", cause("link", "to", "ring was full"), |bed| {
            busy(bed, 512);
            bed.watched_link("to", mbps(400), Vec::new());
            Ok(())
        }),
    ),
    made("shared output that holds back", cause("link", "", "backlog"), |bed| {
        busy(bed, 512);
        bed.send_to(("a", "to"), 512, 1, 0.4);
        bed.queue("to", Order::FairShare, Pacing::Link(mbps(400)), Bound::default());
        Ok(())
    }),
    made("queue of an output", cause("link", "to", "queue 0 of to"), |bed| {
        busy(bed, 512);
        bed.queue("to", Order::Wfq, Pacing::Link(mbps(200)), dropping());
        Ok(())
    }),
    // The VM's own cycles.
    made("strict cycles", cause("entitlement", "", "no cycles"), |bed| {
        busy(bed, 64);
        bed.cycles("vm", CyclesStrict, 0.2);
        Ok(())
    }),
    made("few strict cycles", cause("entitlement", "", "no cycles"), |bed| {
        busy(bed, 64);
        bed.cycles("vm", CyclesStrict, 0.01);
        Ok(())
    }),
    made("strict cycles on a full core", cause("entitlement", "", ""), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.6, 0.6, 0.0]);
        bed.cycles("vm", CyclesStrict, 0.2);
        bed.cycles("a", CyclesMinmax, 0.3);
        bed.cycles("b", CyclesMinmax, 0.3);
        Ok(())
    }),
    made("cycles of a core that is sold out", cause("entitlement", "", ""), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.6, 0.6, 0.0]);
        bed.cycles("vm", CyclesMinmax, 0.2);
        bed.cycles("a", CyclesMinmax, 0.35);
        bed.cycles("b", CyclesMinmax, 0.35);
        Ok(())
    }),
    made("hardly any cycles", cause("entitlement", "", "overdrew"), |bed| {
        busy(bed, 64);
        bed.cycles("vm", CyclesStrict, 0.000_01);
        Ok(())
    }),
    made("a contract that is used up", cause("entitlement", "", ""), |bed| {
        busy(bed, 512);
        bed.sell("vm", CyclesStrict, (0.2, 512), 1.0)
    }),
    made("shorter frames than were sold", cause("entitlement", "", "it was sold 1024"), |bed| {
        busy(bed, 64);
        bed.sell("vm", CyclesStrict, (0.2, 1_024), 1.0)
    }),
    made("shorter frames on a full core", cause("entitlement", "", "it was sold 1024"), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.6, 0.6, 0.0]);
        bed.cycles("a", CyclesMinmax, 0.3);
        bed.cycles("b", CyclesMinmax, 0.3);
        bed.sell("vm", CyclesStrict, (0.2, 1_024), 1.0)
    }),
    made("many flows, and one was sold", cause("entitlement", "", "it was sold one"), |bed| {
        bed.send_to(VM, 64, 60_000, 0.4);
        bed.sell("vm", CyclesStrict, (0.2, 64), 1.0)
    }),
    made("a model with low costs", cause("entitlement", "", "than the cost model says"), |bed| {
        busy(bed, 512);
        neighbours(bed, 512, 1, [0.9, 0.0, 0.0]);
        bed.sell("a", CyclesMinmax, (0.76, 512), 1.0)?;
        bed.sell("vm", CyclesStrict, (0.3, 512), 0.8)
    }),
    made("a machine that became slower", cause("entitlement", "", "those of all ports"), |bed| {
        busy(bed, 512);
        neighbours(bed, 512, 1, [1.1, 0.0, 0.0]);
        bed.sell("a", CyclesStrict, (0.95, 512), 0.8)?;
        bed.sell("vm", CyclesStrict, (0.3, 512), 0.8)
    }),
    // Neighbours.
    made("flood of frames", cause("neighbours", "", "most of all a"), |bed| {
        bed.send_to(VM, 64, 1, 0.8);
        neighbours(bed, 64, 1, [1.2, 0.0, 0.0]);
        Ok(())
    }),
    made("flood of bits", cause("neighbours", "", "most of all b"), |bed| {
        busy(bed, 64);
        neighbours(bed, 1_518, 1, [0.0, 1.2, 0.0]);
        Ok(())
    }),
    made("flood of flows", cause("neighbours", "", "most of all c"), |bed| {
        bed.send_to(VM, 64, 1, 0.8);
        neighbours(bed, 64, 60_000, [0.0, 0.0, 1.2]);
        Ok(())
    }),
    made("a neighbour in an earlier class", cause("neighbours", "", "most of all a"), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.9, 0.0, 0.0]);
        bed.class("a", 1)?;
        bed.cycles("vm", CyclesMinmax, 0.3);
        Ok(())
    }),
    made("no turn beside an earlier class", cause("neighbours", "", "most of all a"), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [1.3, 0.0, 0.0]);
        bed.class("a", 1)
    }),
    made("three neighbours", cause("neighbours", "", "other ports use"), |bed| {
        busy(bed, 64);
        neighbours(bed, 64, 1, [0.4, 0.4, 0.4]);
        Ok(())
    }),
    // The core.
    made("a core for one port", cause("core", "", "busy"), |bed| {
        bed.send_to(VM, 64, 1, 1.2);
        Ok(())
    }),
    made("a core that one buyer fills", cause("core", "", ""), |bed| {
        bed.send_to(VM, 512, 1, 1.2);
        neighbours(bed, 64, 1, [0.05, 0.0, 0.0]);
        bed.cycles("vm", CyclesMinmax, 0.3);
        Ok(())
    }),
    made("another program on the core", cause("core", "", "ran other programs"), |bed| {
        bed.send_to(VM, 64, 1, 0.8);
        bed.disturb();
        Ok(())
    }),
    // Nothing on the host.
    made("a VM that sends little", cause("nothing", "", "no backlog"), |bed| {
        bed.frames(VM, 64, 1, 20_000.0);
        Ok(())
    }),
    made("a buyer that sends little", cause("nothing", "", "nothing on this host"), |bed| {
        bed.frames(VM, 512, 1, 20_000.0);
        bed.sell("vm", CyclesStrict, (0.2, 512), 1.0)
    }),
    made("a VM below its police", cause("nothing", "", "no backlog"), |bed| {
        bed.frames(VM, 512, 1, 20_000.0);
        bed.police("vm", (bits(200), frames(60_000)), POLICE, true)
    }),
    made("little in the first class of a full core", cause("nothing", "", ""), |bed| {
        bed.frames(VM, 64, 1, 20_000.0);
        neighbours(bed, 64, 1, [0.6, 0.6, 0.0]);
        bed.cycles("vm", CyclesMinmax, 0.2);
        bed.class("vm", 1)
    }),
    made("a wrong source address", cause("nothing", "", "spoofed-mac"), |bed| {
        bed.frames(VM, 64, 1, 100_000.0);
        bed.bind_elsewhere("vm");
        Ok(())
    }),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_limit_but_a_missing_driver_is_made() {
        let limits: BTreeSet<&str> = MADE.iter().map(|made| made.cause.limit).collect();
        let all =
            ["core", "destination", "entitlement", "link", "neighbours", "nothing", "own-rate"];
        assert_eq!(limits, BTreeSet::from(all));
        let names: BTreeSet<&str> = MADE.iter().map(|made| made.name).collect();
        assert_eq!(names.len(), MADE.len(), "names are unique");
        assert!(MADE.len() >= 40, "{}", MADE.len());
    }
}
