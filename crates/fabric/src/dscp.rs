//! Assigns a code point (DSCP) to each tenant that has its own queues. Tenants that use a common
//! link get different code points.
//!
//! # Problem
//!
//! The code point (DSCP) is a six-bit value in a packet that selects the packet's queue. A fabric
//! has more tenants than code points.
//!
//! # Source
//!
//! A tenant's traffic stays in one tree of links. By QShare §V-D, two tenants may have the same
//! code point if their trees share no link. Assigning code points is therefore a graph colouring
//! problem. This module uses the DSATUR colouring algorithm (Brélaz, CACM 1979).
//!
//! # Approach
//!
//! Code point 0 belongs to the shared queue. Two tenants are *neighbours* if they need different
//! code points. Tenants get their code points in two steps:
//!
//! 1. A tenant keeps its code point if possible, because every host must apply a change. If several
//!    tenants with a common link have the same code point, only the first tenant in the list keeps
//!    the code point.
//! 2. Code points are assigned to the tenants without a code point, one tenant after another. The
//!    next tenant is the tenant whose neighbours use the most code points. If the neighbours of
//!    several tenants use equally many code points, the tenant with the most links is next, then
//!    the first of these tenants in the list. The tenant gets the first code point of the palette
//!    that no neighbour uses. If the neighbours use all code points, the tenant shares queue 0.
//!
//! Some switches give a tenant the same queue number on all ports. On a switch with one queue
//! number per tenant, a code point selects the same queue number on all ports. Two tenants with
//! different queue numbers on a switch with one queue number per tenant are neighbours, even
//! without a common link.
//!
//! # Cost
//!
//! To assign a code point to a tenant, the time is proportional to the tenant's links times the
//! tenants per link. The colouring takes 8 bytes of memory per link and per queue number of a
//! switch.

use std::collections::BinaryHeap;

use thiserror::Error;

use crate::topology::{LinkId, NodeId};

/// Code point of the shared queue, which all tenants without queues of their own use.
pub const SHARED: u8 = 0;
/// Largest code point, because a code point has six bits.
pub const HIGHEST: u8 = 63;

/// Palette: the code points that tenants may get, in order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Palette(Vec<u8>);

/// Reason why a list of code points is not a valid palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PaletteError {
    /// A code point of the palette has more than six bits.
    #[error("code point {0} has more than six bits; write 1 to {HIGHEST}")]
    TooHigh(u8),
    /// The palette contains code point 0, which belongs to the shared queue.
    #[error("code point 0 selects the shared queue; write 1 to {HIGHEST}")]
    Shared,
    /// The palette contains a code point twice.
    #[error("code point {0} is listed twice; write it once")]
    Twice(u8),
    /// The palette is empty, for example because the fabric reserves all code points.
    #[error("all code points are reserved; reserve fewer")]
    Empty,
}

impl Palette {
    /// Creates a palette of the given code points, in order of preference.
    ///
    /// # Errors
    /// Returns a [`PaletteError`] with the first invalid code point.
    pub fn new(values: Vec<u8>) -> Result<Self, PaletteError> {
        let mut seen = 0_u64;
        for value in &values {
            match *value {
                SHARED => return Err(PaletteError::Shared),
                high if high > HIGHEST => return Err(PaletteError::TooHigh(high)),
                twice if seen >> twice & 1 == 1 => return Err(PaletteError::Twice(twice)),
                fine => seen |= 1 << fine,
            }
        }
        if values.is_empty() { Err(PaletteError::Empty) } else { Ok(Self(values)) }
    }

    /// Creates a palette of all code points except 0 and the code points that the fabric reserves
    /// for other purposes.
    ///
    /// # Errors
    /// Returns an error if a reserved code point has more than six bits, or if all code points are
    /// reserved.
    pub fn without(reserved: &[u8]) -> Result<Self, PaletteError> {
        if let Some(high) = reserved.iter().find(|value| **value > HIGHEST) {
            return Err(PaletteError::TooHigh(*high));
        }
        Self::new((1..=HIGHEST).filter(|value| !reserved.contains(value)).collect())
    }

