//! The control plane of the measured switch. It compiles all policies with each change, as the
//! control plane of a host does, and compares the new snapshot with the one before.

use std::sync::Arc;

use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShareTerms};
use penstock_dataplane::snapshot::{
    Actions, Domain, IngressPolicy, Match, PortPolicy, PortQos, Rule, RuleTable, RuleTables,
    Snapshot, Then,
};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, TscRate, Vid, Weight};

use super::{CHANGED, LAST, PORTS, SENDERS, UPLINK};

/// Lowest rate of the uplink. A change of the link's rate doubles or halves the rate.
const LINK: BitsPerSecond = BitsPerSecond(10_000_000_000);
/// Bytes that may wait for the uplink, for each VM: the default of the configuration.
const QUEUE_BYTES: u64 = 8 << 20;
/// More than the number of addresses that all ports have.
const FDB_LIMIT: u32 = 16_384;
const SUBTABLES: usize = 32;

/// A change of the configuration. Each change is made again and again, back and forth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Both weights of one port: at the division of spare cycles, and at shared outputs.
    Weight,
    /// The rate of the uplink.
    Rate,
    /// The cycles per second that one port purchased, as the learner corrects them.
    Entitlement,
    /// One more port in the network of all ports, or one less. The port has no queue pairs.
    Port,
    /// A rule for the frames of one port.
    Rule,
}

impl Change {
    pub const ALL: [Self; 5] =
        [Self::Weight, Self::Rate, Self::Entitlement, Self::Port, Self::Rule];

    /// Returns the word for the change in claims and series.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Rate => "rate",
            Self::Entitlement => "entitlement",
            Self::Port => "port",
            Self::Rule => "rule",
        }
    }
}

/// Policies of all ports, and the last compiled snapshot.
#[derive(Debug)]
pub(crate) struct Control {
    policies: Vec<Option<PortPolicy>>,
    uplink: Arc<QueueHome>,
    /// Entitlement of the changed port before a change.
    entitlement: CyclesPerSecond,
    generation: u64,
    /// For each kind of change, whether it is made at present.
    made: [bool; Change::ALL.len()],
    snapshot: Arc<Snapshot>,
}

impl Control {
    /// Creates the configuration of a switch on a core of the frequency `core`. All ports purchased
    /// cycles: the senders four fifths of the core together, and the other ports a tenth.
    pub fn new(core: TscRate) -> Self {
        let terms = QueueTerms {
            order: Order::FairShare,
            pacing: Pacing::Link(LINK),
            bound: Bound { bytes: QUEUE_BYTES, wait: Nanos::from_millis(10), excess: Excess::Hold },
            ..QueueTerms::default()
        };
        let uplink = QueueHome::new(terms, usize::from(PORTS), 2);
        let entitlement = |id: u16| {
            let parts = if SENDERS.contains(&id) { 10 } else { 10 * u64::from(PORTS) };
            CyclesPerSecond(core.hz() / parts)
        };
        let policy = |id: u16| {
            let mut policy = policy(id, entitlement(id));
            policy.queue = (id == UPLINK).then(|| Arc::clone(&uplink));
            policy
        };
        let policies = (0..PORTS).map(|id| (id != LAST).then(|| policy(id))).collect();
        let entitlement = entitlement(CHANGED);
        let (made, snapshot) = ([false; Change::ALL.len()], Arc::default());
        let mut control = Self { policies, uplink, entitlement, generation: 0, made, snapshot };
        control.publish();
        control
    }

    /// Returns the last compiled snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot)
    }

    /// Makes or reverts a change. Returns the new snapshot.
    pub fn next(&mut self, change: Change) -> anyhow::Result<Arc<Snapshot>> {
        let made = &mut self.made[change as usize];
        *made = !*made;
        let (made, entitlement) = (*made, self.entitlement);
        let factor = if made { 2 } else { 1 };
        if change == Change::Port {
            self.policies[usize::from(LAST)] = made.then(|| policy(LAST, entitlement));
        }
        if let Some(policy) = &mut self.policies[usize::from(CHANGED)] {
            match change {
                Change::Weight => {
                    policy.qos.weight = Weight::new(factor)?;
                    policy.share = ShareTerms { vm: Weight::new(factor)?, ..policy.share };
                }
                Change::Entitlement => {
                    policy.qos.entitlement = CyclesPerSecond(entitlement.0 * factor);
                }
                Change::Rule => policy.rules = if made { rules()? } else { RuleTables::default() },
                Change::Rate => {
                    self.uplink.set_pacing(Pacing::Link(BitsPerSecond(LINK.0 * factor)));
                }
                Change::Port => {}
            }
        }
        self.publish();
        Ok(self.snapshot())
    }

    fn publish(&mut self) {
        self.generation += 1;
        let compiled = |policy: &Option<PortPolicy>| Some(Arc::new(policy.clone()?.finish()));
        let ports: Vec<_> = self.policies.iter().map(compiled).collect();
        let members = (0_u16..).zip(&ports).filter(|(_, port)| port.is_some()).map(|(id, _)| id);
        let members = members.collect();
        let domain = Domain { tenant: Some(0), vid: 0, members, fdb_limit: FDB_LIMIT };
        let new = Snapshot::new(self.generation, ports, vec![domain], Vec::new(), 300);
        self.snapshot = Arc::new(new).following(&self.snapshot);
    }
}

fn policy(id: u16, entitlement: CyclesPerSecond) -> PortPolicy {
    let mut policy = PortPolicy::access(id, Some(0), Vid::UNTAGGED, 0);
    let ingress = IngressPolicy::CyclesMinmax;
    policy.qos = PortQos { ingress, entitlement, ..PortQos::default() };
    policy
}

/// Returns rules that drop TCP frames, which no VM sends.
fn rules() -> anyhow::Result<RuleTables> {
    let matching = Match { ethertype: Some(0x0800), proto: Some(6), ..Match::default() };
    let rule = Rule { priority: 1, matching, actions: Actions::only(Then::Drop), id: 1 };
    let own = Some(Arc::new(RuleTable::build(&[rule], SUBTABLES)?));
    Ok(RuleTables { own, ..RuleTables::default() })
}
