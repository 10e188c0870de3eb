//! Code points: tenants with queues of their own need different values if they meet on a link.
//!
//! # Problem
//!
//! The code point is a value of six bits that selects a packet's queue. A fabric has more tenants
//! than values.
//!
//! # Source
//!
//! By QShare §V-D, tenants with trees that share no link may have the same value. Finding the
//! fewest values is a graph colouring. The method is Brélaz, CACM 1979 (DSATUR).
//!
//! # Approach
//!
//! Value 0 belongs to the shared queue. A tenant keeps its value if the value is still legal,
//! because a change means work on every host. If two tenants conflict, the earlier one in the list
//! keeps its value. Of the tenants without a value, the tenant with the most values among its
//! neighbours is next. Ties go to the tenant with the most links, then to the first. The tenant
//! gets the lowest value that no neighbour has. If no value is free, the tenant shares queue 0 and
//! is listed.
//!
//! If a tenant has one queue per switch, a value belongs to one queue of each switch. Tenants in
//! different queues of a switch then have different values even if they share no link. Otherwise
//! the switch would need an additional traffic class.
//!
//! # Cost
//!
//! For each tenant, the time is proportional to its links times the tenants on them. Memory is 8
//! bytes per link.

use std::collections::{BTreeMap, BinaryHeap};

use thiserror::Error;

use crate::topology::{LinkId, NodeId};

/// The value of the shared queue.
pub const SHARED: u8 = 0;
/// The largest value of six bits.
pub const HIGHEST: u8 = 63;

/// Values that tenants may get, in order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Palette(Vec<u8>);

/// Reason for which values cannot form a palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PaletteError {
    /// The value has more than six bits.
    #[error("code point {0} has more than six bits; write 1 to {HIGHEST}")]
    TooHigh(u8),
    /// The value is 0, which belongs to the shared queue.
    #[error("code point 0 is the shared queue's; write 1 to {HIGHEST}")]
    Shared,
    /// The value occurs twice.
    #[error("code point {0} is there twice; write it once")]
    Twice(u8),
    /// The palette has no value, for example because the fabric reserves all code points.
    #[error("no DSCP is free; reserve fewer")]
    Empty,
}

impl Palette {
    /// A palette of exactly these values.
    ///
    /// # Errors
    /// Returns the first value that is invalid, as a [`PaletteError`].
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

    /// All values except 0 and the values that the fabric reserves for other purposes.
    ///
    /// # Errors
    /// A reserved value has more than six bits, or no value remains.
    pub fn without(reserved: &[u8]) -> Result<Self, PaletteError> {
        if let Some(high) = reserved.iter().find(|value| **value > HIGHEST) {
            return Err(PaletteError::TooHigh(*high));
        }
        Self::new((1..=HIGHEST).filter(|value| !reserved.contains(value)).collect())
    }

    /// The values in order of preference.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.0
    }

    /// Index of a value in the palette. `None` if the palette does not have it.
    fn place(&self, value: u8) -> Option<u32> {
        self.0.iter().position(|v| *v == value).and_then(|at| u32::try_from(at).ok())
    }
}

/// A tenant with queues of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User<'a> {
    /// Current value of the tenant, if any.
    pub has: Option<u8>,
    /// The links of the tenant's tree.
    pub links: &'a [LinkId],
    /// The tenant's queue on each switch, if it is the same on all ports of the switch. If each
    /// value is in only one queue of a switch, the switch needs no more traffic classes than
    /// queues.
    pub queues: &'a [(NodeId, u8)],
}

/// Assigns values to users on `links` links. Users with a common link get different values, and so
/// do users with different queues on a common switch. `None` means that no value was free. A user
/// keeps its value if no earlier user on its links has it.
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
    /// For each link, a bitmap of the values used on it, by index in the palette.
    taken: Vec<u64>,
    /// Bitmap of the values in use on each switch, and a bitmap for each queue of a switch.
    on_switch: BTreeMap<NodeId, u64>,
    in_queue: BTreeMap<(NodeId, u8), u64>,
    /// For each link, the users on it without a value.
    waiting: Vec<Vec<u32>>,
    values: Vec<Option<u8>>,
}

impl<'a> Colouring<'a> {
    fn new(palette: &'a Palette, links: usize, users: &'a [User<'a>]) -> Self {
        let (taken, waiting) = (vec![0; links], vec![Vec::new(); links]);
        let (on_switch, in_queue) = (BTreeMap::new(), BTreeMap::new());
        let values = vec![None; users.len()];
        Self { palette, users, taken, on_switch, in_queue, waiting, values }
    }

    fn on_links(&self, user: usize) -> u64 {
        self.users[user].links.iter().fold(0, |mask, link| mask | self.taken[link.index()])
    }

    /// Bitmap of the values that a user cannot get.
    fn around(&self, user: usize) -> u64 {
        let elsewhere = |place: &(NodeId, u8)| {
            let all = self.on_switch.get(&place.0).copied().unwrap_or(0);
            all & !self.in_queue.get(place).copied().unwrap_or(0)
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
            *self.on_switch.entry(at.0).or_default() |= 1 << place;
            *self.in_queue.entry(*at).or_default() |= 1 << place;
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
            // no link. Such a change is noticed here.
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

/// Number of different values in use.
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
