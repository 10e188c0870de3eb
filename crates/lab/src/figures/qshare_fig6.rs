//! QShare, Fig. 6: use of spare capacity in a fully reserved datacenter.
//!
//! # Problem
//!
//! Tenants do not always use their reserved capacity. A tenant with a dedicated queue may use the
//! unused capacity of other tenants.
//!
//! # Source
//!
//! The source is QShare §VII-C2, Fig. 6, with an over-subscription of 16:1. Panel (a) shows the
//! throughput of tenants divided by their guarantee (the gain). The x axis of panel (a) is the
//! share of tenants with low demand (r_in). In the paper, the gain is always more than 3. Panel (b)
//! shows the distribution of the use of links if half of the tenants have low demand (r_in = 0.5).
//! In the paper, the median use of a link is more than 60 %, and 25 % with static reservation.
//!
//! # Approach
//!
//! [`super::qshare_datacenter`] defines the tenants. Tenants on a single server use no links and do
//! not count. A random share r_in of the tenants that use links has low demand. A tenant with low
//! demand uses a random share of its guarantee, uniform from 0 to 1. The paper does not print the
//! distribution of low demand. Tenants without low demand are active: they use all capacity that
//! they can get. The score of an active tenant is its payment. The score of a tenant with low
//! demand is its payment, multiplied by the used share of its guarantee.
//! [`penstock_fabric::queue_binding`] assigns queues for three intervals.
//!
//! [`penstock_fabric::gain::max_min`] computes the tenants' rates with weighted queues. A tenant in
//! the shared queue gets its guarantee. Tenants with a dedicated queue share the remaining capacity
//! in proportion to their guarantees.
//!
//! Panel (a) shows the mean gain of the active tenants, which are tenants without low demand. The
//! paper defines the gain of a tenant differently, as the lowest gain of the tenant's links. With
//! the paper's definition of gain, a tenant does not use the spare capacity of its links above its
//! gain. `gain_printed` is the gain by the paper's definition.
//!
//! The figure compares two simulated values with the paper's values:
//!
//! * `gain_min` is the lowest mean gain over all shares r_in of tenants with low demand from 0 to
//!   0.9, and must be at least 3.
//! * `median_link_utilisation_pct` is the median use of all links if half of the tenants have low
//!   demand, and must be at least 60 percent. The figure also shows the median use of links with
//!   static reservation of bandwidth.
//!
//! # Departures
//!
//! The use of links depends on the maximum number of a tenant's VMs on one server
//! ([`super::qshare_datacenter`]). The paper does not print a bound on a tenant's VMs per server.
//!
//! * Without a bound, most links are unused. Without a bound, the gains are 8 and more, and the
//!   median use of links is below a sixth.
//! * With at most 17 VMs of a tenant per server, 96 % of the capacity of server links is reserved.
//!   With at most 17 VMs of a tenant per server, no gain can exceed 1.04 if all tenants want more
//!   than their guarantee. With at most 17 VMs of a tenant per server, the median use of links is
//!   80 % and more.
//! * With at most 60 VMs of a tenant per server, the median use of links with static reservation is
//!   30 to 44 % (the paper prints some 25 %). With at most 60 VMs of a tenant per server, QShare's
//!   gain and use of links reach the printed numbers. If fewer than 55 VMs of a tenant may be on
//!   one server, QShare's gain and use of links do not reach the printed numbers.
//!
//! The claims use the bound of 60 VMs of a tenant per server, as the claims of Table I do. The
//! bound of 60 VMs per server is calibrated, because it was fitted to the outcome of this figure.
//! Results with at most 17 VMs of a tenant per server (`*_cap17`), or with any number
//! (`*_nobound`), have no required range.

use penstock_fabric::gain::{self, Flow};
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Settings};
use penstock_fabric::score::payment;
use penstock_fabric::tenant_placement::{Datacenter, Tenant, TenantSlot};
use penstock_fabric::topology::Topology;
use penstock_sim::Rng;

use super::qshare_datacenter::{
    AT_MOST, BOUND, OTHER_BOUNDS, SETTINGS, networked, percent, reserved_from,
};
use crate::evidence::stats::{count, distribution, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-fig6",
    source: "QShare §VII-C2, Fig. 6",
    about: "throughput of tenants beyond their guarantees, and use of links",
    sim: Some(sim),
    live: None,
    picture,
};

const INTERVALS: usize = 3;
/// Values of r_in, the share of tenants with low demand, in tenths.
const INACTIVE_TENTHS: [u32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
const HALF: u32 = 5;

/// A tenant whose traffic uses links.
struct Player<'a> {
    slot: TenantSlot,
    payment: u64,
    flow: Flow<'a>,
}

