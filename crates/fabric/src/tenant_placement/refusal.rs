//! Explains why a request cannot be placed, and which requests would fit.
//!
//! Constraints are dropped one by one, bandwidth first, until the request fits. The constraint that
//! was dropped last is the binding constraint. Offers are found by bisection, and each offer has
//! been tried.

use core::fmt;

use penstock_units::BitsPerSecond;

use super::exact::Ask;
use super::request::{Request, RequestError};
use super::{Checked, Datacenter, mixed};
use crate::hose::{Hose, Need, VmClass};
use crate::topology::{LinkId, NodeId, Topology};

/// Reasons for a refusal, and alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The constraint without which the request would fit.
    pub reason: Reason,
    /// Requests that would fit now.
    pub fits: Vec<Offer>,
}

/// The constraint without which a refused request would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The request is invalid in this datacenter.
    Request(RequestError),
    /// Servers in service have too few free slots.
    Slots {
        /// VMs that fit into one tree if only slots count.
        fit: u32,
        /// VMs that the request has.
        wanted: u32,
    },
    /// Affinity leaves too few servers.
    Affinity {
        /// VMs that fit on the permitted servers.
        fit: u32,
        /// VMs that the request has.
        wanted: u32,
    },
    /// Bounds on VMs per fault domain leave too little room.
    Spread {
        /// VMs that fit under these bounds.
        fit: u32,
        /// VMs that the request has.
        wanted: u32,
    },
    /// A link has too little bandwidth. Of several such links, this is the link that excludes the
    /// most VMs.
    Link {
        /// The binding link.
        link: LinkId,
        /// Name of the link's lower end.
        child: String,
        /// Name of the link's upper end.
        parent: String,
        /// Reservation on the link, in the larger direction.
        reserved: BitsPerSecond,
        /// Largest possible reservation on the link.
        limit: BitsPerSecond,
        /// Number of VMs for which there are slots below the link.
        slots: u32,
        /// Number of VMs for which the link has bandwidth.
        room: u32,
    },
}

