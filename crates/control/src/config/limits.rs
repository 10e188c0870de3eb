//! Limits on the numbers of objects in a configuration.

pub const PORTS_MAX: usize = 1_024;
pub const TENANTS_MAX: usize = 1_024;
/// Limit on the number of networks, which are pairs of tenant and VLAN.
pub const DOMAINS_MAX: usize = 4_096;
pub const RULES_MAX: usize = 16_384;
pub const FDB_MAX: usize = 16_384;
/// Limit on the pairs of value and mask to which a rule's port ranges may expand. The classifier
/// matches a range of TCP or UDP ports by several pairs of value and mask.
pub const RULE_MASKS_MAX: usize = 64;
/// Limit on the MAC addresses that are bound to a port, and on its IP addresses.
pub const BINDINGS_MAX: usize = 64;