impl<'a> Player<'a> {
    fn new((slot, tenant): (TenantSlot, &'a Tenant)) -> Self {
        let links = &tenant.placement.entry.links;
        let payment = payment(&tenant.request.hose);
        Self { slot, payment, flow: Flow { links, part: None, has_queue: false } }
    }

    fn score(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of it"
        )]
        let part = |part: f64| (self.payment as f64 * part) as u64;
        self.flow.part.map_or(self.payment, part)
    }
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.calibrated([
        "at most 60 VMs of a tenant on a server",
        "the printed gain and use of links: both are reached from 55 on",
        "17 and no bound, claims with _cap17 and _nobound",
    ]);
    let mut least = Vec::new();
    for (at, (cap, prefix)) in bounds().into_iter().enumerate() {
        ctx.progress(count(at) / 3.0, format_args!("bound {cap:?}"));
        let (datacenter, mut rng) = reserved_from(SETTINGS[2], cap, ctx.seed)?;
        let reserved = (1..=3).map(|layer| datacenter.ledger().reserved_share(layer) * 100.0);
        let reserved = (1_u32..).map(f64::from).zip(reserved);
        outcome.series(&format!("{prefix}reserved"), "% of the layer's links", reserved);
        let gains = by_ratio(&mut outcome, &datacenter, &prefix, &mut rng)?;
        least.push(gains.iter().copied().fold(f64::INFINITY, f64::min));
    }
    gain_claim(&mut outcome, least[0]);
    link_claims(&mut outcome);
    for ((_, name, what), least) in OTHER_BOUNDS.into_iter().zip(least.into_iter().skip(1)) {
        other_bound(&mut outcome, name, what, least);
    }
    Ok(outcome)
}

/// Returns the bounds on a tenant's VMs per server (`None`: no bound), with the prefix of each
/// bound's series. The claims use the first bound.
fn bounds() -> Vec<(Option<u32>, String)> {
    let others = OTHER_BOUNDS.into_iter().map(|(cap, name, _)| (cap, format!("{name}_")));
    std::iter::once((Some(BOUND), String::new())).chain(others).collect()
}

/// Returns the mean gain of the active tenants for each share of tenants with low demand
/// ([`INACTIVE_TENTHS`]).
fn by_ratio(
    outcome: &mut Outcome,
    datacenter: &Datacenter,
    prefix: &str,
    rng: &mut Rng,
) -> anyhow::Result<Vec<f64>> {
    let topology = datacenter.topology();
    let mut players: Vec<Player<'_>> = networked(datacenter).into_iter().map(Player::new).collect();
    outcome.note(&format!("{prefix}tenants_with_links"), players.len());
    let (mut printed, mut fair, mut with_queue) = (Vec::new(), Vec::new(), Vec::new());
    for tenths in INACTIVE_TENTHS {
        let x = f64::from(tenths) / 10.0;
        calm(&mut players, x, rng);
        bind(topology, &mut players)?;
        let flows: Vec<Flow<'_>> = players.iter().map(|player| player.flow).collect();
        let by_rule = gain::printed(topology, &flows);
        let by_queues = gain::max_min(topology, &flows);
        printed.push((x, mean(&flows, &by_rule)));
        fair.push((x, mean(&flows, &by_queues)));
        let active: Vec<_> = flows.iter().filter(|flow| flow.part.is_none()).collect();
        with_queue.push((x, percent(&active, |flow| flow.has_queue)));
        if tenths == HALF {
            use_of_links(outcome, topology, &flows, [&by_rule, &by_queues], prefix);
        }
    }
    let gains = fair.iter().map(|(_, gain)| *gain).collect();
    outcome.series(&format!("{prefix}gain_printed"), "times the guarantee", printed);
    outcome.series(&format!("{prefix}gain"), "times the guarantee", fair);
    outcome.series(&format!("{prefix}active_with_queue"), "%", with_queue);
    Ok(gains)
}