/// A variant of the refused request that would fit now. It differs from the request in one respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offer {
    /// The request with this number of VMs.
    Vms(u32),
    /// The request with this rate for each VM.
    Rate(BitsPerSecond),
    /// The request with all rates multiplied by this number of thousandths.
    RatesPermille(u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        for (at, offer) in self.fits.iter().enumerate() {
            let before = if at == 0 { "; it fits with" } else { " or with" };
            match offer {
                Offer::Vms(vms) => write!(f, "{before} {vms} VMs")?,
                Offer::Rate(rate) => write!(f, "{before} {rate}bit/s a VM")?,
                Offer::RatesPermille(rates) => {
                    write!(f, "{before} all rates at {}.{} %", rates / 10, rates % 10)?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Slots { fit, wanted } => {
                write!(f, "{wanted} VMs, and free slots for {fit} in one tree")
            }
            Self::Affinity { fit, wanted } => {
                write!(f, "{wanted} VMs, and slots for {fit} where its affinity lets them be")
            }
            Self::Spread { fit, wanted } => {
                write!(f, "{wanted} VMs, and slots for {fit} under its bounds on fault domains")
            }
            Self::Link { child, parent, reserved, limit, slots, room, .. } => write!(
                f,
                "link {child} - {parent}: {reserved} of {limit}bit/s reserved; slots for {slots} \
                 VMs below it, rate for {room}"
            ),
        }
    }
}

impl core::error::Error for Refusal {}

impl Datacenter {
    /// Explains why a request cannot be placed now, and which requests would fit.
    pub fn explain(&mut self, request: &Request) -> Refusal {
        let checked = match Checked::new(self, request) {
            Ok(checked) => checked,
            Err(error) => return Refusal { reason: Reason::Request(error), fits: Vec::new() },
        };
        let reason = self.reason(request, &checked);
        Refusal { reason, fits: self.offers(request) }
    }

    fn reason(&mut self, request: &Request, checked: &Checked) -> Reason {
        let wanted = request.hose.vms();
        let open = vec![wanted; self.topology().layers()];
        let (caps, allowed) = (checked.caps.as_slice(), checked.allowed.as_deref());
        let ask = |caps, allowed, rate| Ask { vms: wanted, rate, caps, allowed };
        let fit = self.most(&ask(&open, None, 0)).0;
        if fit < wanted {
            return Reason::Slots { fit, wanted };
        }
        let fit = self.most(&ask(&open, allowed, 0)).0;
        if fit < wanted {
            return Reason::Affinity { fit, wanted };
        }
        let fit = self.most(&ask(caps, allowed, 0)).0;
        if fit < wanted {
            return Reason::Spread { fit, wanted };
        }
        let rate = request.hose.uniform().map_or_else(|| mixed::largest(&request.hose), |r| r.0);
        let ask = ask(caps, allowed, rate);
        let (_, root) = self.most(&ask);
        self.tightest(&ask, root)
    }

    /// Maximum number of VMs that any tree can hold, and the root of the first such tree.
    fn most(&mut self, ask: &Ask<'_>) -> (u32, NodeId) {
        let survey = &mut self.search.survey;
        survey.servers(&self.ledger, ask);
        let mut best = (0, NodeId(0));
        for layer in 0..self.ledger.topology().layers() {
            if layer > 0 {
                survey.switches(&self.ledger, ask, layer);
            }
            for root in self.ledger.topology().layer(layer) {
                let vms = survey.most(root);
                best = if vms > best.0 { (vms, root) } else { best };
            }
        }
        best
    }

    /// The link below `root` that excludes the most VMs. If there is no such link, the first uplink
    /// of the root.
    fn tightest(&self, ask: &Ask<'_>, root: NodeId) -> Reason {
        let topology = self.topology();
        let lost = |link: LinkId| {
            let slots = self.search.survey.below(topology.child(link));
            (slots, room(ask, self.ledger.available(link)))
        };
        let below = topology.cone(root).into_iter().flat_map(|node| topology.down(node));
        let all = below.chain(topology.up(root));
        let worst = all.max_by_key(|link| {
            let (slots, room) = lost(*link);
            (slots.saturating_sub(room), core::cmp::Reverse(*link))
        });
        let Some(link) = worst else {
            // This is a server without links that has too few slots.
            return Reason::Slots { fit: self.search.survey.most(root), wanted: ask.vms };
        };
        let (slots, room) = lost(link);
        let name = |topology: &Topology, node| topology.name(node).to_string();
        let child = name(topology, topology.child(link));
        let parent = name(topology, topology.parent(link));
        let reserved = self.ledger.reserved(link).larger();
        let limit = self.ledger.limit(link);
        Reason::Link { link, child, parent, reserved, limit, slots, room }
    }

    /// The nearest requests that fit.
    fn offers(&mut self, request: &Request) -> Vec<Offer> {
        let mut offers = Vec::new();
        let hose = &request.hose;
        let with = |hose: Hose| Request { hose, ..request.clone() };
        if hose.classes().len() == 1 {
            let most = largest(u64::from(hose.vms()) - 1, |vms| {
                let vms = u32::try_from(vms).ok();
                let hose = vms.and_then(|vms| hose.with_vms(0, vms).ok());
                hose.is_some_and(|hose| self.find(&with(hose)).is_some())
            });
            offers.extend(most.and_then(|vms| u32::try_from(vms).ok()).map(Offer::Vms));
        }
        if let Some(rate) = hose.uniform() {
            let rate = largest(rate.0.saturating_sub(1), |rate| {
                let hose = scaled(hose, |_| rate);
                hose.is_some_and(|hose| self.find(&with(hose)).is_some())
            });
            offers.extend(rate.map(|rate| Offer::Rate(BitsPerSecond(rate))));
        } else {
            let part = largest(999, |part| {
                let hose = scaled(hose, |rate| (rate / 1000 * part).max(1));
                hose.is_some_and(|hose| self.find(&with(hose)).is_some())
            });
            offers.extend(part.and_then(|p| u32::try_from(p).ok()).map(Offer::RatesPermille));
        }
        offers
    }
}

fn room(ask: &Ask<'_>, free: Need) -> u32 {
    let room = free.up.0.min(free.down.0).checked_div(ask.rate).unwrap_or(u64::MAX);
    u32::try_from(room).unwrap_or(u32::MAX).min(ask.vms)
}

/// The hose with other rates.
fn scaled(hose: &Hose, rate: impl Fn(u64) -> u64) -> Option<Hose> {
    let class = |class: &VmClass| VmClass {
        vms: class.vms,
        send: BitsPerSecond(rate(class.send.0)),
        recv: BitsPerSecond(rate(class.recv.0)),
    };
    Hose::new(hose.classes().iter().map(class).collect()).ok()
}

/// The largest number from 1 to `most` that fits, found by bisection; `None` if 1 does not fit.
fn largest(most: u64, mut fits: impl FnMut(u64) -> bool) -> Option<u64> {
    if most == 0 || !fits(1) {
        return None;
    }
    let (mut yes, mut no) = (1, most + 1);
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if fits(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    Some(yes)
}
