//! Explains why a request cannot be placed, and which requests would fit.
//!
//! The check of a refused request starts with slots only, and adds the affinity, the bounds on
//! fault domains and the bandwidth, in this order. The first constraint that makes the request
//! unplaceable is the reason of the refusal.
//!
//! Requests that would fit are found by bisection. A search for a placement has verified each
//! proposed request.

use core::fmt;

use penstock_units::BitsPerSecond;

use super::exact::Ask;
use super::request::{Request, RequestError};
use super::{Checked, Datacenter, mixed};
use crate::hose::{Hose, Need, VmClass};
use crate::topology::{LinkId, NodeId, Topology};

/// Result for a request that cannot be placed: the reason, and similar requests that would fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The constraint that excludes the request.
    pub reason: Reason,
    /// Variants of the refused request that would fit now.
    pub fits: Vec<Offer>,
}

/// The constraint that prevents the placement of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The request is invalid in the datacenter.
    Request(RequestError),
    /// Servers in service have too few free slots.
    Slots {
        /// Maximum number of VMs that fit into one tree if only slots count.
        fit: u32,
        /// Number of VMs that the request wants to place.
        wanted: u32,
    },
    /// The servers that the affinity permits have too few free slots.
    Affinity {
        /// Maximum number of VMs that fit on the permitted servers of one tree.
        fit: u32,
        /// Number of VMs that the request wants to place.
        wanted: u32,
    },
    /// The bounds on VMs per fault domain permit too few VMs.
    Spread {
        /// Maximum number of VMs that fit into one tree under the bounds on VMs per fault domain.
        fit: u32,
        /// Number of VMs that the request wants to place.
        wanted: u32,
    },
    /// A link has too little bandwidth. If several links have too little bandwidth, the link that
    /// excludes the most VMs is reported.
    Link {
        /// The link with too little bandwidth.
        link: LinkId,
        /// Name of the node at the link's lower end.
        child: String,
        /// Name of the node at the link's upper end.
        parent: String,
        /// Reserved bandwidth of the link, in the direction with the larger reservation.
        reserved: BitsPerSecond,
        /// Largest permitted sum of the reservations on the link, in each direction.
        limit: BitsPerSecond,
        /// Number of VMs for which nodes below the link have slots.
        slots: u32,
        /// Number of VMs for which the link has free bandwidth.
        room: u32,
    },
}

/// Variant of a refused request that would fit now. A variant differs from the request in the
/// number of VMs or in the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offer {
    /// The request would fit if it had the given number of VMs.
    Vms(u32),
    /// The request would fit if each VM had the given guaranteed rate.
    Rate(BitsPerSecond),
    /// The request would fit if all rates were multiplied by the given number of thousandths.
    RatesPermille(u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        for (at, offer) in self.fits.iter().enumerate() {
            let before = if at == 0 { "; the tenant fits with" } else { " or with" };
            match offer {
                Offer::Vms(vms) => write!(f, "{before} {vms} VMs")?,
                Offer::Rate(rate) => write!(f, "{before} {rate}bit/s a VM")?,
                Offer::RatesPermille(rates) => {
                    write!(f, "{before} {}.{} % of all rates", rates / 10, rates % 10)?;
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
                write!(
                    f,
                    "the tenant needs {wanted} slots, but one tree has at most {fit} free slots"
                )
            }
            Self::Affinity { fit, wanted } => {
                write!(
                    f,
                    "the tenant needs {wanted} slots, but the affinity permits at most {fit} slots \
                     in one tree"
                )
            }
            Self::Spread { fit, wanted } => {
                write!(
                    f,
                    "the tenant needs {wanted} slots, but the bounds on fault domains permit only \
                     {fit} slots"
                )
            }
            Self::Link { child, parent, reserved, limit, slots, room, .. } => write!(
                f,
                "link {child} - {parent}: {reserved} of {limit}bit/s reserved; {slots} free \
                 slots below the link, and free bandwidth for {room} VMs"
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

    /// Returns the maximum number of VMs that fit in any tree, and the root of the first tree with
    /// the maximum.
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

    /// Reports the link below `root`, or the uplink of `root`, that excludes the most VMs. If
    /// several links exclude equally many VMs, the link with the lowest number is reported.
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
            // `root` is a server without links and has too few slots.
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

    /// Finds variants of the request that fit: with the most possible VMs, and with the highest
    /// possible rates.
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

/// Returns a hose in which the function `rate` has converted each guaranteed rate, or `None` if the
/// new hose is invalid.
fn scaled(hose: &Hose, rate: impl Fn(u64) -> u64) -> Option<Hose> {
    let class = |class: &VmClass| VmClass {
        vms: class.vms,
        send: BitsPerSecond(rate(class.send.0)),
        recv: BitsPerSecond(rate(class.recv.0)),
    };
    Hose::new(hose.classes().iter().map(class).collect()).ok()
}

/// Finds the largest number from 1 to `most` for which `fits` returns true, by bisection. Returns
/// `None` if `most` is 0 or `fits(1)` is false.
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
