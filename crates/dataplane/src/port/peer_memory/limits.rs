//! Limits on the memory of peers that the switch maps, for each port and for all ports of the
//! daemon.
//!
//! # Problem
//! A peer's file may have any size without having pages, and a process has a limited number of
//! addresses. One port that maps 100 TiB leaves no addresses for the other ports.
//!
//! # Approach
//! The switch makes a [`Charge`] before it makes the mapping, and drops the charge after it has
//! removed the mapping. Every mapping is counted exactly once, regardless of how the session ends.
//!
//! # Defaults
//! The memory of all guests may exceed the host's memory. While a driver announces its memory
//! again, the old and the new map exist at once. By default, a port may map four times the host's
//! memory, and all ports together may map sixteen times the host's memory. Both default limits are
//! at most 64 TiB, which is half of a process's address space.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::{SysconfVar, sysconf};

use super::MappingError;

/// Maximum in bytes of a default limit on mapped memory.
const DEFAULT_MAX: u64 = 64 << 40;

/// Limits in bytes on the memory of peers that the switch maps. A memory limit of 0 means the
/// default limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Limit in bytes on the mapped memory of one port, 0 for the default.
    pub port: u64,
    /// Limit in bytes on the mapped memory of all ports together, 0 for the default.
    pub daemon: u64,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        static HOST: OnceLock<u64> = OnceLock::new();
        let host = *HOST.get_or_init(|| {
            let number = |what| sysconf(what).ok().flatten().and_then(|n| u64::try_from(n).ok());
            let pages = number(SysconfVar::_PHYS_PAGES).unwrap_or(0);
            // If the host does not report its memory, a small memory is assumed.
            pages.saturating_mul(number(SysconfVar::PAGE_SIZE).unwrap_or(0)).max(1 << 30)
        });
        let times = |n: u64| host.saturating_mul(n).min(DEFAULT_MAX);
        Self { port: times(4), daemon: times(16) }
    }
}

/// Limit in bytes on the mapped memory of each port, 0 for the default. `DAEMON_LIMIT` is the limit
/// on the mapped memory of all ports together.
static PORT_LIMIT: AtomicU64 = AtomicU64::new(0);
static DAEMON_LIMIT: AtomicU64 = AtomicU64::new(0);
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Sets the memory limits for new mappings. Existing mappings stay.
pub fn set_memory_limits(limits: MemoryLimits) {
    PORT_LIMIT.store(limits.port, Ordering::Relaxed);
    DAEMON_LIMIT.store(limits.daemon, Ordering::Relaxed);
}

fn limits() -> MemoryLimits {
    let default = MemoryLimits::default();
    let set = |limit: &AtomicU64, default| match limit.load(Ordering::Relaxed) {
        0 => default,
        limit => limit,
    };
    MemoryLimits {
        port: set(&PORT_LIMIT, default.port),
        daemon: set(&DAEMON_LIMIT, default.daemon),
    }
}

/// Bytes of peers' memory that all ports together have mapped now.
#[must_use]
pub fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// Count of the bytes that one port has mapped. Clones of a memory account share one count of
/// mapped bytes.
#[derive(Clone, Debug, Default)]
pub struct MemoryAccount(Arc<AtomicU64>);

impl MemoryAccount {
    /// Bytes of its peer's memory that the port has mapped now.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `bytes` as mapped for as long as the returned charge lives.
    pub(super) fn charge(&self, bytes: u64) -> Result<Charge, MappingError> {
        let MemoryLimits { port, daemon } = limits();
        let key = "memory_per_port_gib";
        add(&self.0, bytes, port, "this port", key)?;
        // From here on, dropping the charge subtracts its bytes, even if the other limit refuses
        // it.
        let mut charge = Charge { account: self.clone(), bytes, daemon: 0 };
        add(&MAPPED, bytes, daemon, "all ports together", "memory_gib")?;
        charge.daemon = bytes;
        Ok(charge)
    }
}

fn add(
    total: &AtomicU64,
    bytes: u64,
    limit: u64,
    of: &'static str,
    key: &'static str,
) -> Result<(), MappingError> {
    let more = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= limit);
    match total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
        Ok(_) => Ok(()),
        Err(mapped) => Err(MappingError::Limit { bytes, mapped, limit, of, key }),
    }
}

/// Bytes of mapped memory that count towards the memory limits until the `Charge` is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: MemoryAccount,
    bytes: u64,
    daemon: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::Relaxed);
        MAPPED.fetch_sub(self.daemon, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_a_limit_is_refused_and_counts_nowhere() {
        let account = MemoryAccount::default();
        let MemoryLimits { port, daemon } = MemoryLimits::default();
        assert!(port >= 4 << 30 && port <= daemon && daemon <= DEFAULT_MAX);
        let held = account.charge(4096).unwrap();
        for bytes in [port, u64::MAX] {
            let error = account.charge(bytes).unwrap_err().to_string();
            let limit = format!("mapping {bytes} bytes more than the 4096 bytes of this port");
            assert!(error.contains(&limit) && error.contains("memory_per_port_gib"), "{error}");
        }
        assert_eq!(account.mapped(), 4096);
        drop(held);
        assert_eq!(account.mapped(), 0);
        // The limit of all ports together equals the limit of a single port.
        let total = AtomicU64::new(7);
        let error = add(&total, 4, 10, "all ports together", "memory_gib").unwrap_err();
        assert!(error.to_string().contains("limit 10; raise `memory_gib`"), "{error}");
        assert_eq!(total.load(Ordering::Relaxed), 7);
        assert!(add(&total, 3, 10, "all ports together", "memory_gib").is_ok());
    }
}
