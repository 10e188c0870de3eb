//! The ways of a port's frames: the type of port from which they come, and the types of ports to
//! which they go. A frame to an uplink costs several times as much as a frame to a VM.
//!
//! A contract may say which part of its frames leaves through an uplink. Without this part, the
//! plan assumes the most expensive way that the port's network permits.

use penstock_qos::cost_model::{Action as Work, CostModel, Profile, Work as Part};

use super::Planner;
use crate::config::{Attachment, Port};

/// All frames of a port, in thousandths.
const ALL: u16 = 1_000;

/// The ways to one kind of destination: local ports, or uplinks.
#[derive(Clone, Copy)]
struct Way {
    /// The most expensive type of port; `None` if frames go to a VM's ring.
    to: Option<Work>,
    /// Cycles that this way adds to a frame, by the cost model.
    cost: f64,
    /// Whether the switch cuts large segments on this way.
    finishes: bool,
}

impl Planner<'_> {
    /// Returns the ways of the port's frames, and the part of the frames that leaves through an
    /// uplink, in thousandths. `sizes` has the sizes of the port's frames.
    pub(super) fn ways(&self, port: &Port, sizes: &Profile) -> (Vec<Part>, u16) {
        let others = || self.config.ports.iter().filter(|other| other.name != port.name);
        let uplinks = || others().filter(|other| other.tenant.is_none());
        let local = others().filter(|other| other.tenant.is_some() && other.tenant == port.tenant);
        let (up, local) = (self.dearest(uplinks(), sizes), self.dearest(local, sizes));
        let asked = port.contract.as_ref().and_then(|contract| contract.uplink);
        let out = match asked {
            _ if uplinks().next().is_none() => 0,
            Some(percent) => 10 * u16::from(percent.min(100)),
            None if up.cost >= local.cost => ALL,
            None => 0,
        };
        let own = in_and_out(port).0.map(Part::from);
        let segments = port.contract.as_ref().is_some_and(|contract| contract.segments);
        let to = [(up, out), (local, ALL - out)].into_iter().flat_map(|(way, permille)| {
            // The cost of a cut contains the cost of the checksum of each frame.
            let finished = (segments && way.finishes).then_some(Work::Segmentation);
            let all = way.to.into_iter().chain(finished).filter(move |_| permille > 0);
            all.map(move |action| Part { action, permille })
        });
        // A trunk port's frames lose their tags on the way to an access port.
        let tagged = port.trunk.is_some() && out < ALL;
        let pop = tagged.then_some(Part { action: Work::VlanPop, permille: ALL - out });
        (own.into_iter().chain(to).chain(pop).collect(), out)
    }

    /// Returns the most expensive way to one of `ports`.
    fn dearest<'a>(&self, ports: impl Iterator<Item = &'a Port>, sizes: &Profile) -> Way {
        let ways = ports.map(|port| {
            let to = in_and_out(port).1;
            let cost = self.model.zip(to).map_or(0.0, |(model, to)| cost(model, to, sizes));
            Way { to, cost, finishes: matches!(port.attachment(), Some(Attachment::Xdp(_))) }
        });
        let none = Way { to: None, cost: 0.0, finishes: false };
        // Of ways with equal costs, a way that the model does not know must stay visible.
        ways.fold(none, |dear, way| {
            if way.cost > dear.cost || way.cost >= dear.cost && dear.to.is_none() {
                way
            } else {
                dear
            }
        })
    }
}

/// Returns the cycles that an action adds to each frame.
fn cost(model: &CostModel, action: Work, sizes: &Profile) -> f64 {
    let bare = Profile { actions: Vec::new(), ..sizes.clone() };
    let with = Profile { actions: vec![action.into()], ..sizes.clone() };
    model.single(&with).total() - model.single(&bare).total()
}

/// Returns the actions of taking a frame from the port and of sending a frame to the port. `None`
/// means as for the ring of a VM that polls.
fn in_and_out(port: &Port) -> (Option<Work>, Option<Work>) {
    let (from, to) = match port.attachment() {
        None => return (None, None),
        Some(Attachment::VhostUser(vm)) => {
            return (None, vm.interrupts.then_some(Work::ToInterrupt));
        }
        Some(Attachment::Tap(_)) => (Work::FromTap, Work::ToTap),
        Some(Attachment::Packet(_)) => (Work::FromPacket, Work::ToPacket),
        Some(Attachment::Xdp(_)) => (Work::FromXdp, Work::ToXdp),
    };
    (Some(from), Some(to))
}