/// Gives low demand to a random share `part` (0 to 1) of the tenants.
fn calm(players: &mut [Player<'_>], part: f64, rng: &mut Rng) {
    let mut order: Vec<usize> = (0..players.len()).collect();
    for at in (1..order.len()).rev() {
        let with = usize::try_from(rng.below(at as u64 + 1)).unwrap_or(at);
        order.swap(at, with);
    }
    let calm = part * count(players.len());
    for (rank, at) in order.into_iter().enumerate() {
        players[at].flow.part = (count(rank) < calm).then(|| rng.unit());
    }
}

fn bind(topology: &Topology, players: &mut [Player<'_>]) -> anyhow::Result<()> {
    let mut binding = Binding::new(Settings::new(Mode::PerEgressMap), topology.links())?;
    for _ in 0..INTERVALS {
        let tenants: Vec<Candidate<'_>> = players
            .iter()
            .map(|p| Candidate {
                tenant: p.slot,
                score: p.score(),
                links: p.flow.links,
                movable: true,
                shares: false,
            })
            .collect();
        binding.pass(topology, &tenants);
    }
    players.iter_mut().for_each(|p| p.flow.has_queue = binding.of(p.slot).is_some());
    Ok(())
}

/// Returns the mean gain of the active tenants.
fn mean(flows: &[Flow<'_>], gains: &[f64]) -> f64 {
    let active = flows.iter().zip(gains).filter(|(flow, _)| flow.part.is_none());
    let gains: Vec<f64> = active.map(|(_, gain)| *gain).collect();
    gains.iter().sum::<f64>() / count(gains.len()).max(1.0)
}

fn use_of_links(
    outcome: &mut Outcome,
    topology: &Topology,
    flows: &[Flow<'_>],
    [by_rule, by_queues]: [&[f64]; 2],
    prefix: &str,
) {
    let fixed = gain::fixed(flows);
    for (name, gains) in [("qshare", by_queues), ("printed", by_rule), ("static", &fixed)] {
        let used = gain::link_use(topology, flows, gains);
        let used: Vec<f64> = used.iter().map(|used| used * 100.0).collect();
        let full = percent(&used, |used| *used > 99.999);
        outcome.note(&format!("{prefix}links_full_pct_{name}"), full);
        outcome.note(&format!("{prefix}median_pct_{name}"), percentile(&used, 50.0));
        let used = distribution(&used);
        outcome.series(&format!("{prefix}utilisation_{name}"), "% of the links", used);
    }
}

fn gain_claim(outcome: &mut Outcome, least: f64) {
    let what = format!("lowest mean gain of all shares of low demand, {AT_MOST}");
    let claim = Claim::new("gain_min", what, "times").published(3.0).at_least(3.0);
    outcome.claim(claim.measured(least));
}

/// Adds claims about the use of links, which [`use_of_links`] has stored in the record's `platform`
/// table.
fn link_claims(outcome: &mut Outcome) {
    let noted = |name: &str| outcome.platform.get(name).and_then(serde_json::Value::as_f64);
    let value = |name: &str| noted(name).unwrap_or(f64::NAN);
    let (ours, reserved) = (value("median_pct_qshare"), value("median_pct_static"));
    let full = value("links_full_pct_qshare");
    let what = "median use of links if half of the tenants have low demand";
    let what = format!("{what}, {AT_MOST}");
    let claim = Claim::new("median_link_utilisation_pct", what, "%").published(60.0).at_least(60.0);
    outcome.claim(claim.measured(ours));
    let what = format!("median use of links with static reservation, {AT_MOST}");
    let claim = Claim::new("median_link_utilisation_static_pct", what, "%").published(25.0);
    outcome.claim(claim.measured(reserved));
    let what = format!("fully used links if half of the tenants have low demand, {AT_MOST}");
    let claim = Claim::new("links_full_pct", what, "%").published(14.0);
    outcome.claim(claim.measured(full));
}

/// Adds claims that need not hold, for another maximum number of a tenant's VMs per server. `name`
/// is the name of the bound in claims, and `bound` is its text.
fn other_bound(outcome: &mut Outcome, name: &str, bound: &str, least: f64) {
    let noted = |what: &str| outcome.platform.get(&format!("{name}_median_pct_{what}"))?.as_f64();
    let [ours, reserved] = ["qshare", "static"].map(|what| noted(what).unwrap_or(f64::NAN));
    for (id, what, unit, published, value) in [
        ("gain_min", "lowest mean gain", "times", 3.0, least),
        ("median_link_utilisation_pct", "median use of links", "%", 60.0, ours),
        (
            "median_link_utilisation_static_pct",
            "median use of links with static reservation",
            "%",
            25.0,
            reserved,
        ),
    ] {
        let what = format!("another reading of the paper: {bound}: {what}");
        let claim = Claim::new(&format!("{id}_{name}"), what, unit);
        outcome.claim(claim.published(published).measured(value));
    }
}

fn picture(record: &Record) -> Picture {
    let of = |name: &str| record.series(name).map(points).into_iter().flatten().collect::<Vec<_>>();
    let gain = Panel::new(
        "(a) gain",
        Axis::linear("share of tenants with low demand").from(0.0).to(1.0),
        Axis::log("times the guarantee"),
    )
    .line("at most 60 VMs per server", of("gain"))
    .line("the same, by the paper's definition", of("gain_printed"))
    .line("no bound", of("nobound_gain"))
    .line("at most 17", of("cap17_gain"))
    .published("3", 3.0);
    let used = Panel::new(
        "(b) use of links, half of the tenants with low demand",
        Axis::linear("% of the link").from(0.0).to(100.0),
        Axis::linear("% of the links").from(0.0).to(100.0),
    )
    .line("QShare", of("utilisation_qshare"))
    .line("by the paper's definition", of("utilisation_printed"))
    .line("static reservation", of("utilisation_static"));
    Picture::new("QShare, Fig. 6: a fully reserved datacenter at 16:1").panel(gain).panel(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::holds::assert_holds;

    #[test]
    fn tenants_with_a_queue_gain_and_links_are_used() {
        assert_holds("qshare-fig6", sim, &[2]);
    }

    #[test]
    fn each_claim_says_its_bound() {
        let mut outcome = Outcome::new();
        link_claims(&mut outcome);
        gain_claim(&mut outcome, 3.0);
        let bound = format!("at most {BOUND} VMs");
        assert_eq!(outcome.claims.len(), 4);
        assert!(outcome.claims.iter().all(|claim| claim.statement.contains(&bound)));
    }
}