    /// Returns the code points of the palette in order of preference.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.0
    }

    /// Index of a code point in the palette. `None` if the palette does not contain the code point.
    fn place(&self, value: u8) -> Option<u32> {
        self.0.iter().position(|v| *v == value).and_then(|at| u32::try_from(at).ok())
    }
}

/// A tenant that has its own queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User<'a> {
    /// Present code point of the tenant. `None` if the tenant has no code point (DSCP).
    pub has: Option<u8>,
    /// Links of the tree in which the tenant's traffic stays.
    pub links: &'a [LinkId],
    /// List of switches, each with the tenant's queue number on all ports of the switch. Empty if a
    /// tenant's queue number may differ between ports of a switch.
    pub queues: &'a [(NodeId, u8)],
}

/// Assigns a code point to each user. The returned list has `None` for each user for which no code
/// point is free. `links` is the number of links of the fabric. Users with a common link get
/// different code points. The new code point of a user has no other queue number on any of the
/// user's switches. A user keeps its code point if no earlier user on the user's links has the same
/// code point.
#[must_use]
pub fn colour(palette: &Palette, links: usize, users: &[User<'_>]) -> Vec<Option<u8>> {
    let mut colouring = Colouring::new(palette, links, users);
    colouring.keep();
    colouring.rest();
    colouring.values
}

struct Colouring<'a> {
    palette: &'a Palette,
    users: &'a [User<'a>],
    /// For each link, a bitmap of the used code points. In a bitmap, bit i is set if the code point
    /// with index i in the palette is used.
    taken: Vec<u64>,
    /// For each switch, a bitmap of the used code points. The field `in_queue` has a bitmap of used
    /// code points for each queue of a switch.
    on_switch: Vec<u64>,
    in_queue: Vec<u64>,
    /// Number of entries of each switch in `in_queue`.
    queues: usize,
    /// For each link, the users of the link that have no code point yet.
    waiting: Vec<Vec<u32>>,
    values: Vec<Option<u8>>,
}

impl<'a> Colouring<'a> {
    fn new(palette: &'a Palette, links: usize, users: &'a [User<'a>]) -> Self {
        let (taken, waiting) = (vec![0; links], vec![Vec::new(); links]);
        let places = || users.iter().flat_map(|user| user.queues);
        let switches = places().map(|(switch, _)| switch.index() + 1).max().unwrap_or(0);
        let queues = places().map(|(_, queue)| usize::from(*queue) + 1).max().unwrap_or(0);
        let (on_switch, in_queue) = (vec![0; switches], vec![0; switches * queues]);
        let values = vec![None; users.len()];
        Self { palette, users, taken, on_switch, in_queue, queues, waiting, values }
    }

    /// Index of a queue of a switch in `in_queue`.
    fn queue(&self, (switch, queue): (NodeId, u8)) -> usize {
        switch.index() * self.queues + usize::from(queue)
    }

    fn on_links(&self, user: usize) -> u64 {
        self.users[user].links.iter().fold(0, |mask, link| mask | self.taken[link.index()])
    }

    /// Bitmap of the code points that a user cannot get because the user's neighbours use them.
    fn around(&self, user: usize) -> u64 {
        let elsewhere = |place: &(NodeId, u8)| {
            self.on_switch[place.0.index()] & !self.in_queue[self.queue(*place)]
        };
        let queues = self.users[user].queues.iter();
        queues.fold(self.on_links(user), |mask, place| mask | elsewhere(place))
    }

    fn take(&mut self, user: usize, place: u32) {
        self.values[user] = self.palette.0.get(place as usize).copied();
        for link in self.users[user].links {
            self.taken[link.index()] |= 1 << place;
        }
        for at in self.users[user].queues {
            let queue = self.queue(*at);
            self.on_switch[at.0.index()] |= 1 << place;
            self.in_queue[queue] |= 1 << place;
        }
    }

    fn keep(&mut self) {
        for user in 0..self.users.len() {
            let place = self.users[user].has.and_then(|value| self.palette.place(value));
            if let Some(place) = place.filter(|place| self.on_links(user) >> place & 1 == 0) {
                self.take(user, place);
            }
        }
    }

    fn rest(&mut self) {
        let mut next = BinaryHeap::new();
        for user in (0..self.users.len()).filter(|user| self.values[*user].is_none()) {
            let id = crate::topology::number(user);
            next.push(self.rank(id));
            for link in self.users[user].links {
                self.waiting[link.index()].push(id);
            }
        }
        while let Some(rank @ (_, _, core::cmp::Reverse(id))) = next.pop() {
            let user = id as usize;
            if self.values[user].is_some() {
                continue;
            }
            // Ranks only rise. A new value also raises the ranks of users that share a switch but
            // no link. Their old ranks in the heap are corrected here.
            if rank != self.rank(id) {
                next.push(self.rank(id));
                continue;
            }
            let free = (!self.around(user)).trailing_zeros();
            if free as usize >= self.palette.0.len() {
                continue;
            }
            self.take(user, free);
            for link in self.users[user].links {
                let waiting = core::mem::take(&mut self.waiting[link.index()]);
                let still = waiting.into_iter().filter(|w| self.values[*w as usize].is_none());
                let still: Vec<u32> = still.collect();
                next.extend(still.iter().map(|other| self.rank(*other)));
                self.waiting[link.index()] = still;
            }
        }
    }

    fn rank(&self, id: u32) -> (u32, usize, core::cmp::Reverse<u32>) {
        let links = self.users[id as usize].links.len();
        (self.around(id as usize).count_ones(), links, core::cmp::Reverse(id))
    }
}

/// Returns the number of different code points in `values`, not counting `None`.
#[must_use]
pub fn used(values: &[Option<u8>]) -> usize {
    let mask = values.iter().flatten().fold(0_u64, |mask, value| mask | 1 << value);
    mask.count_ones() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(has: Option<u8>, links: &[LinkId]) -> User<'_> {
        User { has, links, queues: &[] }
    }

