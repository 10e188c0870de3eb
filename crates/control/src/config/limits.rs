//! Limits of a configuration.

pub const PORTS_MAX: usize = 1_024;
pub const TENANTS_MAX: usize = 1_024;
/// Limit on networks, which are pairs of tenant and VLAN.
pub const DOMAINS_MAX: usize = 4_096;
pub const RULES_MAX: usize = 16_384;
pub const FDB_MAX: usize = 16_384;
/// Limit on pairs of value and mask that the port ranges of one rule become.
pub const RULE_MASKS_MAX: usize = 64;
/// Limit on MAC addresses, and on IP addresses, that are bound to a port.
pub const BINDINGS_MAX: usize = 64;