#[cfg(test)]
mod tests {
    use super::super::CapacityPlan;
    use super::super::tests::{RED, model, model_toml, plan_of, port};
    use crate::config::parse_model;
    use std::sync::Arc;

    /// A frame to an AF_XDP port costs 300 cycles more than a frame to a VM, a frame to a TAP 80.
    fn with_ways() -> String {
        let mut text = model_toml();
        for (name, cycles) in [
            ("to-xdp", 300),
            ("to-tap", 80),
            ("from-tap", 40),
            ("to-interrupt", 60),
            ("segmentation", 12),
            ("vlan-pop", 3),
        ] {
            text += &format!(
                "\n[[action]]\nname = \"{name}\"\nsource = \"measured\"\nper_byte = 0\n\
                 per_frame = {{ median = {cycles}, min = {cycles}, max = {cycles} }}\n"
            );
        }
        text
    }

    fn planned(more: &str, contract: &str) -> CapacityPlan {
        let model = Arc::new(parse_model(&with_ways(), "").unwrap());
        let contract = format!("contract = {{ rate = \"1Mpps\", size = 64{contract} }}");
        plan_of(&(RED.to_owned() + &port("a", &contract) + more), Some(&model), 1)
    }

    const UPLINK: &str = "[[port]]\nname = \"up\"\nxdp.interface = \"e0\"\n";
    const CONTAINER: &str = "[[port]]\nname = \"c\"\ntap.interface = \"t\"\ntenant = \"red\"\n";

    #[test]
    fn a_contract_is_priced_by_the_most_expensive_way_that_it_may_use() {
        let cost = |more: &str, contract: &str| planned(more, contract).ports[0].cost.unwrap();
        let near = |cost: f64, want: f64| assert!((cost - want).abs() < 1e-6, "{cost}, not {want}");
        near(cost("", ""), 100.0);
        near(cost(UPLINK, ""), 400.0);
        near(cost(UPLINK, ", uplink = 50"), 250.0);
        near(cost(UPLINK, ", uplink = 0"), 100.0);
        near(cost(CONTAINER, ""), 180.0);
        let both = CONTAINER.to_owned() + UPLINK;
        near(cost(&both, ""), 400.0);
        near(cost(&both, ", uplink = 25"), 100.0 + 75.0 + 60.0);
        let container = CONTAINER.to_owned() + "contract = { rate = \"1Mpps\", size = 64 }\n";
        near(planned(&container, "").ports[1].cost.unwrap(), 140.0);
    }

    #[test]
    fn the_price_has_interrupts_segments_and_tags() {
        let near = |plan: &CapacityPlan, want: f64| {
            let cost = plan.ports[0].cost.unwrap();
            assert!((cost - want).abs() < 1e-6, "{cost}, not {want}");
        };
        let linux = "[[port]]\nname = \"l\"\ntenant = \"red\"\n\
                     vhost-user = { socket = \"/run/l.sock\", interrupts = true }\n";
        near(&planned(linux, ""), 160.0);
        let both = linux.to_owned() + UPLINK;
        near(&planned(&both, ", uplink = 50"), 100.0 + 150.0 + 30.0);
        near(&planned(UPLINK, ", segments = true"), 400.0 + 12.0);
        near(&planned(UPLINK, ", segments = true, uplink = 50"), 250.0 + 6.0);
        near(&planned(linux, ", segments = true"), 160.0);
        let tenant = RED.replace("name = \"red\"\n", "name = \"red\"\nvlans = [100]\n");
        assert_ne!(tenant, RED);
        let sold = "trunk = [100]\ncontract = { rate = \"1Mpps\", size = 64 }";
        let text = tenant + &port("a", sold) + linux + "vlan = 100\n";
        let model = Arc::new(parse_model(&with_ways(), "").unwrap());
        near(&plan_of(&text, Some(&model), 1), 163.0);
    }

    #[test]
    fn a_way_that_was_never_measured_is_refused() {
        let sold = "contract = { rate = \"1Mpps\", size = 64 }";
        let text = RED.to_owned() + &port("a", sold) + UPLINK;
        let plan = plan_of(&text, Some(&model()), 1);
        assert!(plan.refusals.is_empty(), "a host that starts with its old model starts");
        let plan = plan.strict();
        let [refusal] = plan.refusals.as_slice() else { panic!("{:?}", plan.refusals) };
        assert_eq!(
            refusal.to_string(),
            "port \"a\": the cost model has no cost for \"to-xdp\"; run penstock calibrate again, \
             or write `cycles`"
        );
        let bought = text.replace(sold, "cycles = \"100M\"");
        assert!(plan_of(&bought, Some(&model()), 1).strict().refusals.is_empty());
    }
}
