//! Why a request has no place, and what would have one.
//!
//! **Rule.** Wishes are dropped one after the other, rates first, until the request fits; what was
//! dropped last is what binds. The offers are found by halving and have been tried.

use core::fmt;

use penstock_units::BitsPerSecond;

use super::exact::Ask;
use super::request::{Request, RequestError};
use super::{Checked, Datacenter, mixed};
use crate::hose::{Hose, Need, VmClass};
use crate::topology::{LinkId, NodeId, Topology};

/// A request that was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// What binds.
    pub reason: Reason,
    /// What would fit instead, now.
    pub fits: Vec<Offer>,
}

/// The constraint that binds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It makes no sense here.
    Request(RequestError),
    /// The slots in service.
    Slots {
        /// VMs that would fit into one tree, were there nothing but slots.
        fit: u32,
        /// VMs.
        wanted: u32,
    },
    /// Where the VMs may be.
    Affinity {
        /// VMs that would fit there.
        fit: u32,
        /// VMs.
        wanted: u32,
    },
    /// How many VMs a fault domain may hold.
    Spread {
        /// VMs that would fit under these bounds.
        fit: u32,
        /// VMs.
        wanted: u32,
    },
    /// A link; of those that keep VMs out, the one that keeps out most.
    Link {
        /// The link.
        link: LinkId,
        /// Its lower end's name.
        child: String,
        /// Its upper end's name.
        parent: String,
        /// What is reserved on it, the larger direction.
        reserved: BitsPerSecond,
        /// What may be.
        limit: BitsPerSecond,
        /// VMs for which there are slots below it.
        slots: u32,
        /// VMs for which it has rate.
        room: u32,
    },
}

/// A request like the one that was refused, but for one thing; it would fit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offer {
    /// With so many VMs.
    Vms(u32),
    /// With this rate for each VM.
    Rate(BitsPerSecond),
    /// With all rates at so many thousandths.
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
    /// Why a request has no place now, and what would have one.
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

    /// Most VMs that any tree holds, and the first tree that holds them.
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

    /// The link below `root` that keeps most VMs out; with none, the root's first link up.
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
            // A server without links whose slots are too few.
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

/// The largest number from 1 to `most` that fits, found by halving; `None` if 1 does not.
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
