//! Coefficients from the literature, for conditions that a host cannot measure.
//!
//! The coefficients are from C2QoS §III-C, Fig. 6. Four VMs on one NUMA node take 1.14 times the
//! cycles of one VM. Two I/O cores take 1.47 times the cycles of one core, "mainly due to
//! competition for locks". A VM on another node takes 1.4 times the cycles. Fig. 6(b) shows other
//! numbers of VMs only as a curve, which is not used here. The factor is therefore constant beyond
//! 4 VMs.

/// Factor by number of VMs on the host.
pub const VMS_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (4, 1.14)];
/// Factor by number of I/O cores.
pub const CORES_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (2, 1.47)];
/// Factor if the VM's memory is on another NUMA node than the core.
pub const NUMA_PUBLISHED: f64 = 1.4;
