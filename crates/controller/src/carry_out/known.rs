//! Remembers the state of a switch while a plan is executed, so that the controller reads a switch
//! once and not before each message.
//!
//! # Problem
//!
//! A plan has several messages for a switch. To compute the changes of a message, the controller
//! needs the state of the switch. Some switches take a second for a complete read.
//!
//! # Approach
//!
//! The controller reads all switches of a plan while hosts carry out the plan's first message,
//! which no switch gets. A switch that does not answer is therefore found before any queue has
//! changed. After an acknowledged message, the switch has the state that the message requested.
//! Before hosts mark packets for new queues, the controller reads the switches once more, because a
//! switch may acknowledge a message that it has not executed. After an error, the state of the
//! switch is uncertain, so the controller forgets it and reads the switch before the next message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use penstock_fabric::queue_binding::{Mode, Plan, Port, Step};
use penstock_fabric::topology::NodeId;

use super::answer::{Said, within};
use super::tasks::Tasks;
use super::{Crew, Trouble};
use crate::Stamp;
use crate::fabric_state::Fabric;
use crate::southbound::{Capabilities, SwitchDriver, SwitchState, diff, possible, usable_queues};

/// State of a switch, and what the switch can do.
#[derive(Clone, Debug)]
pub(super) struct KnownSwitch {
    can: Capabilities,
    state: SwitchState,
}

impl KnownSwitch {
    /// Returns the number of queues that plans may use.
    pub(super) fn queues(&self) -> u8 {
        usable_queues(&self.can)
    }

    /// Returns the ports that the driver leaves out, with the reason.
    pub(super) fn left_out(&self) -> &BTreeMap<String, String> {
        &self.state.left_out
    }

    async fn read(driver: &dyn SwitchDriver) -> Result<Self, Said> {
        let (can, state) = driver.look().await?;
        Ok(Self { can, state })
    }
}

impl Crew {
    /// Begins to read the switches that get messages of a plan.
    pub(super) fn read_ahead(&self, fabric: &Fabric, plan: &Plan) -> Tasks<KnownSwitch> {
        let topology = fabric.topology();
        let fixed = fabric.binding().settings().mode == Mode::StaticMap;
        let sender = |port: &Port| {
            if port.up { topology.child(port.link) } else { topology.parent(port.link) }
        };
        let told = |step: &Step| match step {
            Step::Weigh { port, .. } => Some(sender(port)),
            // A static map already contains all code points.
            Step::Unmap { port, .. } | Step::Map { port, .. } if !fixed => Some(sender(port)),
            _ => None,
        };
        let nodes: BTreeSet<NodeId> = plan.steps.iter().filter_map(told).collect();
        let (mut tasks, limit) = (Tasks::default(), self.limit);
        for node in nodes.into_iter().filter(|node| self.reachable(fabric, *node)) {
            let Some(switch) = self.switches.get(&node) else { continue };
            let driver = Arc::clone(&switch.driver);
            tasks.spawn(node, async move {
                within(limit, driver.name(), KnownSwitch::read(&*driver), || None).await
            });
        }
        tasks
    }

    /// Waits for the reads of switches. Returns the switches that could not be read.
    pub(super) async fn end_reading(&mut self, reads: Tasks<KnownSwitch>) -> Vec<Trouble> {
        let (done, trouble) = reads.all().await;
        self.note_silent(&trouble);
        self.queues.extend(done.iter().map(|(node, known)| (*node, known.queues())));
        self.known.extend(done);
        trouble
    }
}

/// Brings a switch to the state `wanted`. The argument `known` is the present state of the switch,
/// and the function reads the switch if it is `None`. Returns the new state.
pub(super) async fn bring_to(
    driver: &dyn SwitchDriver,
    known: Option<KnownSwitch>,
    mut wanted: SwitchState,
    stamp: Stamp,
) -> Result<KnownSwitch, Said> {
    let mut known = match known {
        Some(known) => known,
        None => KnownSwitch::read(driver).await?,
    };
    wanted.ports.retain(|port, _| !known.state.left_out.contains_key(port));
    let wanted = possible(driver.name(), &known.can, wanted)?;
    driver.apply(stamp, &diff(&known.state, &wanted)).await?;
    known.state.ports.extend(wanted.ports);
    Ok(known)
}