    const L: [LinkId; 4] = [LinkId(0), LinkId(1), LinkId(2), LinkId(3)];

    #[test]
    fn users_that_meet_differ_and_others_may_share_a_value() {
        let palette = Palette::without(&[1, 2]).unwrap();
        let users = [user(None, &L[0..2]), user(None, &L[1..3]), user(None, &L[2..4])];
        assert_eq!(colour(&palette, 4, &users), [Some(3), Some(4), Some(3)]);
    }

    #[test]
    fn a_value_is_in_one_queue_of_a_switch() {
        let palette = Palette::without(&[]).unwrap();
        let switch = NodeId(7);
        let places = [[(switch, 1)], [(switch, 2)], [(switch, 1)]];
        let at = |n: usize| User { has: None, links: &L[n..=n], queues: &places[n] };
        assert_eq!(colour(&palette, 4, &[at(0), at(1), at(2)]), [Some(1), Some(2), Some(1)]);
    }

    #[test]
    fn legal_values_are_kept_and_illegal_ones_are_not() {
        let palette = Palette::without(&[9]).unwrap();
        let users = [
            user(Some(5), &L[0..1]),
            user(Some(5), &L[0..2]),
            user(Some(9), &L[1..2]),
            user(Some(7), &L[3..4]),
        ];
        let values = colour(&palette, 4, &users);
        assert_eq!((values[0], values[3]), (Some(5), Some(7)));
        assert!(values[1] != Some(5) && values[2] != Some(9) && values[1] != values[2]);
        assert_eq!(used(&values), 4);
    }

    #[test]
    fn a_user_without_a_free_value_gets_none() {
        let palette = Palette::new(vec![10, 11]).unwrap();
        let users = [user(None, &L[0..1]), user(None, &L[0..1]), user(None, &L[0..1])];
        assert_eq!(colour(&palette, 1, &users), [Some(10), Some(11), None]);
    }

    #[test]
    fn a_palette_has_no_shared_no_high_and_no_duplicate_value() {
        assert_eq!(Palette::new(vec![0]), Err(PaletteError::Shared));
        assert_eq!(Palette::new(vec![64]), Err(PaletteError::TooHigh(64)));
        assert_eq!(Palette::new(vec![3, 3]), Err(PaletteError::Twice(3)));
        assert_eq!(Palette::new(vec![]), Err(PaletteError::Empty));
        assert_eq!(Palette::without(&[0, 8]).unwrap().values().len(), 62);
        assert_eq!(Palette::without(&[77]), Err(PaletteError::TooHigh(77)));
    }
}
