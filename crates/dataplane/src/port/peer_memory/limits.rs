//! Limits on the mapped memory of peers: for one port, and for all ports of the daemon.
//!
//! # Problem
//! A file may claim any size without having pages, and addresses are finite. One port that maps 100
//! TiB leaves no addresses for the others.
//!
//! # Approach
//! A [`Charge`] counts a mapping from before it is made until after it is undone. Every mapping is
//! thus counted exactly once, however a session ends.
//!
//! # Defaults
//! The guests' memory may exceed the host's. While a driver announces its memory again, the old and
//! the new map exist at once. Hence a port may map four times the host's memory and all ports
//! sixteen times, but never more than 64 TiB. This is half of a process's address space.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::{SysconfVar, sysconf};

use super::MappingError;

/// Maximum default limit in bytes.
const DEFAULT_MAX: u64 = 64 << 40;

/// Limits on mapped memory of peers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Limit of each port.
    pub port: u64,
    /// Limit of all ports together.
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

/// Limits in bytes; zero means the default.
static PORT_LIMIT: AtomicU64 = AtomicU64::new(0);
static DAEMON_LIMIT: AtomicU64 = AtomicU64::new(0);
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Sets the limits for mappings from now on. Existing mappings stay.
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

/// Bytes of peers' memory that all ports have mapped now.
#[must_use]
pub fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// Mapped bytes of one port. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct MemoryAccount(Arc<AtomicU64>);

impl MemoryAccount {
    /// Bytes that the port has mapped now.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `bytes` for as long as the returned charge lives.
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

/// Bytes that count until the value is dropped.
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
            let limit = format!("{bytes} bytes more than the 4096 that this port has mapped");
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
