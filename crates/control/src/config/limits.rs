//! Limits of a configuration.

/// Most `[[port]]` tables.
pub const PORTS_MAX: usize = 1_024;
/// Most `[[tenant]]` tables.
pub const TENANTS_MAX: usize = 1_024;
/// Most networks: (tenant, VLAN) pairs.
pub const DOMAINS_MAX: usize = 4_096;
/// Most `[[rule]]` tables.
pub const RULES_MAX: usize = 16_384;
/// Most `[[fdb]]` tables.
pub const FDB_MAX: usize = 16_384;
/// Most pairs of value and mask that one rule's port ranges may become.
pub const RULE_MASKS_MAX: usize = 64;
/// Most MAC addresses, and most IP addresses, bound to a port.
pub const BINDINGS_MAX: usize = 64;
