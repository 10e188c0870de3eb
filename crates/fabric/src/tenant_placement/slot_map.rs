//! Table of values by tenant. The slots of tenants are small numbers, so an access costs as much as
//! an access to an array.

use super::TenantSlot;

/// Table of values by tenant slot, ordered by slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap<T> {
    /// Value of each slot. The last entry has a value.
    values: Vec<Option<T>>,
}

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self { values: Vec::new() }
    }
}

impl<T> SlotMap<T> {
    /// Returns the value of a slot.
    #[must_use]
    pub fn get(&self, slot: TenantSlot) -> Option<&T> {
        self.values.get(slot.index())?.as_ref()
    }

    /// Returns the value of a slot for a change.
    pub fn get_mut(&mut self, slot: TenantSlot) -> Option<&mut T> {
        self.values.get_mut(slot.index())?.as_mut()
    }

    /// Returns true if a slot has a value.
    #[must_use]
    pub fn contains(&self, slot: TenantSlot) -> bool {
        self.get(slot).is_some()
    }

    /// Sets the value of a slot, and returns its former value.
    pub fn insert(&mut self, slot: TenantSlot, value: T) -> Option<T> {
        if slot.index() >= self.values.len() {
            self.values.resize_with(slot.index() + 1, || None);
        }
        self.values[slot.index()].replace(value)
    }

    /// Removes the value of a slot, and returns it.
    pub fn remove(&mut self, slot: TenantSlot) -> Option<T> {
        let value = self.values.get_mut(slot.index())?.take();
        while self.values.last().is_some_and(Option::is_none) {
            self.values.pop();
        }
        value
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// Returns all slots with a value, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (TenantSlot, &T)> {
        let slots = (0_u32..).map(TenantSlot).zip(&self.values);
        slots.filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }
}

impl<T> FromIterator<(TenantSlot, T)> for SlotMap<T> {
    fn from_iter<I: IntoIterator<Item = (TenantSlot, T)>>(pairs: I) -> Self {
        let mut map = Self::default();
        for (slot, value) in pairs {
            map.insert(slot, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_values_that_were_not_removed() {
        let mut map: SlotMap<u8> = [(TenantSlot(3), 7), (TenantSlot(1), 8)].into_iter().collect();
        assert_eq!(map.insert(TenantSlot(1), 9), Some(8));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(TenantSlot(1), &9), (TenantSlot(3), &7)]);
        assert_eq!((map.remove(TenantSlot(3)), map.remove(TenantSlot(3))), (Some(7), None));
        assert_eq!((map.get(TenantSlot(2)), map.contains(TenantSlot(1))), (None, true));
        assert_eq!(map, [(TenantSlot(1), 9)].into_iter().collect(), "equal without the slot 3");
        map.clear();
        assert_eq!(map, SlotMap::default());
    }
}
